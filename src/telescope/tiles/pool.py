"""Weights joined to pixels: the sum over a pixel's keys, the mean over its queries; and the largest."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .scores import Scores

FAINT = 1e-30  # a sum below it may have lost what is too small for an exponential, and is made with care


def pooled(
    scores: Scores,
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
