"""Where a query looks: the stretch of keys outside of which it sees nothing. What an engine may skip."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from .pairs import Pairs


@dataclass(frozen=True)
class Spans:
    """Every key that a query sees lies from `start` up to `stop`; `whole` says that it sees all of these.

    A query that sees nothing has start = stop.
    """

    start: Int[Tensor, "#batch #head #query 1"]
    stop: Int[Tensor, "#batch #head #query 1"]
    whole: bool

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, keys: int, *, whole: bool = True) -> "Spans":
        """From start up to stop, as far as there are keys."""
        start = start.clamp(0, keys)
        return cls(start, torch.maximum(stop.clamp(0, keys), start), whole)

    @classmethod
    def unknown(cls, at: Pairs, keys: int) -> "Spans":
        """Anywhere: what a mask says that cannot say more."""
        return cls(torch.zeros_like(at.query), torch.full_like(at.query, keys), False)

    @property
    def empty(self) -> Tensor:
        return self.start == self.stop

    def __and__(self, other: "Spans") -> "Spans":
        start = torch.maximum(self.start, other.start)
        stop = torch.maximum(torch.minimum(self.stop, other.stop), start)
        return Spans(start, stop, self.whole and other.whole)

    def __or__(self, other: "Spans") -> "Spans":
        """One stretch around both. It is whole if they touch in every row, or one of them is empty."""
        start = torch.where(other.empty, self.start, torch.minimum(self.start, other.start))
        start = torch.where(self.empty, other.start, start)
        stop = torch.where(other.empty, self.stop, torch.maximum(self.stop, other.stop))
        stop = torch.where(self.empty, other.stop, stop)
        touch = torch.maximum(self.start, other.start) <= torch.minimum(self.stop, other.stop)
        whole = self.whole and other.whole and bool((touch | self.empty | other.empty).all())
        return Spans(start, stop, whole)

    def outside(self, at: Pairs, keys: int) -> "Spans":
        """What is left of the keys: one stretch only where this one begins at the first key or ends at the last."""
        if self.whole and bool((self.empty | (self.start == 0)).all()):
            return Spans(torch.where(self.empty, 0, self.stop), torch.full_like(self.stop, keys), True)
        if self.whole and bool((self.empty | (self.stop == keys)).all()):
            return Spans(torch.zeros_like(self.start), torch.where(self.empty, keys, self.start), True)
        return Spans.unknown(at, keys)
