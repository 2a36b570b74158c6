"""The scores of one head, computed where a tile needs them, and the sums of its rows.

Blocks that a mask hides are skipped. Scores are in bits, so that exp2(score) takes the place of
exp(score): exp2 is faster, and tiles hold log2. The sums of a row are computed once; threads that
need the same rows share the work.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import e, log2
from threading import Condition
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention, Pairs, dot, everyone, softmax
from ..surveys import check_sums, compute_dtype, pairs_of_rows, sink_of

# Rows and scores of a block, measured: smaller ones take longer to start than to compute
ROWS = 128
BLOCK = 2**20
LOW = -1e4  # 2^LOW is 0, and 0 · LOW is 0, while 0 · -inf would be NaN


class OneHead(NamedTuple):
    """The tensors and the definition of one head and one sequence; values and lse only where they
    were kept.
    """

    queries: Float[Tensor, "1 1 query d_q"]
    keys: Float[Tensor, "1 1 key d_k"]
    values: Float[Tensor, "1 1 key d_v"] | None
    attention: Attention
    lse: Float[Tensor, "1 1 query"] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.queries.shape[-2], self.keys.shape[-2]


class HeadScores:
    """The scores of one head, computed where they are needed.

    start, stop   (query,): the first key that each query sees, and one past the last
    complete      whether a query sees all keys between the two
    """

    def __init__(self, head: OneHead) -> None:
        if head.attention.normalize is not softmax:
            raise ValueError(
                "a map needs the weights of softmax, and this attention has another normaliser"
            )
        self.head = head
        self.size = head.size
        self.dtype = compute_dtype(head.queries)
        self.attention = head.attention
        self.unmasked = replace(head.attention, mask=everyone)
        only_dot = head.attention.score == dot and head.attention.softcap is None
        self.plain = only_dot and head.attention.bias is None
        every = torch.arange(self.size[0], device=head.queries.device)
        spans = head.attention.mask.spans(self._pairs(every, range(0)), self.size[1])
        self.start, self.stop = (
            ends.reshape(-1).expand(self.size[0]) for ends in (spans.start, spans.stop)
        )
        self.complete = spans.whole

    def blocks(
        self, rows: Int[Tensor, " row"], columns: range, multiple: int = 1
    ) -> Iterator[tuple[slice, slice, Float[Tensor, "some_rows some_columns"]]]:
        """Yield the scores of these rows and columns, in blocks, each with its slices of `rows` and
        of `columns`.

        Only blocks in which a key may be seen are yielded. All but the last have a multiple of
        `multiple` columns.
        """
        # Cut the rows into parts, each with its queries and its spans of keys: some row sees the
        # outer one, every row the inner one.
        queries = self.head.queries
        keys = self.head.keys
        step = max(1, BLOCK // (multiple * min(ROWS, max(len(rows), 1)))) * multiple
        start = self.start[rows]
        stop = self.stop[rows]
        parts = [slice(at, min(at + ROWS, len(rows))) for at in range(0, len(rows), ROWS)]
        part_queries = [queries[:, :, rows[part]].to(self.dtype) for part in parts]
        if self.plain:  # scaling the queries scales a dot product, in one pass over fewer numbers
            factor = self.attention.scale_for(keys.shape[-1]) * log2(e)
            part_queries = [part * factor for part in part_queries]
        outer = [(int(start[part].min()), int(stop[part].max())) for part in parts]
        inner = [
            (int(start[part].max()), int(stop[part].min())) if self.complete else (0, -1)
            for part in parts
        ]
        # Stretches of keys outside, parts of rows inside: keys are converted once.
        for first in range(columns.start, columns.stop, step):
            taken = range(first, min(first + step, columns.stop))
            taken_keys = None  # not before a part sees one of them
            for part, part_query, (low, high), (left, right) in zip(
                parts, part_queries, outer, inner, strict=True
            ):
                if high <= taken.start or taken.stop <= low:
                    continue
                if taken_keys is None:
                    taken_keys = keys[:, :, taken.start : taken.stop].to(self.dtype)
                all_visible = left <= taken.start and taken.stop <= right
                attention = self.unmasked if all_visible else self.attention
                scores = self._scores(attention, part_query, taken_keys, rows[part], taken)
                yield part, slice(taken.start - columns.start, taken.stop - columns.start), scores

    def count(self, rows: Int[Tensor, " row"]) -> int:
        """Return how many scores these rows have, between the first and the last key that each may
        see.
        """
        return int((self.stop[rows] - self.start[rows]).sum())

    def _scores(
        self, attention: Attention, queries: Tensor, keys: Tensor, rows: Tensor, columns: range
    ) -> Tensor:
        at = self._pairs(rows, columns)
        if not self.plain:
            return attention.masked_scores(queries, keys, at)[0, 0] * log2(e)
        scores = queries[0, 0] @ keys[0, 0].mT
        if attention.mask == everyone:
            return scores
        return scores.masked_fill_(~attention.mask.sees(at)[0, 0], -torch.inf)

    def _pairs(self, rows: Tensor, columns: range) -> Pairs:
        return pairs_of_rows(rows, columns, self.size)


# ------------------------------------------------------------------------------------- sums of rows


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
        self.lse = scores.head.queries.new_full(scores.size[:1], torch.nan, dtype=scores.dtype)
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
            # Outside of the lock: other threads compute other rows meanwhile.
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


def sum_rows(
    scores: HeadScores, rows: Int[Tensor, " row"]
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return log2 Σ 2^score, the sink included, and the entropy -Σ w log2 w over the keys: both in
    bits.

    One pass, which keeps Σ 2^(score - largest) and Σ 2^(score - largest) · (score - largest) and
    rescales both when the largest score so far grows.
    """
    largest = torch.full((len(rows),), -torch.inf, dtype=scores.dtype, device=rows.device)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(largest)
    columns = range(int(scores.start[rows].min()), int(scores.stop[rows].max()))
    for part, _, block in scores.blocks(rows, columns):
        # Rescale the sums so far to the new largest score, and add those of the block.
        old = largest[part]
        new = torch.maximum(old, block.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0.0)
        change = (old - shift).clamp(min=LOW)
        rescale = torch.exp2(change)
        block = block.sub_(shift[:, None]).clamp_(min=LOW)
        powers = torch.exp2(block)
        before = rescale * (weighted[part] + change * total[part])
        weighted[part] = before + torch.linalg.vecdot(powers, block)
        total[part] = rescale * total[part] + powers.sum(-1)
        largest[part] = new
    # Put the sums together, and the sink as one more score.
    lse = (largest + total.log2()).masked_fill(total == 0.0, -torch.inf)
    if scores.attention.sink is not None:
        sink = sink_of(scores.attention, lse.dtype, lse.device).reshape(-1)
        lse = torch.logaddexp2(lse, sink * log2(e))
    below = (largest - lse).masked_fill(total == 0.0, 0.0)  # w = 2^(score - largest) · 2^below
    entropy = -below.exp2() * (weighted + below * total)
    return lse, entropy.clamp(min=0.0)
