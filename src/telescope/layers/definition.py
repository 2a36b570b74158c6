"""The definition of a layer, whose tensors are the layer's own: learned ones are parameters, the others buffers."""

from collections.abc import Callable
from typing import cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ..attention import Attention
from ..attention.values import mapped, named_leaves, tensors

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


class Defined(nn.Module):
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
