"""Normalisers: scores to weights. A score of -inf belongs to a key that may not be seen: its weight is zero.

A row that sees nothing is all zeros, forward and backward, not NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .values import has_numbers


class ZeroSumError(ValueError):
    """The scores of a row sum to zero: of this (batch, head, query), or as many of them as there are."""

    def __init__(self, row: list[int]) -> None:
        self.row = row
        where = ", ".join(f"{axis} {i}" for axis, i in zip(("batch", "head", "query")[-len(row) :], row, strict=False))
        super().__init__(
            f"by_sum: the scores of {where or 'the row'} sum to zero, so they cannot be divided by their sum; "
            "normalize=ts.softmax has no such rows"
        )

    def below(self, rows: int) -> "ZeroSumError":
        """The same in a block with this many queries above it."""
        return ZeroSumError([*self.row[:-1], self.row[-1] + rows])


def softmax(
    scores: Float[Tensor, "*rows key"], sink: Float[Tensor, "*#rows 1"] | None = None
) -> Float[Tensor, "*rows key"]:
    """exp(score) / Σ exp(score). A sink is one more score that no key gets: rows then sum to less than one."""
    if sink is not None:
        with_sink = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
        return softmax(with_sink)[..., :-1]
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)


def by_sum(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """score / Σ score: the notes' first way, which has no meaning where the scores of a row cancel."""
    hidden = scores == -torch.inf
    seen = scores.masked_fill(hidden, 0.0)
    total = seen.sum(-1, keepdim=True)
    blind = hidden.all(-1, keepdim=True)
    rounding = torch.finfo(scores.dtype).eps * seen.abs().sum(-1, keepdim=True)
    cancelled = (total.abs() <= rounding) & ~blind
    if has_numbers(scores) and bool(cancelled.any()):
        raise ZeroSumError(cancelled.squeeze(-1).nonzero()[0].tolist())
    return seen / total.masked_fill(blind, 1.0)
