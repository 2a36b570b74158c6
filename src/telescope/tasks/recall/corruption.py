"""Span corruption: a piece is taken out of a line and stands at its end, so that the line has to be remembered.

    Khatchig Mouradian is a journalist, writer    →    Khatchig Mour⁇ist, writer⁇adian is a journal□□□…

Everything is done for all lines at once, where they lie: a GPU then never waits for Python to cut strings.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .vocabulary import FILL, GAP

SHORTEST = 4  # so many characters of a line are kept at least


class Spans(NamedTuple):
    """Of each line: how many characters of its beginning are kept, how many of those are taken out, and from where."""

    kept: Int[Tensor, " lines"]
    taken: Int[Tensor, " lines"]
    start: Int[Tensor, " lines"]


def spans(lengths: Int[Tensor, " lines"], chances: Float[Tensor, "chances lines"], longest: int) -> Spans:
    """What numbers from 0 to 1, at least three for each line, decide.

    kept    from 4 to `longest`, or all there is: the longest that any of the first chances gives, each of them evenly
    taken   evenly at least one and less than half, so a quarter on average
    start   evenly anywhere it fits
    """
    *keeping, taking, starting = chances
    kept = (SHORTEST + (torch.stack(keeping).amax(0) * (longest - SHORTEST + 1)).long()).minimum(lengths)
    taken = (1 + taking * (kept / 2 - 1).clamp(min=0)).long()
    return Spans(kept, taken, (starting * (kept - taken + 1)).long())


def corrupt(lines: Int[Tensor, "lines longest"], spans: Spans, length: int) -> Int[Tensor, "lines length"]:
    """prefix ⁇ suffix ⁇ taken □…, each of the lines filled up to `length`."""
    kept, taken, start = (number[:, None] for number in spans)
    at = torch.arange(length, device=lines.device)
    rest = kept - taken  # so long are prefix and suffix together
    from_line = torch.where(at < start, at, torch.where(at <= rest, at - 1 + taken, at - rest - 2 + start))
    moved = lines.gather(1, from_line.clamp(0, lines.shape[1] - 1))
    moved = moved.masked_fill((at == start) | (at == rest + 1), GAP)
    return moved.masked_fill(at > kept + 1, FILL)
