"""The masked scores of some queries with a stretch of keys, block by block; what a mask hides is skipped.

Scores are in bits, so that 2^score takes the place of exp(score): a power of two is the quicker one, and tiles are of
log2.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import e, log2
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Pairs, dot, everyone, softmax
from ..survey.summary import precision


class OneHead(NamedTuple):
    """Of one head and one sequence; the values and the lse only where they were kept."""

    queries: Float[Tensor, "1 1 query d_q"]
    keys: Float[Tensor, "1 1 key d_k"]
    values: Float[Tensor, "1 1 key d_v"] | None
    attention: Attention
    lse: Float[Tensor, "1 1 query"] | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self.queries.shape[-2], self.keys.shape[-2]


ROWS, BLOCK = 128, 2**20  # of a block, so many rows and scores: fewer take longer to begin than to make


class HeadScores:
    """blocks(rows, columns) are the scores of these, with the places that each block has among them."""

    def __init__(self, head: OneHead) -> None:
        if head.attention.normalize is not softmax:
            raise ValueError("a map of log weights is one of softmax, and this attention has another normaliser")
        self.head, self.size, self.kind = head, head.size, precision(head.queries)
        self.attention, self.open = head.attention, replace(head.attention, mask=everyone)
        self.plain = head.attention.score == dot and head.attention.softcap is None and head.attention.bias is None
        every = torch.arange(self.size[0], device=head.queries.device)
        spans = head.attention.mask.spans(self._pairs(every, range(0)), self.size[1])
        self.start, self.stop = (end.reshape(-1).expand(self.size[0]) for end in (spans.start, spans.stop))
        self.whole = spans.whole

    def blocks(
        self, rows: Int[Tensor, " row"], columns: range, multiple: int = 1
    ) -> Iterator[tuple[slice, slice, Float[Tensor, "some_rows some_columns"]]]:
        """Only blocks in which something may be seen; of a multiple of so many columns each, up to the last one."""
        queries, keys = self.head.queries, self.head.keys
        step = max(1, BLOCK // (multiple * min(ROWS, max(len(rows), 1)))) * multiple
        start, stop = self.start[rows], self.stop[rows]
        parts = [slice(at, min(at + ROWS, len(rows))) for at in range(0, len(rows), ROWS)]
        asking = [queries[:, :, rows[part]].to(self.kind) for part in parts]
        if self.plain:  # a dot product grows with its query: so it is scaled in one pass over fewer numbers
            asking = [asks * (self.attention.scale_for(keys.shape[-1]) * log2(e)) for asks in asking]
        seen = [(int(start[part].min()), int(stop[part].max())) for part in parts]
        inner = [(int(start[part].max()), int(stop[part].min())) if self.whole else (0, -1) for part in parts]
        for first in range(columns.start, columns.stop, step):
            some = range(first, min(first + step, columns.stop))
            asked = None
            for part, asks, (low, high), (left, right) in zip(parts, asking, seen, inner, strict=True):
                if high <= some.start or some.stop <= low:
                    continue
                asked = keys[:, :, some.start : some.stop].to(self.kind) if asked is None else asked
                whole = left <= some.start and some.stop <= right
                scores = self._scores(self.open if whole else self.attention, asks, asked, rows[part], some)
                yield part, slice(some.start - columns.start, some.stop - columns.start), scores

    def seen(self, rows: Int[Tensor, " row"]) -> int:
        """How many scores these rows have, between the first and the last key that each may see."""
        return int((self.stop[rows] - self.start[rows]).sum())

    def _scores(self, attention: Attention, queries: Tensor, keys: Tensor, rows: Tensor, columns: range) -> Tensor:
        if not self.plain:
            return attention.masked_scores(queries, keys, self._pairs(rows, columns))[0, 0] * log2(e)
        scores = queries[0, 0] @ keys[0, 0].mT
        if attention.mask == everyone:
            return scores
        return scores.masked_fill_(~attention.mask.sees(self._pairs(rows, columns))[0, 0], -torch.inf)

    def _pairs(self, rows: Tensor, columns: range) -> Pairs:
        at = Pairs.block(range(0), columns, of=self.size, device=rows.device)
        row = rows[None, None, :, None]
        return replace(at, row=row, query=row + (self.size[1] - self.size[0]))
