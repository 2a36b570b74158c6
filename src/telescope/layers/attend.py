"""The one place where a layer attends: a module, so that PyTorch's own forward hooks can look on."""

from collections.abc import Callable
from typing import cast
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention
from ..attention.values import mapped, named_leaves, tensors
from ..engines import attend
from ..engines.check_inputs import check_dropout


class Attend(nn.Module):
    """`attend` as a module. Its hooks see (queries, keys, values, attention) and the context.

    `across` says whether the keys are another sequence than the queries, for hooks that look on; it changes no number.
    `dropout` is the probability with which a weight is dropped, in training only.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch key_heads key d_k"],
        values: Float[Tensor, "batch key_heads key d_v"],
        attention: Attention,
        *,
        across: bool | None = None,
    ) -> Float[Tensor, "batch heads query d_v"]:
        return attend(queries, keys, values, attention, dropout=self.dropout if self.training else 0.0)


def split_heads(features: Float[Tensor, "batch n heads_d"], heads: int) -> Float[Tensor, "batch heads n d"]:
    batch, n, width = features.shape
    return features.reshape(batch, n, heads, width // heads).transpose(1, 2)


def join_heads(context: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch n heads_d"]:
    return context.transpose(1, 2).flatten(-2)


# What `.to()`, `.half()` and the like made of each tensor, by the function that they hand to all parts of a model.
_converted: "WeakKeyDictionary[Callable[[Tensor], Tensor], dict[int, tuple[Tensor, Tensor]]]" = WeakKeyDictionary()


class Definition(nn.Module):
    """Register what an Attention is made of, so that what moves, converts, trains, copies or saves a layer reaches it.

    Each tensor has the name of its place in the definition: that of bias=ts.relative(table) is "bias_table". A bias
    that is a module is a part of this one. `attention` is the definition with the tensors that are registered now.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.names: list[str] = []
        for path, leaf in named_leaves(attention):
            name = "_".join(path)
            if isinstance(leaf, nn.Module):
                self.add_module(name, leaf)
            elif isinstance(leaf, nn.Parameter):
                self.register_parameter(name, leaf)
            elif isinstance(leaf, Tensor):
                _must_not_be_forgotten(".".join(path), leaf)
                self.register_buffer(name, leaf)
            if isinstance(leaf, Tensor):
                self.names.append(name)
        self.made = attention

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Definition":
        """Convert a tensor that several layers share once, so that they still share it afterwards."""
        shared = _converted.setdefault(fn, {})

        def convert(tensor: Tensor) -> Tensor:
            if id(tensor) not in shared:
                shared[id(tensor)] = (tensor, fn(tensor))
            return shared[id(tensor)][1]

        return cast(Definition, super()._apply(convert, recurse))  # type: ignore[no-untyped-call]

    @property
    def attention(self) -> Attention:
        """Made anew only where a tensor was replaced, e.g. by `.to()`: then it is another object."""
        now = [getattr(self, name) for name in self.names]
        if any(one is not other for one, other in zip(now, tensors(self.made), strict=True)):
            rest = iter(now)
            self.made = mapped(self.made, lambda _: next(rest))
        return self.made


class DefinedLayer(nn.Module):
    """The base of layers that hold a definition, `attention`."""

    definition: Definition | Attention
    """The definition itself, or the module that holds its tensors, where it has any."""

    @property
    def attention(self) -> Attention:
        held = self.definition
        return held.attention if isinstance(held, Definition) else held

    @attention.setter
    def attention(self, attention: Attention) -> None:
        """A definition without tensors is kept as it is, so that a layer has no part that it does not need."""
        self._modules.pop("definition", None)
        self.__dict__.pop("definition", None)
        has_tensors = any(isinstance(leaf, Tensor | nn.Module) for _, leaf in named_leaves(attention))
        self.definition = Definition(attention) if has_tensors else attention


def _must_not_be_forgotten(name: str, tensor: Tensor) -> None:
    """Accept a tensor that was computed from parameters: the module that computed it owns them."""
    if tensor.requires_grad and tensor.is_leaf:
        raise ValueError(
            f"attention.{name} is a tensor that requires a gradient and no nn.Parameter, so that no optimiser would "
            f"find it; nn.Parameter(tensor) is learnt, tensor.detach() stays as it is"
        )
