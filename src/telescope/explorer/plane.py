"""Geometry: the tokens before and after an attention, in one plane."""

from typing import Any

from ..trace.geometry import cosines, plane
from ..trace.json_numbers import plain
from .asked import Asked
from .run import Looked
from .walk import sequence

MOST_POINTS, SMALL = 512, 64


def geometry(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    looked.must_have("geometry")
    b, rows = sequence(looked, asked), looked.call.facts.rows
    some = asked.stretch(looked.size[0], MOST_POINTS)
    which = list(some) if rows is None else [rows[i] for i in some]
    before, after = looked.call.before[b, which], looked.call.after[b, which]
    flat = plane(before, after)
    small = len(which) <= SMALL
    return {
        "l": layer,
        "start": some.start,
        "stop": some.stop,
        "n": looked.size[0],
        "tokens": looked.tokens("q", b, some),
        "before": plain(flat.before),
        "after": plain(flat.after),
        "explained": list(flat.explained),
        "moved": plain(flat.moved),
        "cosines": {"before": plain(cosines(before)), "after": plain(cosines(after))} if small else None,
    }
