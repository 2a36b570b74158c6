"""How much of each query's weight falls to chosen keys, exact, without forming the matrix.

The chosen keys of a query are a stretch of a list, in which keys stand in any order: the 64 before it in the order of
the text, or the same token's earlier occurrences in the order of the tokens. The cost is that of the chosen pairs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...attention import Attention, Pairs
from . import triton
from .launch import run, survey_stretches
from .summary import precision

TILE = 64  # rows and keys that are multiplied together
SCORES = {"cpu": 2**20, "cuda": 2**26}  # how many numbers are held at a time


@dataclass(frozen=True, eq=False)
class Listing:
    """Queries and keys, listed so that the keys chosen for a query are neighbours, in one set or several."""

    rows: Int[Tensor, "#batch query"]
    """Which query stands in each slot; each stands in one."""
    keys: Int[Tensor, "#batch slot"]
    start: Int[Tensor, "set #batch query"]
    """The first slot of the keys chosen for the query in a slot, and the one past the last. All are int32."""
    stop: Int[Tensor, "set #batch query"]

    def repeated(self, count: int) -> "Listing":
        """The same for as many batches, one behind the other."""
        if count == 1:
            return self
        return Listing(
            *(it.repeat(count, 1) if len(it) > 1 else it for it in (self.rows, self.keys)),
            *(it.repeat(1, count, 1) if it.shape[1] > 1 else it for it in (self.start, self.stop)),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.keys, self.start, self.stop

    @cached_property
    def tiles(self) -> Int[Tensor, "tile 3"]:
        """The tiles that hold a chosen pair: sequence, tile of rows, tile of keys. This waits for a GPU, once."""
        there = self.start < self.stop
        missing = (0, -self.start.shape[-1] % TILE)

        def each(slots: Tensor, fill: int) -> Tensor:
            return pad(slots, missing, value=fill).reshape(len(slots), -1, TILE)

        first = each(self.start.masked_fill(~there, 2**30).amin(0), 2**30).amin(-1) // TILE
        count = (each(self.stop.masked_fill(~there, 0).amax(0), 0).amax(-1) + TILE - 1) // TILE - first
        count = count.clamp(min=0).flatten()
        which = torch.repeat_interleave(count)
        within = torch.arange(len(which), device=which.device) - (count.cumsum(0) - count)[which]
        height = first.shape[1]
        return torch.stack([which // max(height, 1), which % max(height, 1), first.flatten()[which] + within], 1)


class Within(NamedTuple):
    share: Float[Tensor, "set batch heads query"]
    """The weight that falls to the chosen keys."""
    seen: Bool[Tensor, "set batch heads query"]
    """Whether the query may see one of them."""


def within(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"],
    listings: Iterable[Listing],
) -> Iterator[Within]:
    """Yield the share of the chosen keys in the weight of every query, for one listing after the other.

    The normaliser must be softmax, and lse its own.
    """
    matrix = None
    if triton.cannot(queries, keys, attention) is None:
        matrix = triton.Matrix.of(queries, keys, attention, triton.MEMORY)
    for listing in listings:
        # a mask or bias without a short form would have to be written out for the kernel, all of it
        if matrix is None or matrix.bias is not None or matrix.mask is not None or not listing.keys.shape[-1]:
            yield _by_tiles(queries, keys, attention, lse, listing)
        else:
            yield _by_kernel(matrix, lse, listing)


def _by_kernel(matrix: triton.Matrix, lse: Tensor, listing: Listing) -> Within:
    share = lse.new_empty(len(listing.start), *lse.shape, dtype=torch.float32)
    seen = lse.new_empty(share.shape, dtype=torch.bool)
    (band,) = matrix.bands()
    listed = (it.contiguous() for it in listing.tensors)
    run(survey_stretches, *band, lse.float().contiguous(), *listed, share, seen)
    return Within(share, seen)


def _by_tiles(queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor, listing: Listing) -> Within:
    """In plain PyTorch: tiles are gathered, so that those of all sequences are multiplied together."""
    (batch, heads, rows, d_q), (columns, d_k), kind = queries.shape, keys.shape[-2:], precision(queries)
    sets, slots, device = len(listing.start), listing.keys.shape[-1], queries.device
    height, lse = -(-rows // TILE), lse.to(kind)
    share = torch.zeros(sets, batch * height, heads, TILE, dtype=kind, device=device)
    seen = torch.zeros(share.shape, dtype=torch.int32, device=device)
    one, inner = torch.arange(TILE, device=device), attention.score.size(queries, keys)
    each = heads * TILE * (3 * TILE * inner + d_q + d_k)
    most = max(1, SCORES.get(device.type, SCORES["cuda"]) // max(each, 1))
    of_rows, of_keys = (it.expand(batch, -1).long() for it in (listing.rows, listing.keys))
    start, stop = (it.expand(sets, batch, rows) for it in (listing.start, listing.stop))
    for tiles in torch.split(_everywhere(listing.tiles, len(listing.start[0]), batch), most):
        b, m, n = tiles.T
        slot, place = m[:, None] * TILE + one, n[:, None] * TILE + one
        there, own = slot < rows, slot.clamp(max=rows - 1)
        row, key = of_rows[b[:, None], own], of_keys[b[:, None], place.clamp(max=slots - 1)]
        at = Pairs(
            batch=b[:, None, None, None],
            head=torch.arange(heads, device=device)[None, :, None, None],
            row=row[:, None, :, None],
            query=row[:, None, :, None] + (columns - rows),
            key=key[:, None, None],
        )
        asking = queries[b[:, None], :, row].transpose(1, 2).to(kind)
        asked = keys[b[:, None], :, key].transpose(1, 2).to(kind)
        scores = attention.masked_scores(asking, asked, at)
        hidden = scores == -torch.inf
        weights = torch.exp(scores - lse[b[:, None], :, row].transpose(1, 2)[..., None]).masked_fill_(hidden, 0.0)
        for i in range(sets):
            first, last = (spans[i][b[:, None], own].masked_fill(~there, 0)[..., None] for spans in (start, stop))
            inside = ((place[:, None] >= first) & (place[:, None] < last))[:, None]
            share[i].index_add_(0, b * height + m, (weights * inside).sum(-1))
            seen[i].index_add_(0, b * height + m, (inside & ~hidden).any(-1).int())
    shape = (sets, batch, height, heads, TILE)
    found = (it.view(shape).transpose(2, 3).flatten(3)[..., :rows] for it in (share, seen > 0))
    where = of_rows[None, :, None].expand(sets, batch, heads, rows)
    return Within(*(torch.zeros_like(it).scatter(-1, where, it) for it in found))


def _everywhere(tiles: Int[Tensor, "tile 3"], known: int, batch: int) -> Int[Tensor, "more 3"]:
    """Tiles that hold for every sequence, for each."""
    if known == batch:
        return tiles
    every = torch.arange(batch, device=tiles.device).repeat_interleave(len(tiles))
    return torch.cat([every[:, None], tiles.repeat(batch, 1)[:, 1:]], 1)
