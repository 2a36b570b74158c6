"""Alignment: what every word gives to every word, in one head or in the mean of all."""

from typing import Any

from .asked import Asked
from .numbers import plain
from .refusal import Refusal
from .run import Looked
from .walk import head, sequence

MOST = 512


def alignment(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    """A word's row is the mean over its tokens, its column their sum."""
    looked.must_have("alignment")
    mean, b = asked.parameters.get("h") == "mean", sequence(looked, asked)
    h = None if mean else head(looked, asked)
    axes = {axis: (looked.words(axis), there) for axis, there in zip("qk", looked.size, strict=True)}
    names = [
        looked.tokens(axis, b, range(min(there, MOST))) if words is None else list(words.names)
        for axis, (words, there) in axes.items()
    ]
    if max(there for _, there in axes.values()) > 2 * MOST or max(map(len, names)) > MOST:
        raise Refusal(409, "too-long", f"{looked.size[0]:,} x {looked.size[1]:,} tokens are too many; see the map")
    segments = tuple(list(range(there)) if words is None else list(words.of) for words, there in axes.values())
    weights = looked.call.survey().map(segments=segments)[b]
    real = [list(range(there)) if words is None else list(words.real) for words, there in axes.values()]
    return {
        "l": layer,
        "h": "mean" if h is None else h,
        "rows": names[0],
        "columns": names[1],
        "weights": plain(weights.double().mean(0) if h is None else weights[looked.call.heads.index(h)]),
        "real_rows": real[0],
        "real_columns": real[1],
    }
