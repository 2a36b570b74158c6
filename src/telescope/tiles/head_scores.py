"""Compute the masked scores of some queries of one head with a range of keys, block by block.

Blocks that a mask hides are skipped. Scores are in bits, so that exp2(score) takes the place of
exp(score): exp2 is faster, and tiles hold log2.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import e, log2
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Pairs, dot, everyone, softmax
from ..surveys.summary import compute_dtype


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


# Rows and scores of a block: smaller ones take longer to start than to compute
ROWS = 128
BLOCK = 2**20


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
        self.plain = (
            head.attention.score == dot
            and head.attention.softcap is None
            and head.attention.bias is None
        )
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
        for first in range(columns.start, columns.stop, step):
            taken = range(first, min(first + step, columns.stop))
            taken_keys = None  # converted at most once, and only if a part sees one of them
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
        if not self.plain:
            return attention.masked_scores(queries, keys, self._pairs(rows, columns))[0, 0] * log2(
                e
            )
        scores = queries[0, 0] @ keys[0, 0].mT
        if attention.mask == everyone:
            return scores
        return scores.masked_fill_(
            ~attention.mask.sees(self._pairs(rows, columns))[0, 0], -torch.inf
        )

    def _pairs(self, rows: Tensor, columns: range) -> Pairs:
        at = Pairs.block(range(0), columns, of=self.size, device=rows.device)
        row = rows[None, None, :, None]
        return replace(at, row=row, query=row + (self.size[1] - self.size[0]))
