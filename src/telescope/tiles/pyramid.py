"""Cut a matrix into tiles and pixels, sample its queries, and pool their weights to pixels.

At the deepest level a pixel is one pair of a query and a key; one level up, it has twice as many of
each.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .head_scores import HeadScores

TILE = 256


@dataclass(frozen=True)
class Pyramid:
    """Levels of tiles over a matrix: level 0 is one tile; level z has tiles (x, y), x along keys, y
    along queries.

    queries, keys   the size of the matrix
    side            the pixels of a tile in each direction

    Example:
        >>> from telescope.tiles import Pyramid
        >>> pyramid = Pyramid(queries=1000, keys=1000)
        >>> pyramid.max_zoom, pyramid.cells(0), pyramid.cells(2)
        (2, 4, 1)
        >>> pyramid.queries_of(2, 3), pyramid.has(2, 4, 0)
        (range(768, 1000), False)
    """

    queries: int
    keys: int
    side: int = TILE

    @property
    def max_zoom(self) -> int:
        """The deepest level, where a pixel is one pair."""
        longest = max(self.queries, self.keys, 1)
        return ((longest - 1) // self.side).bit_length()

    def cells(self, z: int) -> int:
        """Return how many queries, and how many keys, a pixel of level z has."""
        return 1 << (self.max_zoom - z)

    def queries_of(self, z: int, y: int) -> range:
        """Return the queries of the tiles (any x, y) of level z; empty beyond the last query."""
        return _clipped(y * self.side * self.cells(z), self.side * self.cells(z), self.queries)

    def keys_of(self, z: int, x: int) -> range:
        """Return the keys of the tiles (x, any y) of level z; empty beyond the last key."""
        return _clipped(x * self.side * self.cells(z), self.side * self.cells(z), self.keys)

    def has(self, z: int, x: int, y: int) -> bool:
        """Return whether there is a tile (x, y) of level z."""
        return (
            0 <= z <= self.max_zoom
            and min(x, y) >= 0
            and len(self.keys_of(z, x)) > 0
            and len(self.queries_of(z, y)) > 0
        )


def _clipped(start: int, count: int, size: int) -> range:
    return range(min(start, size), min(start + count, size))


def sample_queries(rows: range, stride: int) -> Int[Tensor, " some"]:
    """Return one pseudorandom query of every `stride` neighbours, where `stride` is a power of two.

    The sample of a stretch is that of its first or of its second half, so that coarse levels read
    queries that finer levels read too. It depends on the position alone, so that equal requests get
    equal answers. Every second or fourth query instead could coincide with a period of the text,
    and draw a diagonal too bright.
    """
    start = torch.arange(rows.start, rows.stop, stride)
    half = stride // 2
    while half:
        second = _coin_flips(start, half)
        start = torch.where(second & (start + half < rows.stop), start + half, start)
        half //= 2
    return start


def _coin_flips(start: Int[Tensor, " some"], half: int) -> Tensor:
    """Return a pseudorandom bool for each position: the mixing of splitmix64 (Steele et al. 2014),
    cut to 63 bits.
    """
    mixed = (start + half) * 0x1E3779B97F4A7C15 + torch.tensor(half) * 0x3F58476D1CE4E5B9
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (63 - shift) - 1))) * factor
    return (mixed >> 40) & 1 == 1


FAINT = (
    1e-30  # a sum below this may have lost terms to underflow, and is computed again with a shift
)


def pool_to_pixels(
    scores: HeadScores,
    rows: Int[Tensor, " row"],
    lse: Float[Tensor, " row"],
    pixel: Int[Tensor, " row"],
    height: int,
    columns: range,
    cells: int,
) -> tuple[Float[Tensor, "height width"], Float[Tensor, "height width"]]:
    """Return log2 of the share and of the largest weight of each pixel; -inf where all is masked.

    rows     the queries to read, and their lse in bits
    pixel    the row of pixels, below `height`, that each query falls into
    cells    how many of the keys `columns` a pixel has
    """
    width = -(-len(columns) // cells)
    largest = lse.new_full((len(rows), width), -torch.inf)
    shares = largest.clone() if cells > 1 else largest
    shift = lse.masked_fill(lse == -torch.inf, 0.0)[:, None]
    for part, taken, block in scores.blocks(rows, columns, cells):
        block = block.sub_(shift[part])
        count = -(-block.shape[-1] // cells)
        pixels = slice(taken.start // cells, -(-taken.stop // cells))
        if count * cells > block.shape[-1]:
            block = torch.nn.functional.pad(
                block, (0, count * cells - block.shape[-1]), value=-torch.inf
            )
        block = block.view(len(block), count, cells)
        largest[part, pixels] = block.amax(-1)
        if cells > 1:
            shares[part, pixels] = _log2_sum(block, largest[part, pixels])
    return _pool_rows(shares, largest, pixel, height)


def _log2_sum(
    block: Float[Tensor, "row pixel key"], largest: Float[Tensor, "row pixel"]
) -> Float[Tensor, "row pixel"]:
    """Return log2 Σ 2^x over the keys of a pixel."""
    summed = torch.exp2(block).sum(-1)
    if bool(((summed < FAINT) & (largest > -torch.inf)).any()):
        shift = largest.masked_fill(largest == -torch.inf, 0.0)
        return torch.exp2(block - shift[..., None]).sum(-1).log2() + shift
    return summed.log2()


def _pool_rows(
    shares: Float[Tensor, "row width"],
    largest: Float[Tensor, "row width"],
    pixel: Int[Tensor, " row"],
    height: int,
) -> tuple[Float[Tensor, "height width"], Float[Tensor, "height width"]]:
    """Return, over the queries of each pixel, the log2 of their mean share and of their largest
    weight.
    """
    count = torch.bincount(pixel, minlength=height).clamp(min=1)
    if len(shares) == height and bool((count == 1).all()):
        return shares, largest
    where = pixel[:, None].expand_as(shares)
    empty = shares.new_full((height, shares.shape[1]), -torch.inf)
    best = empty.scatter_reduce(0, where, shares, "amax")
    shift = best.masked_fill(best == -torch.inf, 0.0)
    summed = torch.zeros_like(empty).index_add_(0, pixel, torch.exp2(shares - shift[pixel]))
    mean = torch.log2(summed / count[:, None]) + shift
    return mean, empty.scatter_reduce(0, where, largest, "amax")
