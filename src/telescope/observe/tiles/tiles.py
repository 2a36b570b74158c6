"""Tiles and tracks of one head, exact where that is quick, otherwise of some queries, and labelled so."""

from math import log
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..one_head import OneHead
from .pool import pooled
from .pyramid import TILE, Pyramid
from .sample import representatives
from .scores import Scores
from .sums import sums

BUDGET = 2**25  # scores for a tile: some tenths of a second on two cores


class Tile(NamedTuple):
    """log2 of what falls into each pixel: -inf where all is masked, NaN outside of the matrix.

    `share` is the weight that goes to a pixel's keys, in the mean over its queries, so that a row of pixels sums to
    one, as a row of weights does; `max` is the largest weight. Of each pixel's queries `samples` were looked at, with
    all of their keys; `exact` says whether these are all.
    """

    share: Float[Tensor, "side side"]
    max: Float[Tensor, "side side"]
    exact: bool
    samples: int


class Track(NamedTuple):
    """A number for each pixel along one side of the map; NaN outside of it."""

    numbers: Float[Tensor, " side"]
    exact: bool
    samples: int


class Tiles:
    """What has been summed once is remembered: a tile beside another one costs its own pixels alone."""

    def __init__(self, head: OneHead, side: int = TILE) -> None:
        self.scores, self.pyramid = Scores(head), Pyramid(*head.size, side)
        self.lse = torch.full((head.size[0],), torch.nan, dtype=self.scores.kind, device=head.queries.device)
        self.entropy = torch.full_like(self.lse, torch.nan)
        self.known = torch.zeros_like(self.lse, dtype=torch.bool)
        self._learning = Lock()

    @torch.no_grad()
    def tile(self, z: int, x: int, y: int, budget: int = BUDGET) -> Tile:
        """Tile (x, y) of level z; x counts along the keys, y along the queries. `budget` is of scores."""
        self._must_have(z, x, y)
        cells, columns = self.pyramid.cells(z), self.pyramid.keys_of(z, x)
        rows, samples = self._rows(self.pyramid.queries_of(z, y), cells, len(columns), budget)
        pixel = rows // cells - y * self.pyramid.side
        share, best = pooled(self.scores, rows, self.learnt(rows), pixel, int(pixel[-1]) + 1, columns, cells)
        return Tile(self._framed(share), self._framed(best), samples == cells, samples)

    @torch.no_grad()
    def entropies(self, z: int, y: int, budget: int = BUDGET) -> Track:
        """Of each pixel's queries the mean entropy, in nats."""
        self._must_have(z, 0, y)
        cells = self.pyramid.cells(z)
        rows, samples = self._rows(self.pyramid.queries_of(z, y), cells, 0, budget)
        self.learnt(rows)
        pixel = rows // cells - y * self.pyramid.side
        count = torch.bincount(pixel)
        mean = self.entropy.new_zeros(len(count)).index_add_(0, pixel, self.entropy[rows] * log(2.0)) / count
        return Track(self._framed(mean[None])[0], samples == cells, samples)

    @torch.no_grad()
    def received(self, z: int, x: int, budget: int = BUDGET) -> Track:
        """The share of all weight that falls on each pixel's keys; summed over all of them, it is one."""
        self._must_have(z, x, 0)
        columns, whole = self.pyramid.keys_of(z, x), self.pyramid.cells(0)
        rows, samples = self._rows(range(self.scores.size[0]), whole, len(columns), budget)
        nowhere = torch.zeros_like(rows)
        share, _ = pooled(self.scores, rows, self.learnt(rows), nowhere, 1, columns, self.pyramid.cells(z))
        return Track(self._framed(share.exp2())[0], samples == whole, samples)

    @property
    def learnt_share(self) -> float:
        """Of how many rows the sum is known."""
        return float(self.known.float().mean()) if len(self.known) else 1.0

    def learnt(self, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """log2 Σ 2^ of the scores of these rows, which are in bits."""
        with self._learning:  # who asks for the same rows meanwhile had better wait
            new = rows[~self.known[rows]]
            if len(new):
                self.lse[new], self.entropy[new] = sums(self.scores, new)
                self.known[new] = True
        return self.lse[rows]

    def _rows(self, there: range, cells: int, width: int, budget: int) -> tuple[Int[Tensor, " row"], int]:
        """As many of each pixel's queries as the budget allows, all of them if it does; and how many these are."""
        samples = cells
        while True:
            rows = representatives(there, cells, samples).to(self.known.device)
            unknown = int((~self.known[rows]).sum())
            if samples == 1 or len(rows) * width + unknown * self.scores.size[1] <= budget:
                return rows, samples
            samples //= 2

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
