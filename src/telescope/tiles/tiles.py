"""Tiles and tracks of one head, exact where that is quick, otherwise of some queries, and labelled so."""

from math import log
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .head_scores import HeadScores, OneHead
from .pyramid import TILE, Pyramid, pooled, representatives
from .row_sums import RowSums

BUDGET = 9 * 2**22  # scores for a tile, a fraction of a second: with it the deepest level of 131,072 tokens is exact
SHARED = 4  # tiles beside each other in a view: what is learnt serves all, its own scores one of them
FEWEST = 16  # queries of a tile, whatever it takes


class Tile(NamedTuple):
    """log2 of what falls into each pixel: -inf where all is masked, NaN outside of the matrix.

    `share` is the weight that goes to a pixel's keys, in the mean over its queries, so that a row of pixels sums to
    one, as a row of weights does; `max` is the largest weight. Of each pixel's queries `samples` were looked at, with
    all of their keys; below one, neighbouring rows of pixels share a query. `exact` says whether these are all.
    """

    share: Float[Tensor, "side side"]
    max: Float[Tensor, "side side"]
    exact: bool
    samples: float


class Track(NamedTuple):
    """A number for each pixel along one side of the map; NaN outside of it."""

    numbers: Float[Tensor, " side"]
    exact: bool
    samples: float


class Tiles:
    """What has been summed once is remembered: a tile beside another one costs its own pixels alone."""

    def __init__(self, head: OneHead, side: int = TILE) -> None:
        self.scores, self.pyramid = HeadScores(head), Pyramid(*head.size, side)
        self.learnt = RowSums(self.scores)

    @torch.no_grad()
    def tile(self, z: int, x: int, y: int, budget: int = BUDGET) -> Tile:
        """Tile (x, y) of level z; x counts along the keys, y along the queries. `budget` is of scores."""
        self._must_have(z, x, y)
        cells, columns = self.pyramid.cells(z), self.pyramid.keys_of(z, x)
        there = self.pyramid.queries_of(z, y)
        rows, stretch = self._rows(there, len(columns), budget, self.learnt.known)
        pixel = (rows - there.start) // max(cells, stretch)
        share, best = pooled(self.scores, rows, self.learnt.lse_of(rows), pixel, int(pixel[-1]) + 1, columns, cells)
        share, best = (_shared(numbers, there, cells, stretch) for numbers in (share, best))
        return Tile(self._framed(share), self._framed(best), stretch == 1, cells / stretch)

    @torch.no_grad()
    def entropies(self, z: int, y: int, budget: int = BUDGET) -> Track:
        """Of each pixel's queries the mean entropy, in nats."""
        self._must_have(z, 0, y)
        cells = self.pyramid.cells(z)
        there = self.pyramid.queries_of(z, y)
        rows, stretch = self._rows(there, 0, budget, self.learnt.summed)
        entropy = self.learnt.entropy_of(rows) * log(2.0)
        pixel = (rows - there.start) // max(cells, stretch)
        count = torch.bincount(pixel)
        mean = entropy.new_zeros(len(count)).index_add_(0, pixel, entropy) / count
        mean = _shared(mean[:, None], there, cells, stretch)[:, 0]
        return Track(self._framed(mean[None])[0], stretch == 1, cells / stretch)

    @torch.no_grad()
    def received(self, z: int, x: int, budget: int = BUDGET) -> Track:
        """The share of all weight that falls on each pixel's keys; summed over all of them, it is one."""
        self._must_have(z, x, 0)
        columns = self.pyramid.keys_of(z, x)
        rows, stretch = self._rows(range(self.scores.size[0]), len(columns), budget, self.learnt.known)
        nowhere = torch.zeros_like(rows)
        share, _ = pooled(self.scores, rows, self.learnt.lse_of(rows), nowhere, 1, columns, self.pyramid.cells(z))
        return Track(self._framed(share.exp2())[0], stretch == 1, self.pyramid.cells(0) / stretch)

    @property
    def learnt_share(self) -> float:
        """Of how many rows the sum is known."""
        known = self.learnt.known
        return float(known.float().mean()) if len(known) else 1.0

    def _rows(
        self, there: range, width: int, budget: int, known: Bool[Tensor, " query"]
    ) -> tuple[Int[Tensor, " row"], int]:
        """All of these queries if the budget allows it; else one of every so many, for half of it: a sample is soon
        there, and whoever wants more of it makes more effort.

        What is known counts only where nothing has to be learnt: so tiles in a row are of the same queries.
        """
        stretch = 1
        while True:
            rows = representatives(there, stretch).to(known.device)
            learning = 0 if bool(known[rows].all()) else self.scores.seen(rows)
            cost = SHARED * len(rows) * width + learning
            if len(rows) < 2 * FEWEST or cost <= (budget if stretch == 1 else budget // 2):
                return rows, stretch
            stretch *= 2

    def _must_have(self, z: int, x: int, y: int) -> None:
        if not self.pyramid.has(z, x, y):
            raise ValueError(
                f"there is no tile {z}/{x}/{y} of {self.scores.size[0]:,} queries x {self.scores.size[1]:,} keys; "
                f"levels go from 0 to {self.pyramid.max_zoom}"
            )

    def _framed(self, numbers: Float[Tensor, "some_rows some_columns"]) -> Float[Tensor, "side side"]:
        framed = torch.full((self.pyramid.side, self.pyramid.side), torch.nan)
        framed[: numbers.shape[0], : numbers.shape[1]] = numbers
        return framed


def _shared(
    numbers: Float[Tensor, "some columns"], there: range, cells: int, stretch: int
) -> Float[Tensor, "height columns"]:
    """Where a query stands for several rows of pixels, they all are its."""
    return numbers.repeat_interleave(max(1, stretch // cells), 0)[: -(-len(there) // cells)]
