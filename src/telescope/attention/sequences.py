"""The same attention, of one sequence of its batch alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .biases import Bias
from .definition import Attention
from .mask import Combination, Mask, Opposite
from .pairs import Pairs
from .spans import Spans
from .values import tensors


def of_sequence(attention: Attention, which: int, of: int) -> Attention:
    """What it computes in this sequence of `of`, as an attention of a batch of one."""
    if of == 1:
        return attention
    bias = attention.bias
    return replace(
        attention,
        bias=OfSequence(bias, which, of) if isinstance(bias, Bias) else bias,
        mask=_mask(attention.mask, which, of),
    )


@dataclass(frozen=True, eq=False)
class SeenInSequence(Mask):
    """A mask that may differ from sequence to sequence, for one of them."""

    mask: Mask
    which: int
    of: int

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(_renumbered(at, self.which))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(_renumbered(at, self.which), keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=self.of, heads=heads, queries=queries, keys=keys)

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class OfSequence(Bias):
    """A bias that may differ from sequence to sequence, for one of them."""

    bias: Bias
    which: int
    of: int

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(_renumbered(at, self.which))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch=self.of, heads=heads, queries=queries, keys=keys)

    def __repr__(self) -> str:
        return repr(self.bias)


def _mask(mask: Mask, which: int, of: int) -> Mask:
    """Part by part: what holds no numbers is the same in every sequence."""
    if isinstance(mask, Combination):
        return type(mask)(tuple(_mask(part, which, of) for part in mask.masks))
    if isinstance(mask, Opposite):
        return Opposite(_mask(mask.mask, which, of))
    return SeenInSequence(mask, which, of) if next(tensors(mask), None) is not None else mask


def _renumbered(at: Pairs, which: int) -> Pairs:
    return replace(at, batch=torch.full_like(at.batch, which))
