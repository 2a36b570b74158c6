"""The files of a folder: there and readable, or one sentence why not."""

import json
import os
import stat
from errno import ELOOP
from pathlib import Path
from typing import Any

from ..words import near
from .errors import LoadError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def existing(path: str | os.PathLike[str]) -> Path:
    """The path, if something is there."""
    place = Path(path)
    try:
        place.stat()
    except FileNotFoundError:
        if place.is_symlink():
            raise LoadError(f"{place} is a link to {os.readlink(place)}, and nothing is there") from None
        raise LoadError(f"{place} does not exist{_meant(place)}") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"{place} cannot be read: {reason(error)}") from None
    return place


def missing(path: str) -> bool:
    """Whether nothing has this name, not even a link."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


def is_folder(place: Path) -> bool:
    return stat.S_ISDIR(place.stat().st_mode)


def names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise LoadError(f"{folder} cannot be read: {reason(error)}") from None


def file(place: Path) -> Path:
    """The path, if it is a plain file: a pipe or a device of that name would be waited for."""
    if not stat.S_ISREG(existing(place).stat().st_mode):
        raise LoadError(f"{place} is not a file")
    return place


def read(place: Path, *, at_most: int) -> bytes:
    contents = start(place, at_most + 1)
    if len(contents) > at_most:
        raise LoadError(f"{place} is larger than {at_most:,} bytes, more than a file of its kind holds")
    return contents


def start(place: Path, count: int) -> bytes:
    """The first bytes, or all there are."""
    try:
        with file(place).open("rb") as opened:
            return opened.read(count)
    except OSError as error:
        raise LoadError(f"{place} cannot be read: {reason(error)}") from None


def pickle_refused(place: Path) -> LoadError:
    return LoadError(
        f"{place} is a pickle, which can run any code when it is opened, so it is not; where you trust it, "
        f'safetensors.torch.save_file(torch.load("{place.name}", weights_only=True), "model.safetensors") converts it'
    )


def read_json(place: Path) -> dict[str, Any]:
    """A JSON object in which no field is said twice."""
    return parse_json(read(place, at_most=100_000_000), str(place))


def parse_json(contents: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(contents.decode("utf-8"), object_pairs_hook=_once)
    except RecursionError:
        raise LoadError(f"{name} is not JSON that can be read: it is nested too deep") from None
    except ValueError as error:  # JSON, UTF-8 and a field said twice
        raise LoadError(f"{name} is not JSON that can be read: {error}") from None
    if not isinstance(parsed, dict):
        raise LoadError(f"{name} holds a JSON {type(parsed).__name__}; it should be an object, {{...}}")
    return parsed


def reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, OSError):
        return "its links go in a circle" if error.errno == ELOOP else str(error.strerror or error).lower()
    return str(error)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f'"{name}" is there twice')
        fields[name] = value
    return fields


def _meant(place: Path) -> str:
    """; did you mean "gpt2"? Of what lies beside it, if anything is near."""
    try:
        meant = near(place.name, os.listdir(place.parent))
    except OSError:
        return ""
    return f'; did you mean "{place.parent / meant}"?' if meant else ""
