"""Write files and folders as a whole or not at all, and find out before long work whether they can
be written: a new folder is filled next to its destination, and renamed once everything is on disk.
"""

import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from time import time

from safetensors import SafetensorError, safe_open

from ..words import describe_error, format_bytes
from .errors import WriteError
from .locks import lock_descriptor
from .safetensors import WEIGHTS_FILE

# The metadata in the header of our weights, by which a folder that Telescope wrote is recognised.
# "format" is needed by older versions of transformers.
WRITTEN_BY = {"format": "pt", "written_by": "telescope"}
OUR_FILES = {WEIGHTS_FILE, "config.json", "tokenizer.json", "tokenizer_config.json"}
DAY = 24 * 60 * 60  # seconds
BLOCK = 4096  # bytes of a trial file: a full disk takes an empty file


@contextmanager
def atomic_folder(
    path: str | os.PathLike[str], check_replaceable: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Yield a new folder to write into; rename it to `path` when the block ends, remove it after an
    error.

    A folder that was written this way before is replaced, in one step where the system can exchange
    two names: even if this process is killed, a reader finds either the old or the new folder.
    Leftovers of processes that were killed are removed first.

    check_replaceable  is called with the resolved path, and raises a ValueError where what exists
                       there must not be replaced; by default, anything but a model that Telescope
                       saved

    Raises a WriteError where the disk is full or cannot be written; what was there before is then
    unchanged.
    """
    place = resolve_path(path)
    with _explained(path):
        recover(place)
        (check_replaceable or _check_is_saved_model)(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        with _new_folder(place) as new:
            yield new
            # What is renamed before it is on disk may be empty after a power failure.
            _sync_folder(new)
            _put_in_place(new, place)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a new file to write; rename it to `path` when the block ends, remove it
    after an error.

    The new file has the name of the old one, in a folder next to it. What is no plain file, such as
    a pipe, is written where it is. Raises a WriteError where the disk is full or cannot be written;
    the old file is then unchanged.
    """
    place = resolve_path(path)
    with _explained(path):
        if place.exists() and not place.is_file():
            yield place
            return
        recover(place)
        with _new_folder(place) as folder:
            new = folder / place.name
            yield new
            if place.exists():
                shutil.copymode(place, new)
            sync_file(new)
            new.replace(place)
            sync_file(place.parent)
            folder.rmdir()


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a WriteError instead of an error of the system or of the safetensors library."""
    try:
        yield
    except WriteError:
        raise
    except (OSError, SafetensorError) as problem:
        raise WriteError(path, problem) from problem


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder next to `place`, locked so that no other process removes it; remove it
    after an error.
    """
    new, lock = _create_locked_folder(place)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _create_locked_folder(place: Path) -> tuple[Path, int | None]:
    """Return an empty folder next to `place`, and its lock (a file descriptor, or None).

    Until the folder is locked, another process may take it for abandoned and remove it: then try
    again.
    """
    while True:
        folder = _hidden_sibling(place, "new")
        folder.mkdir()
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        if folder.exists():
            return folder, lock


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path behind all symbolic links, so that writing to it keeps the links."""
    try:
        return Path(path).resolve()
    except RuntimeError:  # Python 3.11 and 3.12; an OSError since
        raise ValueError(f"{path} cannot be written: its links go in a circle") from None
    except OSError as problem:
        raise ValueError(f"{path} cannot be written: {describe_error(problem)}") from None


# ----------------------------------------------------------------------------------------- renaming


def _put_in_place(new: Path, place: Path) -> None:
    """Rename the folder `new` to `place`, and remove the folder that had this name before."""
    old = new  # after an exchange the old folder has the new one's name
    if not place.exists():
        new.rename(place)
    elif not _exchange(new, place):
        # Two renames: a process that is killed between them is helped by `recover`.
        old = _hidden_sibling(place, "replaced")
        place.rename(old)
        try:
            new.rename(place)
        except BaseException:
            if not place.exists():
                old.rename(place)
            raise
    # The new name must be on disk before the old folder is removed.
    sync_file(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return False where the system or the disk
    cannot.
    """
    first = os.fsencode(one)
    second = os.fsencode(other)
    failed = True
    with suppress(AttributeError, OSError):  # a C library without this function
        if sys.platform == "linux":
            # -100 is the C constant AT_FDCWD, 2 is RENAME_EXCHANGE.
            failed = ctypes.CDLL(None).renameat2(-100, first, -100, second, 2)
        elif sys.platform == "darwin":
            failed = ctypes.CDLL(None).renamex_np(first, second, 2)  # RENAME_SWAP
    return not failed


def _hidden_sibling(place: Path, use: str) -> Path:
    """Return a new hidden name in the parent folder of `place`; `use` is "new" or "replaced"."""
    return place.with_name(f".{place.name}.{use}-{token_hex(4)}")


# -------------------------------------------------------------------- leftovers of killed processes


def recover(place: Path) -> None:
    """Remove what killed processes left next to `place`; if one was killed between two renames,
    undo the first.

    Folders that another process is writing at this moment are left alone.
    """
    leftover = re.compile(rf"\.{re.escape(place.name)}\.(new|replaced)-[0-9a-f]{{8}}")
    try:
        found = [
            (match[1], place.with_name(name))
            for name in os.listdir(place.parent)
            if (match := leftover.fullmatch(name))
        ]
    except OSError:  # the parent folder does not exist yet
        return
    for use, folder in sorted(found, reverse=True):  # "replaced" before "new"
        if use == "replaced" and not place.exists():
            folder.rename(place)
        else:
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder that no process is writing: its lock is free or, where locks do not exist, it
    is a day old.
    """
    try:
        lock = _lock(folder)
        old = time() - folder.stat().st_mtime > DAY
    except OSError:  # locked, or gone
        return
    if lock is not None or old:
        shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder; see `lock_descriptor`."""
    try:
        return lock_descriptor(folder)
    except PermissionError:  # a folder that cannot be opened for reading cannot be locked
        return None


# -------------------------------------------------------------------------------------------- files


def write_json(file: Path, contents: object) -> None:
    """Write `contents` as indented JSON in UTF-8.

    A lone surrogate, which a token may hold and UTF-8 cannot encode, is written as a JSON escape
    such as \\ud800.
    """
    text = json.dumps(contents, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8", errors="backslashreplace")


def _check_is_saved_model(place: Path) -> None:
    """Raise a ValueError where `place` exists and is anything but an empty folder or a model that
    Telescope saved.
    """
    if place.is_dir():
        names = sorted(os.listdir(place))
        unknown = [name for name in names if name not in OUR_FILES]
        if unknown:
            raise ValueError(
                f"{place} holds {unknown[0]}, which would be lost; a model is saved into a new "
                "folder, or over one that holds nothing but a saved model"
            )
        if names and not _is_written_by_us(place / WEIGHTS_FILE):
            raise ValueError(
                f"{place} holds a model that Telescope did not write; save into another folder"
            )
    elif place.exists():
        raise ValueError(f"{place} is a file; a model is saved as a folder")


def _is_written_by_us(weights: Path) -> bool:
    """Return whether the metadata of a safetensors file says that Telescope wrote the file."""
    try:
        with safe_open(weights, "pt") as opened:
            return (opened.metadata() or {}).get("written_by") == WRITTEN_BY["written_by"]
    except (OSError, SafetensorError):
        return False


def _sync_folder(folder: Path) -> None:
    """Flush every file and the folder itself to disk, after giving the files the folder's
    permissions.

    The safetensors library makes its files readable by their owner only.
    """
    permissions = folder.stat().st_mode & 0o666
    for file in folder.iterdir():
        file.chmod(permissions)
        sync_file(file)
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush a file or a folder to disk; on Windows, which can flush neither a folder nor a file
    open for reading, do nothing.
    """
    if os.name == "nt":
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# -------------------------------------------------------------------------- before long work starts


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
        folder = place.parent
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise ValueError(f"{folder} is a file, not a folder")
        trial = folder / f".telescope.new-{token_hex(4)}"
        trial.mkdir()
        try:
            inside = trial / place.relative_to(folder)
            inside.parent.mkdir(parents=True, exist_ok=True)
            # The longest name that is needed: the one under which `atomic_folder` fills a folder.
            inside.with_name(f".{inside.name}.new-{token_hex(4)}").write_bytes(bytes(BLOCK))
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        free = shutil.disk_usage(folder).free
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{said} cannot be written: {describe_error(problem)}; name another place"
        ) from None
    if free < size:
        raise ValueError(
            f"{said} needs {format_bytes(size)}, and {format_bytes(free)} are free; make room, or "
            "name another place"
        )
