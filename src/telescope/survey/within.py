"""How much of each query's weight falls to chosen keys, exact, without forming the matrix.

The chosen keys of a query are a stretch of a list, in which keys stand in any order: the 64 before it in the order of
the text, or the same token's earlier occurrences in the order of the tokens. The cost is that of the chosen pairs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Pairs, dot
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
    """Every set but the first chooses at most one key, which is of the first set too."""
    asks: bool = False
    """Whether it is asked which queries may see a key of the first set."""

    def repeated(self, count: int) -> "Listing":
        """The same for as many batches, one behind the other."""
        rows, keys = (it.repeat(count, 1) if len(it) > 1 else it for it in (self.rows, self.keys))
        start, stop = (it.repeat(1, count, 1) if it.shape[1] > 1 else it for it in (self.start, self.stop))
        return self if count == 1 else replace(self, rows=rows, keys=keys, start=start, stop=stop)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.keys, self.start, self.stop

    @cached_property
    def tiles(self) -> Int[Tensor, "tile 3"]:
        """The tiles that hold a chosen pair: sequence, tile of rows, tile of keys. This waits for a GPU, once."""
        there = self.start < self.stop
        missing, width = (0, -self.start.shape[-1] % TILE), max(1, min(TILE, self.keys.shape[-1]))

        def each(slots: Tensor, fill: int) -> Tensor:
            return pad(slots, missing, value=fill).reshape(len(slots), -1, TILE)

        first = each(self.start.masked_fill(~there, 2**30).amin(0), 2**30).amin(-1) // width
        count = (each(self.stop.masked_fill(~there, 0).amax(0), 0).amax(-1) + width - 1) // width - first
        count = count.clamp(min=0).flatten()
        which = torch.repeat_interleave(count)
        within = torch.arange(len(which), device=which.device) - (count.cumsum(0) - count)[which]
        height = first.shape[1]
        return torch.stack([which // max(height, 1), which % max(height, 1), first.flatten()[which] + within], 1)


class Within(NamedTuple):
    share: Float[Tensor, "set batch heads query"]
    """The weight that falls to the chosen keys."""
    seen: Bool[Tensor, "batch heads query"] | None
    """Whether the query may see one of those of the first set, if that is asked."""


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
    seen = lse.new_empty(lse.shape, dtype=torch.bool) if listing.asks else None
    (band,) = matrix.bands()
    listed = (it.contiguous() for it in listing.tensors)
    run(survey_stretches, *band, lse.float().contiguous(), *listed, share, seen)
    return Within(share, seen)


def _by_tiles(queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor, listing: Listing) -> Within:
    """In plain PyTorch. Queries and keys are put in the order of the lists and cut into tiles, of which those that hold
    a chosen pair are multiplied, some of all sequences and heads together."""
    (batch, heads, rows, _), (columns, d_k), kind = queries.shape, keys.shape[-2:], precision(queries)
    sets, slots, device, fused = (
        len(listing.start),
        listing.keys.shape[-1],
        queries.device,
        attention.score.is_dot_product,
    )
    scale, inner = attention.scale_for(d_k), attention.score.size(queries, keys)
    if fused and attention.score != dot:
        queries, keys = attention.score.as_dot(queries.to(kind), keys.to(kind))
    if fused and abs(frexp(scale)[0]) == 0.5:  # a power of two scales queries without rounding
        queries, scale = queries.to(kind) * scale, 1.0
    of_rows, of_keys = (it.expand(batch, -1).long() for it in (listing.rows, listing.keys))
    width = max(1, min(TILE, slots))
    asking, asked = _cut(queries, of_rows, TILE, kind), _cut(keys, of_keys, width, kind)
    row, key = (
        _cut(it[:, None, :, None], None, size, torch.long)[:, 0, :, 0]
        for it, size in ((of_rows, TILE), (of_keys, width))
    )
    shift = _cut(lse.masked_fill(lse == -torch.inf, 0.0)[..., None], of_rows, TILE, kind)
    spans = [
        _cut(it.expand(sets, batch, rows).permute(1, 0, 2)[..., None], None, TILE, torch.int32)[..., 0]
        for it in (listing.start, listing.stop)
    ]
    high, wide = -(-rows // TILE), -(-slots // width)
    share = torch.zeros(batch * high, sets, heads, TILE, dtype=kind, device=device)
    seen = torch.zeros(batch * high, 1, heads, TILE, dtype=torch.int32, device=device)
    one = torch.arange(width, device=device)
    each = heads * TILE * (2 * width * inner + asking.shape[-1] + asked.shape[-1])
    most = max(1, SCORES.get(device.type, SCORES["cuda"]) // max(each, 1))
    for tiles in torch.split(_everywhere(listing.tiles, listing.start.shape[1], batch), most):
        b, m, n = tiles.T
        down, across = b * high + m, b * wide + n
        at = Pairs(
            batch=b[:, None, None, None],
            head=torch.arange(heads, device=device)[None, :, None, None],
            row=row[down][:, None, :, None],
            query=row[down][:, None, :, None] + (columns - rows),
            key=key[across][:, None, None],
        )
        start, stop = (it[down][..., None] - n[:, None, None, None] * width for it in spans)
        hidden = ((one < start[:, :1]) | (one >= stop[:, :1])) | ~attention.mask.sees(at)
        scores = (dot if fused else attention.score)(asking[down], asked[across])
        scores = scores if scale == 1.0 else scores.mul_(scale)
        scores = attention.biased(attention.capped(scores), at)
        if listing.asks:
            open_to = ~hidden if attention.bias is None else ~hidden & (scores > -torch.inf)
            seen.index_add_(0, down, open_to.any(-1).int()[:, None].expand(-1, 1, heads, -1))
        weights = scores.sub_(shift[down]).exp_().masked_fill_(hidden, 0.0)  # exp takes several times as long of -inf
        share[:, :1].index_add_(0, down, weights.sum(-1)[:, None])
        for i in range(1, sets):
            own, there = (
                start[:, i, None],
                (start < stop)[:, i, None] & (start[:, i, None] >= 0) & (start[:, i, None] < width),
            )
            single = weights.gather(-1, own.clamp(0, width - 1).long().expand(*weights.shape[:3], 1)) * there
            share[:, i].index_add_(0, down, single[..., 0])
    where = of_rows[:, None, None]

    def in_order(tiled: Tensor) -> Tensor:
        """(set, batch, heads, query)"""
        listed = tiled.view(batch, high, *tiled.shape[1:]).permute(0, 2, 3, 1, 4).flatten(3)[..., :rows]
        return torch.zeros_like(listed).scatter_(-1, where.expand_as(listed), listed).transpose(0, 1)

    return Within(in_order(share), in_order(seen > 0)[0] if listing.asks else None)


def _cut(
    tensor: Shaped[Tensor, "batch heads position feature"],
    order: Int[Tensor, "batch slot"] | None,
    size: int,
    kind: torch.dtype,
) -> Shaped[Tensor, "tile heads size feature"]:
    """Positions in this order, cut into tiles of that size, and filled up by zeros to whole ones."""
    if order is not None and not _is_range(order, tensor.shape[2]):
        tensor = torch.stack([one.index_select(1, which) for one, which in zip(tensor, order, strict=True)])
    tensor = pad(tensor, (0, 0, 0, -tensor.shape[2] % size)).to(kind)
    batch, heads, _, features = tensor.shape
    tiled = tensor.reshape(batch, heads, tensor.shape[2] // size, size, features).transpose(1, 2)
    return tiled.reshape(-1, heads, size, features)


def _is_range(order: Int[Tensor, "batch slot"], count: int) -> bool:
    if order.device.type != "cpu":  # where asking would wait
        return False
    return order.shape[1] == count and bool((order == torch.arange(count)).all())


def _everywhere(tiles: Int[Tensor, "tile 3"], known: int, batch: int) -> Int[Tensor, "more 3"]:
    """Tiles that hold for every sequence, for each."""
    if known == batch:
        return tiles
    every = torch.arange(batch, device=tiles.device).repeat_interleave(len(tiles))
    return torch.cat([every[:, None], tiles.repeat(batch, 1)[:, 1:]], 1)
