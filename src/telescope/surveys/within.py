"""Sum each query's weight over listed keys, exactly, without forming the matrix.

The keys listed for a query are a stretch of a list in which keys stand in any order: the 64 keys
before the query in the order of the text, or earlier occurrences of its token in the order of the
tokens. The cost grows with the number of listed pairs.
"""

from collections.abc import Iterable, Iterator
from math import frexp
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Pairs, dot
from . import triton
from .launch import run, survey_listed
from .marks import TILE, Listing
from .summary import compute_dtype

SCORES = {"cpu": 2**20, "cuda": 2**26}  # how many numbers are held at a time


class ListedWeights(NamedTuple):
    """What one listing sums up to."""

    share: Float[Tensor, "set batch heads query"]
    """The weight that each query gives to its listed keys."""
    seen: Bool[Tensor, "batch heads query"] | None
    """Whether the query may see a key of the first set, if the listing wants that."""


def listed_weights(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"],
    listings: Iterable[Listing],
) -> Iterator[ListedWeights]:
    """Yield the weight that every query gives to its listed keys, for one listing after the other.

    The normaliser must be softmax, and lse that of the same attention.
    """
    matrix = None
    if triton.cannot(queries, keys, attention) is None:
        matrix = triton.Matrix.of(queries, keys, attention, triton.MEMORY)
    for listing in listings:
        # the kernel would need a mask or bias of any other kind as a table of all pairs
        if (
            matrix is None
            or matrix.bias is not None
            or matrix.mask is not None
            or not listing.keys.shape[-1]
        ):
            yield _by_tiles(queries, keys, attention, lse, listing)
        else:
            yield _by_kernel(matrix, lse, listing)


def _by_kernel(matrix: triton.Matrix, lse: Tensor, listing: Listing) -> ListedWeights:
    share = lse.new_empty(len(listing.start), *lse.shape, dtype=torch.float32)
    seen = lse.new_empty(lse.shape, dtype=torch.bool) if listing.wants_seen else None
    (band,) = (
        matrix.bands()
    )  # without a table and without a search, a band takes no memory: one has all rows
    lists = (tensor.contiguous() for tensor in listing.tensors)
    run(survey_listed, band, lse.float().contiguous(), *lists, share, seen)
    return ListedWeights(share, seen)


def _by_tiles(
    queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor, listing: Listing
) -> ListedWeights:
    """Compute the same in plain PyTorch.

    Queries and keys are put into the order of the lists and cut into tiles. The tiles that hold a
    listed pair are multiplied, as many at a time as SCORES allows, for all heads together.
    """
    batch, heads, rows, _ = queries.shape
    columns, d_k = keys.shape[-2:]
    dtype = compute_dtype(queries)
    sets = len(listing.start)
    slots = listing.keys.shape[-1]
    device = queries.device
    fused = attention.score.is_dot_product
    scale = attention.scale_for(d_k)
    inner = attention.score.numbers_per_score(queries, keys)
    if fused and attention.score != dot:
        queries, keys = attention.score.as_dot(queries.to(dtype), keys.to(dtype))
    if fused and abs(frexp(scale)[0]) == 0.5:  # a power of two scales queries without rounding
        queries = queries.to(dtype) * scale
        scale = 1.0
    listed_rows, listed_keys = (
        part.expand(batch, -1).long() for part in (listing.rows, listing.keys)
    )
    width = max(1, min(TILE, slots))
    query_tiles = _cut(queries, listed_rows, TILE, dtype)
    key_tiles = _cut(keys, listed_keys, width, dtype)
    row, key = (
        _cut(part[:, None, :, None], None, size, torch.long)[:, 0, :, 0]
        for part, size in ((listed_rows, TILE), (listed_keys, width))
    )
    shift = _cut(lse.masked_fill(lse == -torch.inf, 0.0)[..., None], listed_rows, TILE, dtype)
    spans = [
        _cut(ends.expand(sets, batch, rows).permute(1, 0, 2)[..., None], None, TILE, torch.int32)[
            ..., 0
        ]
        for ends in (listing.start, listing.stop)
    ]
    high = -(-rows // TILE)
    wide = -(-slots // width)
    share = torch.zeros(batch * high, sets, heads, TILE, dtype=dtype, device=device)
    seen = torch.zeros(batch * high, 1, heads, TILE, dtype=torch.int32, device=device)
    slot = torch.arange(width, device=device)
    per_tile = heads * TILE * (2 * width * inner + query_tiles.shape[-1] + key_tiles.shape[-1])
    at_once = max(1, SCORES.get(device.type, SCORES["cuda"]) // max(per_tile, 1))
    for tiles in torch.split(
        _for_each_sequence(listing.tiles, listing.start.shape[1], batch), at_once
    ):
        b, m, n = tiles.T
        down = b * high + m
        across = b * wide + n
        at = Pairs(
            batch=b[:, None, None, None],
            head=torch.arange(heads, device=device)[None, :, None, None],
            row=row[down][:, None, :, None],
            query=row[down][:, None, :, None] + (columns - rows),
            key=key[across][:, None, None],
        )
        start, stop = (ends[down][..., None] - n[:, None, None, None] * width for ends in spans)
        hidden = ((slot < start[:, :1]) | (slot >= stop[:, :1])) | ~attention.mask.sees(at)
        scores = (dot if fused else attention.score)(query_tiles[down], key_tiles[across])
        scores = scores if scale == 1.0 else scores.mul_(scale)
        scores = attention.biased(attention.capped(scores), at)
        if listing.wants_seen:
            visible = ~hidden if attention.bias is None else ~hidden & (scores > -torch.inf)
            seen.index_add_(0, down, visible.any(-1).int()[:, None].expand(-1, 1, heads, -1))
        weights = (
            scores.sub_(shift[down]).exp_().masked_fill_(hidden, 0.0)
        )  # exp of -inf takes several times as long
        share[:, :1].index_add_(0, down, weights.sum(-1)[:, None])
        for i in range(1, sets):
            own = start[:, i, None]
            in_tile = (start < stop)[:, i, None] & (own >= 0) & (own < width)
            single = (
                weights.gather(-1, own.clamp(0, width - 1).long().expand(*weights.shape[:3], 1))
                * in_tile
            )
            share[:, i].index_add_(0, down, single[..., 0])
    where = listed_rows[:, None, None]

    def in_order(tiled: Tensor) -> Tensor:
        """Return (set, batch, heads, query), queries in their own order."""
        listed = (
            tiled.view(batch, high, *tiled.shape[1:]).permute(0, 2, 3, 1, 4).flatten(3)[..., :rows]
        )
        return (
            torch.zeros_like(listed).scatter_(-1, where.expand_as(listed), listed).transpose(0, 1)
        )

    return ListedWeights(in_order(share), in_order(seen > 0)[0] if listing.wants_seen else None)


def _cut(
    tensor: Shaped[Tensor, "batch heads position feature"],
    order: Int[Tensor, "batch slot"] | None,
    size: int,
    dtype: torch.dtype,
) -> Shaped[Tensor, "tile heads size feature"]:
    """Return positions in this order, cut into tiles of `size`, the last one padded with zeros."""
    if order is not None and not _is_range(order, tensor.shape[2]):
        tensor = torch.stack(
            [one.index_select(1, which) for one, which in zip(tensor, order, strict=True)]
        )
    tensor = pad(tensor, (0, 0, 0, -tensor.shape[2] % size)).to(dtype)
    batch, heads, _, features = tensor.shape
    tiled = tensor.reshape(batch, heads, tensor.shape[2] // size, size, features).transpose(1, 2)
    return tiled.reshape(-1, heads, size, features)


def _is_range(order: Int[Tensor, "batch slot"], count: int) -> bool:
    """Return whether every position stands in its own slot; False on a GPU, where reading the order
    would block.
    """
    if order.device.type != "cpu":
        return False
    return order.shape[1] == count and bool((order == torch.arange(count)).all())


def _for_each_sequence(
    tiles: Int[Tensor, "tile 3"], listed: int, batch: int
) -> Int[Tensor, "more 3"]:
    """Return the tiles of every sequence, where `listed` is 1 and the tiles are those of all."""
    if listed == batch:
        return tiles
    every = torch.arange(batch, device=tiles.device).repeat_interleave(len(tiles))
    return torch.cat([every[:, None], tiles.repeat(batch, 1)[:, 1:]], 1)
