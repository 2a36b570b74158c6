"""How a matrix is cut into tiles: at the deepest level a pixel is one pair; a level up, twice as many each way."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

TILE = 256


@dataclass(frozen=True)
class Pyramid:
    """Level 0 is one tile; level z has tiles (x, y), x along the keys and y along the queries."""

    queries: int
    keys: int
    side: int = TILE
    """How many pixels a tile has each way."""

    @property
    def max_zoom(self) -> int:
        longest = max(self.queries, self.keys, 1)
        return ((longest - 1) // self.side).bit_length()

    def cells(self, z: int) -> int:
        """How many queries, and how many keys, there are in a pixel."""
        return 1 << (self.max_zoom - z)

    def queries_of(self, z: int, y: int) -> range:
        return _within(y * self.side * self.cells(z), self.side * self.cells(z), self.queries)

    def keys_of(self, z: int, x: int) -> range:
        return _within(x * self.side * self.cells(z), self.side * self.cells(z), self.keys)

    def has(self, z: int, x: int, y: int) -> bool:
        return (
            0 <= z <= self.max_zoom
            and min(x, y) >= 0
            and len(self.keys_of(z, x)) > 0
            and len(self.queries_of(z, y)) > 0
        )


def _within(start: int, count: int, there: int) -> range:
    return range(min(start, there), min(start + count, there))


def representatives(rows: range, stretch: int) -> Int[Tensor, " some"]:
    """One of every `stretch` queries, a power of two, by dice.

    A stretch's one is the one of its first or of its second half, so that coarse levels look at queries at which finer
    ones look too. The dice are a function of the place: what is asked twice is answered alike. Every second or fourth
    query instead would meet what repeats itself in a text, and draws a diagonal too bright.
    """
    start = torch.arange(rows.start, rows.stop, stretch)
    half = stretch // 2
    while half:
        second = _dice(start, half)
        start = torch.where(second & (start + half < rows.stop), start + half, start)
        half //= 2
    return start


def _dice(start: Int[Tensor, " some"], half: int) -> Tensor:
    """Heads or tails for each place: the mixing steps of splitmix64 (Steele et al. 2014), cut to 63 bits."""
    mixed = (start + half) * 0x1E3779B97F4A7C15 + torch.tensor(half) * 0x3F58476D1CE4E5B9
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (63 - shift) - 1))) * factor
    return (mixed >> 40) & 1 == 1
