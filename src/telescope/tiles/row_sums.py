"""The sums of rows, each made once. Threads that need the same ones share the work."""

from math import e, log2
from threading import Condition

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..survey.exact_rows import check_sums
from .head_scores import ROWS, HeadScores, OneHead


class RowSums:
    """log2 Σ 2^score and the entropy of any rows, in bits; the first at once where the recording has it."""

    def __init__(self, scores: HeadScores) -> None:
        self.scores = scores
        self.given = _given(scores.head)
        queries = scores.size[0]
        self.lse = torch.full((queries,), torch.nan, dtype=scores.kind, device=scores.head.queries.device)
        self.entropy = self.lse.clone()
        if self.given is not None:
            self.lse = self.given.to(scores.kind) * log2(e)
        self.summed = torch.zeros_like(self.lse, dtype=torch.bool)
        self._taken = self.summed.clone()
        self._changed = Condition()

    @property
    def known(self) -> Bool[Tensor, " query"]:
        """Of which rows the sum is there."""
        return self.summed if self.given is None else torch.ones_like(self.summed)

    def lse_of(self, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        if self.given is None:
            self._sum(rows)
        return self.lse[rows]

    def entropy_of(self, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        self._sum(rows)
        return self.entropy[rows]

    def _sum(self, rows: Int[Tensor, " row"]) -> None:
        """Some of what nobody has begun, as long as there is any; then wait for those who have begun the rest."""
        while True:
            with self._changed:
                mine = rows[~self._taken[rows]][:ROWS]
                if not len(mine):
                    self._changed.wait_for(lambda: bool((self.summed[rows] | ~self._taken[rows]).all()))
                    if bool(self.summed[rows].all()):
                        return
                    continue  # somebody gave up
                self._taken[mine] = True
            try:
                lse, self.entropy[mine] = sums(self.scores, mine)
                if self.given is None:
                    self.lse[mine] = lse
                self.summed[mine] = True
            finally:
                with self._changed:
                    self._taken[mine] = self.summed[mine]
                    self._changed.notify_all()


def _given(head: OneHead) -> Float[Tensor, " query"] | None:
    """What the recording has, if some rows of weights sum to one with it; one that is wrong would spoil every tile."""
    if head.lse is None:
        return None
    try:
        check_sums(head.queries, head.keys, head.attention, head.lse)
    except ValueError:
        return None
    return head.lse[0, 0]


LOW = -1e4  # 2^LOW is 0, and 0 · LOW is 0, which 0 · -inf is not


def sums(scores: HeadScores, rows: Int[Tensor, " row"]) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """log2 Σ 2^score, the sink included, and the entropy -Σ w log2 w over the keys: both in bits.

    Kept while the largest score so far grows: Σ 2^(score - largest), and Σ 2^(score - largest) · (score - largest).
    """
    sink = scores.attention.sink
    largest = torch.full((len(rows),), -torch.inf, dtype=scores.kind, device=rows.device)
    total, weighed = torch.zeros_like(largest), torch.zeros_like(largest)
    seen = range(int(scores.start[rows].min()), int(scores.stop[rows].max()))
    for part, _, block in scores.blocks(rows, seen):
        old, new = largest[part], torch.maximum(largest[part], block.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0.0)
        fell = (old - shift).clamp(min=LOW)
        before = torch.exp2(fell)
        block = block.sub_(shift[:, None]).clamp_(min=LOW)
        powers = torch.exp2(block)
        weighed[part] = before * (weighed[part] + fell * total[part]) + torch.linalg.vecdot(powers, block)
        total[part] = before * total[part] + powers.sum(-1)
        largest[part] = new
    lse = (largest + total.log2()).masked_fill(total == 0.0, -torch.inf)
    if sink is not None:
        lse = torch.logaddexp2(lse, torch.as_tensor(sink, dtype=lse.dtype, device=lse.device).reshape(-1) * log2(e))
    below = (largest - lse).masked_fill(total == 0.0, 0.0)  # w = 2^(score - largest) · 2^below
    entropy = -below.exp2() * (weighed + below * total)
    return lse, entropy.clamp(min=0.0)
