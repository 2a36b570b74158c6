"""The map of one head, cut into tiles and pixels: exact where that is quick, else from a sample of
queries, and labelled so.

At the deepest level a pixel is one pair of a query and a key; one level up, it has twice as many of
each.
"""

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from .scores import HeadScores, OneHead, RowSums

TILE = 256
# Scores per tile, a fraction of a second: the deepest level of 131,072 tokens is exact with it
BUDGET = 9 * 2**22
# Tiles side by side in a view: row sums serve all of them, the scores of a tile serve it alone.
SHARED = 4
FEWEST = 16  # queries of a tile, whatever they cost
FAINT = 1e-30  # a sum below this may have lost terms to underflow, and is computed with a shift


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
        # Each level doubles the number of tiles, until they cover the longer side.
        longest = max(self.queries, self.keys, 1)
        return ((longest - 1) // self.side).bit_length()

    def cells(self, z: int) -> int:
        """Return how many queries, and how many keys, a pixel of level z has."""
        return 1 << (self.max_zoom - z)

    def queries_of(self, z: int, y: int) -> range:
        """Return the queries of the tiles (any x, y) of level z; empty beyond the last query."""
        return self._stretch(z, y, self.queries)

    def keys_of(self, z: int, x: int) -> range:
        """Return the keys of the tiles (x, any y) of level z; empty beyond the last key."""
        return self._stretch(z, x, self.keys)

    def _stretch(self, z: int, number: int, size: int) -> range:
        count = self.side * self.cells(z)
        return range(min(number * count, size), min((number + 1) * count, size))

    def has(self, z: int, x: int, y: int) -> bool:
        """Return whether there is a tile (x, y) of level z."""
        return (
            0 <= z <= self.max_zoom
            and min(x, y) >= 0
            and len(self.keys_of(z, x)) > 0
            and len(self.queries_of(z, y)) > 0
        )


class Tile(NamedTuple):
    """log2 of the weights in each pixel: -inf where all is masked, NaN outside of the matrix.

    share     the weight on a pixel's keys, averaged over its queries, so that a row of pixels sums
              to one, as a row of weights does
    max       the largest weight in a pixel
    exact     whether all queries were read
    samples   how many queries were read for each row of pixels, with all of their keys; below one,
              neighbouring rows share a query
    """

    share: Float[Tensor, "side side"]
    max: Float[Tensor, "side side"]
    exact: bool
    samples: float


class Track(NamedTuple):
    """A number for each pixel along one side of the map, NaN outside of it; `exact` and `samples`
    as in Tile.
    """

    numbers: Float[Tensor, " side"]
    exact: bool
    samples: float


class Tiles:
    """The map of one head. Row sums are computed once and kept, so that tiles in a row cost their
    own pixels alone.

    head    queries, keys and definition of one head and one sequence; the normaliser must be
            softmax
    side    pixels of a tile in each direction

    Threads may share one object. Raises a ValueError for another normaliser.

    Example:
        >>> import telescope as ts, torch
        >>> from telescope.tiles import OneHead, Tiles
        >>> zeros = torch.zeros(1, 1, 4, 2)
        >>> tiles = Tiles(
        ...     OneHead(zeros, zeros, None, ts.Attention(mask=ts.causal)), side=2
        ... )
        >>> tiles.pyramid.max_zoom
        1
        >>> tile = tiles.tile(z=1, x=0, y=1)  # queries 2 and 3, keys 0 and 1
        >>> tile.share.exp2(), tile.exact
        (tensor([[0.3333, 0.3333],
                [0.2500, 0.2500]]), True)
    """

    def __init__(self, head: OneHead, side: int = TILE) -> None:
        self.scores = HeadScores(head)
        self.pyramid = Pyramid(*head.size, side)
        self.row_sums = RowSums(self.scores)

    @torch.no_grad()
    def tile(self, z: int, x: int, y: int, budget: int = BUDGET) -> Tile:
        """Return tile (x, y) of level z, x along the keys, y along the queries.

        `budget` is roughly how many scores may be computed. Raises a ValueError if there is no such
        tile.
        """
        self._check_exists(z, x, y)
        cells = self.pyramid.cells(z)
        columns = self.pyramid.keys_of(z, x)
        queries = self.pyramid.queries_of(z, y)
        # Pool the queries that the budget allows to read.
        rows, stride = self._choose_rows(queries, len(columns), budget, self.row_sums.has_lse)
        pixel = (rows - queries.start) // max(cells, stride)
        height = int(pixel[-1]) + 1
        lse = self.row_sums.lse_of(rows)
        share, largest = pool_to_pixels(self.scores, rows, lse, pixel, height, columns, cells)
        share, largest = (
            _repeat_rows(numbers, queries, cells, stride) for numbers in (share, largest)
        )
        return Tile(self._framed(share), self._framed(largest), stride == 1, cells / stride)

    @torch.no_grad()
    def entropies(self, z: int, y: int, budget: int = BUDGET) -> Track:
        """Return the mean entropy of the queries of each pixel, in nats."""
        self._check_exists(z, 0, y)
        cells = self.pyramid.cells(z)
        queries = self.pyramid.queries_of(z, y)
        rows, stride = self._choose_rows(queries, 0, budget, self.row_sums.summed)
        entropy = self.row_sums.entropy_of(rows) * log(2.0)
        pixel = (rows - queries.start) // max(cells, stride)
        # The mean over the queries read of each pixel
        count = torch.bincount(pixel)
        mean = entropy.new_zeros(len(count)).index_add_(0, pixel, entropy) / count
        mean = _repeat_rows(mean[:, None], queries, cells, stride)[:, 0]
        return Track(self._framed(mean[None])[0], stride == 1, cells / stride)

    @torch.no_grad()
    def received(self, z: int, x: int, budget: int = BUDGET) -> Track:
        """Return the share of all weight that the keys of each pixel receive; over a whole level it
        sums to one.
        """
        self._check_exists(z, x, 0)
        columns = self.pyramid.keys_of(z, x)
        rows, stride = self._choose_rows(
            range(self.scores.size[0]), len(columns), budget, self.row_sums.has_lse
        )
        # All queries fall into one row of pixels, whose mean share is what the keys receive.
        one_pixel = torch.zeros_like(rows)
        lse = self.row_sums.lse_of(rows)
        share, _ = pool_to_pixels(
            self.scores, rows, lse, one_pixel, 1, columns, self.pyramid.cells(z)
        )
        return Track(self._framed(share.exp2())[0], stride == 1, self.pyramid.cells(0) / stride)

    @property
    def summed_fraction(self) -> float:
        """The fraction of rows whose log-sum-exp is known without computing it."""
        has_lse = self.row_sums.has_lse
        return float(has_lse.float().mean()) if len(has_lse) else 1.0

    def _choose_rows(
        self, queries: range, width: int, budget: int, has_sum: Bool[Tensor, " query"]
    ) -> tuple[Int[Tensor, " row"], int]:
        """Return all queries if the budget allows it; else one of every `stride`, for half the
        budget, and the stride.

        Half, so that a sample comes quickly; a larger budget improves it. Sums computed before
        lower the cost only if none is missing, so that tiles in a row sample the same queries.
        """
        # Double the stride until the sample is cheap enough, or too small to tell anything.
        stride = 1
        while True:
            rows = sample_queries(queries, stride).to(has_sum.device)
            summing = 0 if bool(has_sum[rows].all()) else self.scores.count(rows)
            cost = SHARED * len(rows) * width + summing
            if len(rows) < 2 * FEWEST or cost <= (budget if stride == 1 else budget // 2):
                return rows, stride
            stride *= 2

    def _check_exists(self, z: int, x: int, y: int) -> None:
        if not self.pyramid.has(z, x, y):
            raise ValueError(
                f"there is no tile {z}/{x}/{y} of {self.scores.size[0]:,} queries x "
                f"{self.scores.size[1]:,} keys; levels go from 0 to {self.pyramid.max_zoom}"
            )

    def _framed(
        self, numbers: Float[Tensor, "some_rows some_columns"]
    ) -> Float[Tensor, "side side"]:
        """Return numbers on the CPU, padded with NaN to a whole tile."""
        framed = torch.full((self.pyramid.side, self.pyramid.side), torch.nan)
        framed[: numbers.shape[0], : numbers.shape[1]] = numbers
        return framed


def _repeat_rows(
    numbers: Float[Tensor, "some columns"], queries: range, cells: int, stride: int
) -> Float[Tensor, "height columns"]:
    """Return a row for each row of pixels, where one query stands for several of them."""
    return numbers.repeat_interleave(max(1, stride // cells), 0)[: -(-len(queries) // cells)]


# ------------------------------------------------------------------------------------------- pixels


def sample_queries(rows: range, stride: int) -> Int[Tensor, " some"]:
    """Return one pseudorandom query of every `stride` neighbours, where `stride` is a power of two.

    The sample of a stretch is that of its first or of its second half, so that coarse levels read
    queries that finer levels read too. It depends on the position alone, so that equal requests get
    equal answers. Every second or fourth query instead could coincide with a period of the text,
    and draw a diagonal too bright.
    """
    # From the whole stretch down to single queries: go to its first or its second half.
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
    # First the keys of each query, block by block; then the queries of each pixel.
    width = -(-len(columns) // cells)
    largest = lse.new_full((len(rows), width), -torch.inf)
    shares = largest.clone() if cells > 1 else largest
    shift = lse.masked_fill(lse == -torch.inf, 0.0)[:, None]
    for part, taken, block in scores.blocks(rows, columns, cells):
        block = block.sub_(shift[part])
        pixels = slice(taken.start // cells, -(-taken.stop // cells))
        if block.shape[-1] % cells:  # the last pixel has fewer keys
            block = pad(block, (0, -block.shape[-1] % cells), value=-torch.inf)
        block = block.view(len(block), -1, cells)
        largest[part, pixels] = block.amax(-1)
        if cells > 1:
            shares[part, pixels] = _log2_sum(block, largest[part, pixels])
    return _pool_rows(shares, largest, pixel, height)


def _log2_sum(
    block: Float[Tensor, "row pixel key"], largest: Float[Tensor, "row pixel"]
) -> Float[Tensor, "row pixel"]:
    """Return log2 Σ 2^x over the keys of a pixel."""
    # Without a shift first: it is one pass less, and seldom underflows.
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
    # The mean of shares given by their logs: shift by the largest of each pixel.
    where = pixel[:, None].expand_as(shares)
    empty = shares.new_full((height, shares.shape[1]), -torch.inf)
    best = empty.scatter_reduce(0, where, shares, "amax")
    shift = best.masked_fill(best == -torch.inf, 0.0)
    summed = torch.zeros_like(empty).index_add_(0, pixel, torch.exp2(shares - shift[pixel]))
    mean = torch.log2(summed / count[:, None]) + shift
    return mean, empty.scatter_reduce(0, where, largest, "amax")
