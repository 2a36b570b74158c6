"""Paths and JSON files from outside: each function returns what it checked, or raises a LoadError
of one sentence.
"""

import fnmatch
import json
import os
import stat
from pathlib import Path
from typing import Any

from ..words import closest_name, describe_error
from .errors import LoadError

# Files that torch.load opens, which may run code.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def check_exists(path: str | os.PathLike[str]) -> Path:
    """Return the path, if a file or folder exists there; else raise a LoadError that suggests a
    similar name.
    """
    place = Path(path)
    try:
        # stat, not exists: it tells why a path cannot be used.
        place.stat()
    except FileNotFoundError:
        if place.is_symlink():
            raise LoadError(
                f"{place} is a link to {os.readlink(place)}, which does not exist"
            ) from None
        raise LoadError(f"{place} does not exist{suggest_name(place)}") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"{place} cannot be read: {describe_error(error)}") from None
    return place


def is_missing(path: str) -> bool:
    """Return whether the path does not exist, not even as a broken link."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # not readable, or with characters that no name has
        pass
    return False


def is_folder(place: Path) -> bool:
    """Return whether an existing path is a folder."""
    return stat.S_ISDIR(place.stat().st_mode)


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise LoadError(f"{folder} cannot be read: {describe_error(error)}") from None


def check_is_file(place: Path) -> Path:
    """Return the path, if it is a regular file: opening a pipe or a device could block forever."""
    if not stat.S_ISREG(check_exists(place).stat().st_mode):
        raise LoadError(f"{place} is not a file")
    return place


def read_bytes(place: Path, *, at_most: int) -> bytes:
    """Return the contents of a file; a LoadError where the file has more than `at_most` bytes."""
    # The size that a file claims may be wrong, as that of /proc is: read one byte more.
    contents = read_start(place, at_most + 1)
    if len(contents) > at_most:
        raise LoadError(
            f"{place} is larger than {at_most:,} bytes, more than a file of its kind holds"
        )
    return contents


def read_start(place: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, fewer where the file is shorter."""
    try:
        with check_is_file(place).open("rb") as opened:
            return opened.read(count)
    except OSError as error:
        raise LoadError(f"{place} cannot be read: {describe_error(error)}") from None


def pickle_error(place: Path) -> LoadError:
    """Return the error for a pickle, with the line that converts it to safetensors."""
    return LoadError(
        f"{place} is a pickle, which can run any code when it is opened, so it is not; where you "
        f'trust it, safetensors.torch.save_file(torch.load("{place.name}", weights_only=True), '
        '"model.safetensors") converts it'
    )


def read_json(place: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most 100 MB; a LoadError where a field occurs
    twice.
    """
    return parse_json(read_bytes(place, at_most=100_000_000), str(place))


def parse_json(contents: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in `contents`; `name` is the name of the file, for errors."""
    try:
        # Of two equal fields json.loads keeps the last; another reader may keep the first.
        parsed = json.loads(contents.decode("utf-8"), object_pairs_hook=_reject_duplicates)
    except RecursionError:
        raise LoadError(f"{name} is not JSON that can be read: it is nested too deep") from None
    except ValueError as error:  # invalid JSON, invalid UTF-8, or a field that occurs twice
        raise LoadError(f"{name} is not JSON that can be read: {error}") from None
    if not isinstance(parsed, dict):
        raise LoadError(
            f"{name} holds a JSON {type(parsed).__name__}; it should be an object, {{...}}"
        )
    return parsed


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; a ValueError where a field occurs twice."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f'"{name}" is there twice')
        fields[name] = value
    return fields


def suggest_name(place: Path, pattern: str = "*") -> str:
    """Return '; did you mean "gpt2"?' with the most similar name in the same folder, or an empty
    string; only names that fit `pattern` are suggested.
    """
    try:
        names = os.listdir(place.parent)
    except OSError:
        return ""
    similar = closest_name(place.name, fnmatch.filter(names, pattern))
    return f'; did you mean "{place.parent / similar}"?' if similar else ""
