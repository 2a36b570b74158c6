"""The tokens of a run, a stretch at a time: of a million nobody wants to see all at once."""

from typing import Any

from .asked import Asked
from .run import Looked
from .walk import sequence

MOST_TOKENS = 4096


def tokens(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    axis, b = asked.word("axis", ("q", "k")), sequence(looked, asked)
    there = looked.size[0 if axis == "q" else 1]
    some = asked.stretch(there, MOST_TOKENS)
    words = looked.words(axis)
    of = None if words is None else words.of[some.start : some.stop]
    names = None if words is None or not of else list(words.names[of[0] : of[-1] + 1])
    return {
        "l": layer,
        "axis": axis,
        "start": some.start,
        "stop": some.stop,
        "n": there,
        "tokens": looked.tokens(axis, b, some),
        "words": None if of is None else list(of),
        "names": names,
    }
