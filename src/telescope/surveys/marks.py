"""Name keys of each query whose weights are wanted besides a summary: single ones, and lists of
them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

TILE = 64  # rows and keys of a listing that are multiplied together


@dataclass(frozen=True, eq=False)
class Listing:
    """Queries and keys, listed so that the keys of each query are neighbours, in one set or
    several. All are int32.
    """

    rows: Int[Tensor, "#batch query"]
    """The query in each slot; every query stands in one slot."""
    keys: Int[Tensor, "#batch slot"]
    """The key in each slot."""
    start: Int[Tensor, "set #batch query"]
    """For the query in a slot, the first slot of its keys."""
    stop: Int[Tensor, "set #batch query"]
    """One past the last. Every set but the first has at most one key, which is in the first set
    too.
    """
    wants_seen: bool = False
    """Whether to compute which queries may see a key of the first set."""

    def repeated(self, count: int) -> "Listing":
        """Return the listing of a batch that repeats this one `count` times."""
        rows, keys = (
            part.repeat(count, 1) if len(part) > 1 else part for part in (self.rows, self.keys)
        )
        start, stop = (
            part.repeat(1, count, 1) if part.shape[1] > 1 else part
            for part in (self.start, self.stop)
        )
        return self if count == 1 else replace(self, rows=rows, keys=keys, start=start, stop=stop)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.keys, self.start, self.stop

    @cached_property
    def tiles(self) -> Int[Tensor, "tile 3"]:
        """The tiles that hold a listed pair: sequence, tile of rows, tile of keys. Synchronises
        with a GPU, once.
        """
        filled = self.start < self.stop
        missing = (0, -self.start.shape[-1] % TILE)
        width = max(1, min(TILE, self.keys.shape[-1]))

        def by_tile(slots: Tensor, fill: int) -> Tensor:
            return pad(slots, missing, value=fill).reshape(len(slots), -1, TILE)

        first = by_tile(self.start.masked_fill(~filled, 2**30).amin(0), 2**30).amin(-1) // width
        count = (
            by_tile(self.stop.masked_fill(~filled, 0).amax(0), 0).amax(-1) + width - 1
        ) // width - first
        count = count.clamp(min=0).flatten()
        row_tile = torch.repeat_interleave(count)  # of all sequences, one after the other
        offset = (
            torch.arange(len(row_tile), device=row_tile.device)
            - (count.cumsum(0) - count)[row_tile]
        )
        height = max(first.shape[1], 1)
        return torch.stack(
            [row_tile // height, row_tile % height, first.flatten()[row_tile] + offset], 1
        )

    def by_row(self) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch query"]]:
        """Return start and stop of the first set for each query, in the order of the queries."""
        where = self.rows.long()
        batch = max(len(self.rows), self.start.shape[1])
        where = where.expand(batch, -1)
        start, stop = (
            torch.empty_like(where, dtype=torch.int32).scatter_(1, where, ends[0].expand(batch, -1))
            for ends in (self.start, self.stop)
        )
        return start, stop


class Marks(NamedTuple):
    """Keys of each query whose weights an engine should report with the summary, if it forms all
    weights anyway.

    before   (query,): report the total weight of all keys before this one
    single   (mark, batch or 1, query): report the weight of this key; -1 is no key
    listed   report the total weight of the keys that each listing has for a query; its first set
             counts

    Example:
        >>> import torch
        >>> from telescope import Attention, causal
        >>> from telescope.surveys import Marks, survey_unchecked
        >>> zeros, own = torch.zeros(1, 1, 4, 2), torch.arange(4)
        >>> marks = Marks(before=own, single=own[None, None])  # everything before a query, and its own key
        >>> seen = survey_unchecked(zeros, zeros, Attention(mask=causal), top=1, marks=marks)
        >>> seen.summary.before[0, 0, 3].item(), seen.summary.single[0, 0, 3, 0].item()
        (0.75, 0.25)
    """

    before: Int[Tensor, " query"]
    single: Int[Tensor, "which #batch query"]
    listed: tuple[Listing, ...] = ()
