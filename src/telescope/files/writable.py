"""Find out before long work whether its result can be written."""

import os
import shutil
from pathlib import Path
from secrets import token_hex

from ..words import format_bytes
from .atomic import resolve_path
from .paths import describe_error

BLOCK = 4096  # bytes of a trial file: a full disk takes an empty file


def check_can_write(path: str | os.PathLike[str], *, size: int = 0, name: str = "") -> None:
    """Raise a ValueError unless a file or folder can be made at `path`, its missing parents
    included.

    A trial is written under a hidden name and removed again: permissions do not tell of a full or
    read-only disk, nor of a name that is too long. What exists at `path` is neither read nor
    changed.

    size  bytes that will be written, where known: as much must be free
    name  of the option that gave the path, for the error
    """
    said = f"{name} {path}".strip()
    place = resolve_path(path)
    try:
        folder = _nearest_folder(place.parent)
        trial = folder / f".telescope.new-{token_hex(4)}"
        trial.mkdir()
        try:
            inside = trial / place.relative_to(folder)
            inside.parent.mkdir(parents=True, exist_ok=True)
            # The name under which `atomic_folder` fills a folder is longer than the name of the
            # folder.
            inside.with_name(f".{inside.name}.new-{token_hex(4)}").write_bytes(bytes(BLOCK))
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        free = shutil.disk_usage(folder).free
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{said} cannot be written: {describe_error(problem)}; name another place"
        ) from None
    if free < size:
        needed = format_bytes(size)
        left = format_bytes(free)
        raise ValueError(
            f"{said} needs {needed}, and {left} are free; make room, or name another place"
        )


def _nearest_folder(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists; raise a ValueError if that is a
    file.
    """
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder")
    return folder
