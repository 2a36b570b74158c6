"""Which queries stand for a pixel, where there are too many to look at all of them."""

import torch
from jaxtyping import Int
from torch import Tensor


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
