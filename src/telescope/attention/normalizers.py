"""Normalisers: scores to weights. A score of -inf marks a hidden key, whose weight is zero.

The weights and gradients of a row in which every key is hidden are zeros, not NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .values import has_data


class ZeroSumError(ValueError):
    """Raised by `by_sum`: the scores of a row sum to zero. `row` is (batch, head, query), or its
    last entries.
    """

    def __init__(self, row: list[int]) -> None:
        self.row = row
        # Only the axes that the scores had.
        place = ", ".join(
            f"{axis} {i}"
            for axis, i in zip(("batch", "head", "query")[-len(row) :], row, strict=False)
        )
        super().__init__(
            f"by_sum: the scores of {place or 'the row'} sum to zero, so they cannot be divided by "
            "their sum; normalize=ts.softmax has no such rows"
        )

    def shifted(self, rows: int) -> "ZeroSumError":
        """Return this error for a block that begins at query `rows`."""
        return ZeroSumError([*self.row[:-1], self.row[-1] + rows])


def softmax(
    scores: Float[Tensor, "*rows key"], sink: Float[Tensor, "*#rows 1"] | None = None
) -> Float[Tensor, "*rows key"]:
    """Return exp(score) / Σ exp(score) along the last axis.

    Args:
        scores: (..., key), with -inf for hidden keys. A row of nothing but -inf becomes zeros.
        sink: (..., 1), one more score in the sum that belongs to no key: rows then sum to less than
            one.

    Returns:
        Weights of the same shape as `scores`.

    Example:
        >>> import telescope as ts, torch
        >>> ts.softmax(
        ...     torch.tensor([[0.0, 0.0, -torch.inf], [-torch.inf] * 3])
        ... ).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    if sink is not None:
        # The sink is one more column, which is cut off again: rows sum to less than one.
        with_sink = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
        return softmax(with_sink)[..., :-1]
    # softmax of nothing but -inf is NaN, and so is its gradient: fill with zeros before and after.
    all_hidden = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(all_hidden, 0.0), dim=-1).masked_fill(all_hidden, 0.0)


def by_sum(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Return score / Σ score along the last axis, which is undefined where the scores of a row sum
    to zero.

    Args:
        scores: (..., key), with -inf for hidden keys. A row of nothing but -inf becomes zeros.

    Returns:
        Weights of the same shape as `scores`; they may be negative.

    Raises:
        ZeroSumError: A row's scores sum to zero within rounding. Not checked while compiling or on
            meta tensors.

    Example:
        >>> import telescope as ts, torch
        >>> ts.by_sum(torch.tensor([1.0, 3.0, -torch.inf])).tolist()
        [0.25, 0.75, 0.0]
    """
    hidden = scores == -torch.inf
    seen = scores.masked_fill(hidden, 0.0)
    total = seen.sum(-1, keepdim=True)
    all_hidden = hidden.all(-1, keepdim=True)
    # A sum below the rounding error of its terms counts as zero.
    rounding = torch.finfo(scores.dtype).eps * seen.abs().sum(-1, keepdim=True)
    cancelled = (total.abs() <= rounding) & ~all_hidden
    if has_data(scores) and bool(cancelled.any()):
        raise ZeroSumError(cancelled.squeeze(-1).nonzero()[0].tolist())
    # A row that sees nothing is divided by 1: zeros, not NaN.
    return seen / total.masked_fill(all_hidden, 1.0)
