"""Normalisers: scores to weights. A score of -inf belongs to a key that may not be seen: its weight is zero.

A row that sees nothing is all zeros, forward and backward, not NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .values import has_numbers


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
        row = cancelled.squeeze(-1).nonzero()[0].tolist()
        where = ", ".join(f"{axis} {i}" for axis, i in zip(("batch", "head", "query")[-len(row) :], row, strict=False))
        raise ValueError(
            f"by_sum: the scores of {where or 'the row'} sum to zero, so they cannot be divided by their sum; "
            "normalize=ts.softmax has no such rows"
        )
    return seen / total.masked_fill(blind, 1.0)
