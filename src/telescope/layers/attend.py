"""What every layer is built on: `Attend`, the module in which it attends, `DefinedLayer`, the base
class of layers with a definition, and the checks of sizes and inputs.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from threading import Lock
from weakref import WeakKeyDictionary

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..attention import (
    Attention,
    Context,
    Keys,
    Queries,
    Values,
    map_tensors,
    named_leaves,
    require_dense,
    require_int,
    tensors,
)
from ..engines import attend, check_dropout
from ..words import hint

# The input of a layer, and the positions of its tokens, of each sequence or of all.
States = Float[Tensor, "batch n d_model"]
Positions = Int[Tensor, "*batch n"]


def check_sizes(**sizes: int | None) -> None:
    """Raise a ValueError where a size is below 1, a TypeError where a size is not an int. None
    means "not given".
    """
    for name, size in sizes.items():
        if size is not None and require_int(name, size) < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def head_width(d_model: int, heads: int) -> int:
    """Return d_model / heads, the width of one head; raise a ValueError where the division leaves a
    remainder.
    """
    if d_model % heads:
        # Name the two widths next to the one that does not fit.
        below = d_model - d_model % heads
        near = f"{below} or {below + heads}" if below else f"{heads}"
        raise ValueError(f"d_model={d_model} cannot be split into heads={heads}; nearest: {near}")
    return d_model // heads


def group_size(heads: int, key_heads: int) -> int:
    """Return heads / key_heads, the number of query heads that share one key head (grouped-query
    attention).
    """
    if heads % key_heads:
        # At most 1024 are tried: a file may say 2^62.
        divisors = ", ".join(str(n) for n in range(1, min(heads, 1024) + 1) if heads % n == 0)
        raise ValueError(
            f"key_heads={key_heads} does not divide heads={heads}; these do: {divisors}"
        )
    return heads // key_heads


def check_choice(name: str, choice: str, choices: Iterable[str]) -> None:
    """Raise a ValueError unless `choice` is one of `choices`; the error suggests the nearest
    one.
    """
    known = list(choices)
    if choice not in known:
        raise ValueError(f'there is no {name}="{choice}"; {hint(choice, known)}')


def check_features(layer: nn.Module, name: str, tensor: Tensor, argument: str) -> None:
    """Raise a ValueError unless `tensor` is (batch, position, width), where width is the layer's
    attribute `argument`.

    `name` is what the caller calls the tensor, for the error message. Raise a TypeError if the
    tensor is not dense.
    """
    require_dense(name, tensor)
    width = getattr(layer, argument)
    if tensor.ndim != 3 or tensor.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; "
            f"{type(layer).__name__} with {argument}={width} takes (batch, position, {width})"
        )


# A context variable: each thread and each task has its own.
_running: ContextVar[Tensor | None] = ContextVar("real_queries", default=None)


class OnlyReal:
    """Tell hooks, while the block runs, which of the latest tokens of each sequence count; None
    tells nothing.

    The last token is that of the last query. Tokens before those given count as their masks say.

    is_new_text  whether what a block around tells is of another text, and does not hold
    """

    def __init__(
        self, tokens: Bool[Tensor, "batch token"] | None, *, is_new_text: bool = False
    ) -> None:
        self.tokens = tokens
        self.is_new_text = is_new_text
        self._before: Token[Tensor | None] | None = None

    def __enter__(self) -> None:
        if self.tokens is not None or self.is_new_text:
            self._before = _running.set(self.tokens)

    def __exit__(self, *raised: object) -> None:
        # Reset only what this block has set.
        if self._before is not None:
            _running.reset(self._before)


def told_real() -> Bool[Tensor, "batch token"] | None:
    """Return what `OnlyReal` tells now."""
    return _running.get()


class Attend(nn.Module):
    """`telescope.attend` as a module, so that PyTorch's forward hooks can observe it.

    A hook gets (queries, keys, values, attention) as inputs and the context as output.

    Args:
        dropout: the probability with which an attention weight is dropped, in training only.

    Example:
        >>> import torch, telescope as ts
        >>> from telescope.layers import Attend
        >>> x = torch.zeros(1, 2, 5, 4)
        >>> Attend()(x, x, x, ts.Attention()).shape
        torch.Size([1, 2, 5, 4])
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def forward(
        self,
        queries: Queries,
        keys: Keys,
        values: Values,
        attention: Attention,
        *,
        across: bool | None = None,
    ) -> Context:
        """Return the context, softmax(q kᵀ · scale) v by default.

        `across` tells hooks whether the keys come from another sequence than the queries; no number
        depends on it.

        Args:
            queries: (batch, heads, query, d_q).
            keys: (batch, key_heads, key, d_k).
            values: (batch, key_heads, key, d_v).
            attention: the definition.
            across: whether the keys come from another sequence than the queries, which hooks can
                read; None does not say.
        """
        # Dropout is for training alone.
        dropout = self.dropout if self.training else 0.0
        return attend(queries, keys, values, attention, dropout=dropout)


def split_heads(
    features: Float[Tensor, "batch n heads_d"], heads: int
) -> Float[Tensor, "batch heads n d"]:
    """Return a view (batch, heads, n, d) of the features."""
    batch, n, width = features.shape
    # A view: no number moves.
    return features.reshape(batch, n, heads, width // heads).transpose(1, 2)


def join_heads(context: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch n heads_d"]:
    """Return the heads side by side, (batch, n, heads · d); the inverse of `split_heads`."""
    return context.transpose(1, 2).flatten(-2)


# The results of one `.to()`, `.half()` or the like: the key is the function that PyTorch passes to
# every submodule, the value maps id(tensor) to the tensor and its converted copy.
_converted: "WeakKeyDictionary[Callable[[Tensor], Tensor], dict[int, tuple[Tensor, Tensor]]]" = (
    WeakKeyDictionary()
)
_converted_lock = Lock()  # held while `_converted` changes


class DefinitionModule(nn.Module):
    """A module that registers the tensors of a definition, so that `.to()`, optimisers and
    `state_dict` reach them.

    A tensor is named by its path in the definition: the table of bias=ts.relative(table) is
    "bias_table". A bias that is a module becomes a submodule.

    Example:
        >>> import torch, telescope as ts
        >>> bias = ts.relative(torch.nn.Parameter(torch.zeros(2, 5)))
        >>> layer = ts.layers.MultiHeadAttention(
        ...     8, heads=2, attention=ts.Attention(bias=bias)
        ... )
        >>> layer.definition.attention
        Attention(bias=relative(reach=2))
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.names: list[str] = []
        # Modules, parameters and buffers, each under its path in the definition.
        for path, leaf in named_leaves(attention):
            name = "_".join(path)
            if isinstance(leaf, nn.Module):
                self.add_module(name, leaf)
            elif isinstance(leaf, nn.Parameter):
                self.register_parameter(name, leaf)
            elif isinstance(leaf, Tensor):
                _check_is_trainable(".".join(path), leaf)
                self.register_buffer(name, leaf)
            if isinstance(leaf, Tensor):
                self.names.append(name)
        self._attention = attention

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DefinitionModule":
        """Convert each tensor once, so that layers that share a tensor still share it
        afterwards.
        """
        # PyTorch passes one function to all submodules: what it returned is kept under it.
        with _converted_lock:
            shared = _converted.setdefault(fn, {})

        def convert(tensor: Tensor) -> Tensor:
            if id(tensor) not in shared:
                shared[id(tensor)] = (tensor, fn(tensor))
            return shared[id(tensor)][1]

        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def attention(self) -> Attention:
        """The definition with the tensors that are registered now; a new object only after a tensor
        was replaced.
        """
        # `.to()` and loading replace registered tensors: put them into the definition.
        current = [getattr(self, name) for name in self.names]
        if any(
            one is not other for one, other in zip(current, tensors(self._attention), strict=True)
        ):
            # `map_tensors` meets the tensors in the order of `names`.
            remaining = iter(current)
            self._attention = map_tensors(self._attention, lambda _: next(remaining))
        return self._attention


class DefinedLayer(nn.Module):
    """The base class of layers with a definition, `attention`, which may be replaced."""

    definition: DefinitionModule | Attention
    """The definition itself or, where it has tensors, the module that registers them."""

    @property
    def attention(self) -> Attention:
        """The definition by which the layer attends."""
        definition = self.definition
        return definition.attention if isinstance(definition, DefinitionModule) else definition

    @attention.setter
    def attention(self, attention: Attention) -> None:
        """Set the definition; one without tensors is stored as it is, so that the layer gains no
        empty submodule.
        """
        # A definition may be a module before and a plain value after, or the other way round.
        self._modules.pop("definition", None)
        self.__dict__.pop("definition", None)
        has_tensors = any(
            isinstance(leaf, Tensor | nn.Module) for _, leaf in named_leaves(attention)
        )
        self.definition = DefinitionModule(attention) if has_tensors else attention


def _check_is_trainable(name: str, tensor: Tensor) -> None:
    """Raise a ValueError for a leaf tensor that requires a gradient and is not a parameter.

    A tensor computed from parameters passes: the module that computed it owns the parameters.
    """
    # A buffer that requires a gradient would silently never be trained.
    if tensor.requires_grad and tensor.is_leaf:
        raise ValueError(
            f"attention.{name} requires a gradient but is not an nn.Parameter, so no optimiser "
            "would find "
            f"it; pass nn.Parameter(tensor) to train it, or tensor.detach() to keep it as it is"
        )
