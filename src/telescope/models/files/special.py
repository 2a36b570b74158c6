"""Special ids in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...files.errors import LoadError
from ...words import hint
from ..special import Special


def special(given: Mapping[str, Any], file: Path, vocabulary: int | None = None) -> Special:
    """Whole numbers or null, for the end also a list. An id outside the vocabulary, if that is known, means nothing."""
    ids: dict[str, list[int]] = {"start": [], "end": [], "pad": []}
    for name in given:
        if name not in ids:
            raise LoadError(f'{file}: there is no special id for "{name}"; {hint(name, ids)}')
    for name in ids:
        value = given.get(name)
        several = value if isinstance(value, list) and name == "end" else [] if value is None else [value]
        if not all(type(i) is int for i in several):
            raise LoadError(f"{file}: the special id for {name} is {value!r}; it is a whole number, or null")
        ids[name] = [i for i in several if vocabulary is None or 0 <= i < vocabulary]
    start, pad = (next(iter(ids[name]), None) for name in ("start", "pad"))
    return Special(start, tuple(ids["end"]), pad)
