"""The same attention over the later keys alone: the earliest are gone, as from a cache that keeps a window."""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor

from .biases import Alibi, Bias, FromAdditive, Relative
from .definition import Attention
from .mask import Combination, Everyone, Mask, Opposite
from .masks import Causal, Documents, FromTensor, Keep, Left, Lengths, Prefix, Window
from .pairs import Pairs
from .spans import Spans


def of_later_keys(attention: Attention, gone: int) -> Attention:
    """What is computed when the first `gone` keys, which no query sees, are not there."""
    if gone == 0:
        return attention
    bias = attention.bias
    return replace(
        attention, bias=_bias(bias, gone) if isinstance(bias, Bias) else bias, mask=_mask(attention.mask, gone)
    )


@dataclass(frozen=True, eq=False)
class SeenLater(Mask):
    """A mask, of which the first `gone` keys are not there."""

    mask: Mask
    gone: int

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(_counted(at, self.gone))

    def spans(self, at: Pairs, keys: int) -> Spans:
        spans = self.mask.spans(_counted(at, self.gone), keys + self.gone)
        return Spans.between(spans.start - self.gone, spans.stop - self.gone, keys, whole=spans.whole)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys + self.gone)

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class OfLater(Bias):
    """A bias, of which the first `gone` keys are not there."""

    bias: Bias
    gone: int

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(_counted(at, self.gone))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch=batch, heads=heads, queries=queries, keys=keys + self.gone)

    def __repr__(self) -> str:
        return repr(self.bias)


def _counted(at: Pairs, gone: int) -> Pairs:
    return replace(at, key=at.key + gone, query=at.query + gone)


def _mask(mask: Mask, gone: int) -> Mask:
    """Part by part, so that an engine still finds `causal` among them."""
    match mask:
        case Everyone() | Causal() | Window():  # of the distance alone
            return mask
        case Prefix(size):
            return Prefix(max(0, size - gone))
        case Lengths(lengths):
            return Lengths((lengths - gone).clamp(min=0))
        case Left(left):
            return Left((left - gone).clamp(min=0))
        case Keep(keep):
            return Keep(keep[:, gone:])
        case Documents(keys, queries) if keys.shape[-1] > 1:
            return Documents(keys[:, gone:], queries)
        case FromTensor(tensor) if tensor.shape[-1] > 1:
            return FromTensor(tensor[..., gone:])
        case Combination(masks):
            return type(mask)(tuple(_mask(part, gone) for part in masks))
        case Opposite(inner):
            return Opposite(_mask(inner, gone))
    return SeenLater(mask, gone)


def _bias(bias: Bias, gone: int) -> Bias:
    match bias:
        case Alibi() | Relative():
            return bias
        case FromAdditive(tensor) if tensor.shape[-1] > 1:
            return FromAdditive(tensor[..., gone:])
    return OfLater(bias, gone)
