"""Queries of a growing sequence that wait, so that many are surveyed at once.

A model that writes calls its attentions once for each token, with one query. A survey of one row
takes as long as a survey of a hundred, since its launches are most of its time. So a step leaves
its query here, and later the rows that wait are surveyed together, against the keys of the last
step: a key-value cache grows and keeps its earlier keys.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from .attention_call import AttentionCall

ROOM = 128  # queries that wait at most; a call with more of them is surveyed at once


class WaitingRows:
    """The queries of calls that follow one another, and the keys that all of them need.

    first   the first of these calls
    known   how many of its keys belong to earlier calls
    """

    def __init__(self, first: AttentionCall, known: int) -> None:
        batch, heads, _, width = first.queries.shape
        self.known = known
        self.evicted = first.evicted
        # Make room for all queries that may wait: a step then copies, and allocates nothing.
        self.queries = first.queries.new_empty(
            batch, heads, max(ROOM, first.queries.shape[-2]), width
        )
        # A view for each query, made once and not in every step.
        self.places = torch.split(self.queries, 1, 2)
        self.count = 0
        self.rows: list[int] = []
        """Which of the waiting queries are to be kept."""
        self.ids: list[Int[Tensor, "batch query"] | None] = []
        self.last = first
        # Keys whose memory may be written to again have to be copied.
        self.copies = (
            ()
            if first.keys_stay
            else tuple(GrowingCopy(part) for part in first.identifying_tensors)
        )
        self._add_query(first)

    def has_room_for(self, call: AttentionCall) -> bool:
        """Return whether a call that follows can be added."""
        return self.count + call.queries.shape[-2] <= ROOM and call.keys_stay == self.last.keys_stay

    def add(self, call: AttentionCall) -> None:
        """Add a call that follows the last one."""
        if self.copies:
            # Only the keys since the last call are new.
            more = call.size[1] - self.last.size[1]
            for copy, part in zip(self.copies, call.identifying_tensors, strict=True):
                copy.append(part[:, :, part.shape[2] - more :])
        self.last = call
        self._add_query(call)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these queries of the last call added."""
        first = self.count - self.last.queries.shape[-2]
        self.rows += [first + row for row in rows]

    def _add_query(self, call: AttentionCall) -> None:
        stop = self.count + call.queries.shape[-2]
        # Decoding adds one query at a time: use the view that was made before.
        if stop == self.count + 1:
            self.places[self.count].copy_(call.queries)
        else:
            self.queries[:, :, self.count : stop] = call.queries
        self.ids.append(call.query_ids)
        self.count = stop

    def as_one_call(self) -> AttentionCall:
        """Return all queries as one call over the keys of the last one, without an lse."""
        keys = self.last.keys
        values = self.last.values
        if self.copies:
            # The model may have written to its own tensors since.
            keys, *rest = (copy.tensor for copy in self.copies)
            values = rest[0] if rest else values
        return self.last._replace(
            queries=self.queries[:, :, : self.count],
            keys=keys,
            values=values,
            lse=None,
            evicted=self.evicted,
            query_ids=_joined(self.ids),
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield the memory that is held beside the model's own."""
        yield self.queries
        yield from (copy.memory for copy in self.copies)


class GrowingCopy:
    """A copy of a tensor (batch, heads, token, feature) to which the tokens of later calls are
    appended.
    """

    def __init__(self, first: Shaped[Tensor, "batch heads token feature"]) -> None:
        batch, heads, self.count, width = first.shape
        self.memory = first.new_empty(batch, heads, self.count + ROOM, width)
        self.memory[:, :, : self.count] = first

    def append(self, more: Shaped[Tensor, "batch heads token feature"]) -> None:
        self.memory[:, :, self.count : self.count + more.shape[2]] = more
        self.count += more.shape[2]

    @property
    def tensor(self) -> Float[Tensor, "batch heads token feature"]:
        return self.memory[:, :, : self.count]


def _joined(ids: Sequence[Tensor | None]) -> Int[Tensor, "batch query"] | None:
    # A gap in the ids leaves the text unknown.
    known = [part for part in ids if part is not None]
    return torch.cat(known, 1) if len(known) == len(ids) else None
