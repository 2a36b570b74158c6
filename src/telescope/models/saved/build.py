"""What a config.json describes: a model without numbers yet, and its special ids."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...attention import Attention
from ...files.errors import LoadError
from ...files.safetensors import Tensors
from ...words import hint
from ..config import Config, Special
from ..model import Model, empty


def described(
    kind: type[Model],
    config: Callable[[], Config],
    file: Path,
    tensors: Tensors,
    attention: Attention | None = None,
) -> Model:
    """The model that a config.json describes, if it describes one that these tensors could be."""
    try:
        says = config()
    except LoadError:
        raise
    except (ValueError, TypeError) as error:
        raise LoadError(f"{file}: {error}") from None
    for name, count in asdict(says).items():  # building a billion blocks would take a while, even without numbers
        if name.endswith(("blocks", "layers")) and count > len(tensors):
            raise LoadError(f"{file}: {name}={count}, but {tensors.source} holds only {len(tensors)} tensors")
    try:
        return empty(kind, says, attention)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"{file} does not describe a model that can be built: {reason}") from None


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
