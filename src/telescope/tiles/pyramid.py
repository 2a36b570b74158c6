"""How a matrix is cut into tiles: at the deepest level a pixel is one pair; a level up, twice as many each way."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .head_scores import HeadScores

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


FAINT = 1e-30  # a sum below it may have lost what is too small for an exponential, and is made with care


def pooled(
    scores: HeadScores,
    rows: Int[Tensor, " row"],
    lse: Float[Tensor, " row"],
    pixel: Int[Tensor, " row"],
    height: int,
    columns: range,
    cells: int,
) -> tuple[Float[Tensor, "height width"], Float[Tensor, "height width"]]:
    """log2 of the share and of the largest weight in each pixel; -inf where nobody may see anything.

    `pixel` is the row of pixels that a query falls into; there are `cells` keys in each column of them.
    """
    width = -(-len(columns) // cells)
    best = lse.new_full((len(rows), width), -torch.inf)
    shares = best.clone() if cells > 1 else best
    against = lse.masked_fill(lse == -torch.inf, 0.0)[:, None]
    for part, some, block in scores.blocks(rows, columns, cells):
        block = block.sub_(against[part])
        whole, there = -(-block.shape[-1] // cells), slice(some.start // cells, -(-some.stop // cells))
        if whole * cells > block.shape[-1]:
            block = torch.nn.functional.pad(block, (0, whole * cells - block.shape[-1]), value=-torch.inf)
        block = block.view(len(block), whole, cells)
        best[part, there] = block.amax(-1)
        if cells > 1:
            shares[part, there] = _shares(block, best[part, there])
    return _by_pixel(shares, best, pixel, height)


def _shares(block: Float[Tensor, "row pixel key"], best: Float[Tensor, "row pixel"]) -> Float[Tensor, "row pixel"]:
    """log2 Σ 2^ over the keys of a pixel."""
    summed = torch.exp2(block).sum(-1)
    if bool(((summed < FAINT) & (best > -torch.inf)).any()):
        shift = best.masked_fill(best == -torch.inf, 0.0)
        return torch.exp2(block - shift[..., None]).sum(-1).log2() + shift
    return summed.log2()


def _by_pixel(
    shares: Float[Tensor, "row width"], best: Float[Tensor, "row width"], pixel: Int[Tensor, " row"], height: int
) -> tuple[Float[Tensor, "height width"], Float[Tensor, "height width"]]:
    """Over the queries of a pixel, in logarithms: that of their mean, and their largest."""
    count = torch.bincount(pixel, minlength=height).clamp(min=1)
    if len(shares) == height and bool((count == 1).all()):
        return shares, best
    where = pixel[:, None].expand_as(shares)
    nothing = shares.new_full((height, shares.shape[1]), -torch.inf)
    largest = nothing.scatter_reduce(0, where, shares, "amax")
    shift = largest.masked_fill(largest == -torch.inf, 0.0)
    summed = torch.zeros_like(nothing).index_add_(0, pixel, torch.exp2(shares - shift[pixel]))
    mean = torch.log2(summed / count[:, None]) + shift
    return mean, nothing.scatter_reduce(0, where, best, "amax")
