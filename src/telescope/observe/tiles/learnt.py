"""The sums of rows, each made once. Threads that need the same ones share the work."""

from math import e, log2
from threading import Condition

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..one_head import OneHead
from ..survey.check_lse import check_sums
from .scores import ROWS, Scores
from .sums import sums


class Learnt:
    """log2 Σ 2^score and the entropy of any rows, in bits; the first at once where the recording has it."""

    def __init__(self, scores: Scores) -> None:
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
