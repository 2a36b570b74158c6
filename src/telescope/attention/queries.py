"""The same attention, of some of its queries alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .biases import Bias
from .definition import Attention
from .mask import Combination, Mask, Opposite
from .pairs import Pairs
from .spans import Spans

Size = tuple[int, int]  # queries, keys


def of_queries(attention: Attention, which: Int[Tensor, " some"], of: Size) -> Attention:
    """What these queries of a matrix of that size compute, as an attention of that many queries."""
    if len(which) == of[0] and which.tolist() == list(range(of[0])):
        return attention
    bias = attention.bias
    return replace(
        attention,
        bias=OfQueries(bias, which, of) if isinstance(bias, Bias) else bias,
        mask=_mask(attention.mask, which, of),
    )


@dataclass(frozen=True, eq=False)
class SeenByQueries(Mask):
    """A mask that differs from query to query, for some of them."""

    mask: Mask
    which: Int[Tensor, " some"]
    of: Size

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(_renumbered(at, self.which, self.of))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(_renumbered(at, self.which, self.of), keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=heads, queries=self.of[0], keys=keys)

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class OfQueries(Bias):
    """A bias, for some of its queries."""

    bias: Bias
    which: Int[Tensor, " some"]
    of: Size

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(_renumbered(at, self.which, self.of))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch=batch, heads=heads, queries=self.of[0], keys=keys)

    def __repr__(self) -> str:
        return repr(self.bias)


def _mask(mask: Mask, which: Tensor, of: Size) -> Mask:
    """Part by part: what is the same for every query stays as it is."""
    if mask.keys_alone:
        return mask
    if isinstance(mask, Combination):
        return type(mask)(tuple(_mask(part, which, of) for part in mask.masks))
    return Opposite(_mask(mask.mask, which, of)) if isinstance(mask, Opposite) else SeenByQueries(mask, which, of)


def _renumbered(at: Pairs, which: Tensor, of: Size) -> Pairs:
    row = which.to(at.row.device)[torch.as_tensor(at.row)]
    return replace(at, row=row, query=row + (of[1] - of[0]))
