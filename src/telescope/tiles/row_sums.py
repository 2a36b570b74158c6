"""The log-sum-exp and the entropy of rows, each computed once. Threads that need the same rows
share the work.
"""

from math import e, log2
from threading import Condition

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..surveys.exact_rows import check_sums
from .head_scores import ROWS, HeadScores, OneHead


class RowSums:
    """Cache of log2 Σ 2^score and entropy of rows, both in bits. An lse in the recording saves the
    sum.

    lse, entropy   (query,): the numbers of the rows in `summed`; lse of all rows if the recording
                   has it
    summed         (query,): for which rows both have been computed
    """

    def __init__(self, scores: HeadScores) -> None:
        self.scores = scores
        self.recorded_lse = _checked_lse(scores.head)
        queries = scores.size[0]
        self.lse = torch.full(
            (queries,), torch.nan, dtype=scores.dtype, device=scores.head.queries.device
        )
        self.entropy = self.lse.clone()
        if self.recorded_lse is not None:
            self.lse = self.recorded_lse.to(scores.dtype) * log2(e)
        self.summed = torch.zeros_like(self.lse, dtype=torch.bool)
        self._taken = self.summed.clone()  # rows that are computed, or that a thread is computing
        self._changed = Condition()

    @property
    def has_lse(self) -> Bool[Tensor, " query"]:
        """Mask of the rows whose log-sum-exp needs no computing."""
        return self.summed if self.recorded_lse is None else torch.ones_like(self.summed)

    def lse_of(self, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return log2 Σ 2^score of these rows, computed where it is missing."""
        if self.recorded_lse is None:
            self._sum(rows)
        return self.lse[rows]

    def entropy_of(self, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return the entropy of these rows in bits, computed where it is missing."""
        self._sum(rows)
        return self.entropy[rows]

    def _sum(self, rows: Int[Tensor, " row"]) -> None:
        """Compute rows that no thread has taken, ROWS at a time; then wait for the threads that
        have taken the rest.
        """
        while True:
            with self._changed:
                mine = rows[~self._taken[rows]][:ROWS]
                if not len(mine):
                    self._changed.wait_for(
                        lambda: bool((self.summed[rows] | ~self._taken[rows]).all())
                    )
                    if bool(self.summed[rows].all()):
                        return
                    continue  # another thread failed and gave its rows back
                self._taken[mine] = True
            try:
                lse, self.entropy[mine] = sum_rows(self.scores, mine)
                if self.recorded_lse is None:
                    self.lse[mine] = lse
                self.summed[mine] = True
            finally:
                with self._changed:
                    self._taken[mine] = self.summed[mine]
                    self._changed.notify_all()


def _checked_lse(head: OneHead) -> Float[Tensor, " query"] | None:
    """Return the recorded lse if some rows of weights sum to one with it: a wrong one would spoil
    every tile.
    """
    if head.lse is None:
        return None
    try:
        check_sums(head.queries, head.keys, head.attention, head.lse)
    except ValueError:
        return None
    return head.lse[0, 0]


LOW = -1e4  # 2^LOW is 0, and 0 · LOW is 0, while 0 · -inf would be NaN


def sum_rows(
    scores: HeadScores, rows: Int[Tensor, " row"]
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return log2 Σ 2^score, the sink included, and the entropy -Σ w log2 w over the keys: both in
    bits.

    One pass, which keeps Σ 2^(score - largest) and Σ 2^(score - largest) · (score - largest) and
    rescales both when the largest score so far grows.
    """
    sink = scores.attention.sink
    largest = torch.full((len(rows),), -torch.inf, dtype=scores.dtype, device=rows.device)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(largest)
    columns = range(int(scores.start[rows].min()), int(scores.stop[rows].max()))
    for part, _, block in scores.blocks(rows, columns):
        old = largest[part]
        new = torch.maximum(largest[part], block.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0.0)
        change = (old - shift).clamp(min=LOW)
        rescale = torch.exp2(change)
        block = block.sub_(shift[:, None]).clamp_(min=LOW)
        powers = torch.exp2(block)
        weighted[part] = rescale * (weighted[part] + change * total[part]) + torch.linalg.vecdot(
            powers, block
        )
        total[part] = rescale * total[part] + powers.sum(-1)
        largest[part] = new
    lse = (largest + total.log2()).masked_fill(total == 0.0, -torch.inf)
    if sink is not None:
        lse = torch.logaddexp2(
            lse, torch.as_tensor(sink, dtype=lse.dtype, device=lse.device).reshape(-1) * log2(e)
        )
    below = (largest - lse).masked_fill(total == 0.0, 0.0)  # w = 2^(score - largest) · 2^below
    entropy = -below.exp2() * (weighted + below * total)
    return lse, entropy.clamp(min=0.0)
