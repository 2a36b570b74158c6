"""Tiles and tracks of one head: exact where that is quick, else from a sample of queries, and
labelled so.
"""

from math import log
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .head_scores import HeadScores, OneHead
from .pyramid import TILE, Pyramid, pool_to_pixels, sample_queries
from .row_sums import RowSums

BUDGET = (
    9 * 2**22
)  # scores per tile, a fraction of a second: the deepest level of 131,072 tokens is exact with it
# Tiles side by side in a view: row sums serve all of them, the scores of a tile serve it alone.
SHARED = 4
FEWEST = 16  # queries of a tile, whatever they cost


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
        >>> from telescope.tiles import Tiles
        >>> from telescope.tiles.head_scores import OneHead
        >>> zeros = torch.zeros(1, 1, 4, 2)
        >>> tiles = Tiles(OneHead(zeros, zeros, None, ts.Attention(mask=ts.causal)), side=2)
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
                f"{self.scores.size[1]:,} keys; "
                f"levels go from 0 to {self.pyramid.max_zoom}"
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
