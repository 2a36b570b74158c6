"""Writing a folder whole or not at all: it is filled beside its place, and takes it only when everything is on disk."""

import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from time import time

from safetensors import SafetensorError, safe_open

from .safetensors import SINGLE

# In the header of the weights, by which a folder of ours is known. Of a "format" older versions of transformers ask.
WRITTEN_BY = {"format": "pt", "written_by": "telescope"}
OUR_FILES = {SINGLE, "config.json", "tokenizer.json", "tokenizer_config.json"}
DAY = 24 * 60 * 60  # seconds


@contextmanager
def written_whole(path: str | os.PathLike[str], must_be_ours: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A new folder to write into; when the block ends it becomes `path`, and after an error it is gone.

    A folder that was written this way before is replaced, in one step where the system can exchange two names: a reader
    always finds one of the two, whenever this process is killed. Anything else that is there is left alone: a
    ValueError. What earlier processes were killed before they could remove is removed.
    """
    place = resolved(path)
    recover(place)
    (must_be_ours or _must_be_ours)(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside, lock = _new_folder(place)
    try:
        yield beside
        _onto_disk(beside)
        _put_in_place(beside, place)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _new_folder(place: Path) -> tuple[Path, int | None]:
    """An empty folder beside a place, and its lock, until which another process may take it for abandoned."""
    while True:
        folder = _beside(place, "new")
        folder.mkdir()
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        if folder.exists():
            return folder, lock


def resolved(path: str | os.PathLike[str]) -> Path:
    """The place that a path names, through links, so that they stay."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):
        raise ValueError(f"{path} cannot be written: its links go in a circle") from None


# ------------------------------------------------------------------------------------------------------ taking a place


def _put_in_place(new: Path, place: Path) -> None:
    """Give the folder `new` the name `place`, and remove the folder that had this name before."""
    old = new
    if not place.exists():
        new.rename(place)
    elif not _exchange(new, place):
        old = _beside(place, "replaced")
        place.rename(old)
        try:
            new.rename(place)
        except BaseException:
            if not place.exists():
                old.rename(place)
            raise
    _sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False where this system or this disk cannot."""
    names = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "linux":
            here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
            return bool(ctypes.CDLL(None).renameat2(here, names[0], here, names[1], exchange) == 0)
        if sys.platform == "darwin":
            return bool(ctypes.CDLL(None).renamex_np(*names, 2) == 0)  # RENAME_SWAP
    except (AttributeError, OSError):  # a C library that does not have it
        pass
    return False


def _beside(place: Path, use: str) -> Path:
    """Return a hidden name in the same folder that does not exist yet."""
    return place.with_name(f".{place.name}.{use}-{token_hex(4)}")


# ---------------------------------------------------------------------------------- what a killed process leaves behind


def recover(place: Path) -> None:
    """Remove what killed processes left beside a place; if one was killed between two renames, undo the first.

    What another process is writing at this moment is left alone.
    """
    left = re.compile(rf"\.{re.escape(place.name)}\.(new|replaced)-[0-9a-f]{{8}}")
    try:
        found = [
            (match[1], place.with_name(name)) for name in os.listdir(place.parent) if (match := left.fullmatch(name))
        ]
    except OSError:  # there is no such folder yet
        return
    for use, folder in sorted(found, reverse=True):  # what was replaced first
        if use == "replaced" and not place.exists():
            folder.rename(place)
        else:
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Return whether no process writes there: its lock is free or, where folders cannot be locked, it is a day old."""
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
    """The file descriptor that keeps a folder locked until it is closed, at the latest when the process ends.

    None where this system or this disk cannot lock folders, a BlockingIOError where another process has the lock.
    """
    try:
        fcntl = import_module("fcntl")
        opened = os.open(folder, os.O_RDONLY)
    except (ImportError, PermissionError):  # Windows
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise
    except OSError:  # a disk over the network
        os.close(opened)
        return None
    return opened


# ---------------------------------------------------------------------------------------------------------------- files


def write_json(file: Path, contents: object) -> None:
    """Half of a character, which UTF-8 cannot have and a token may be, is written as JSON's own \\ud800."""
    text = json.dumps(contents, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8", errors="backslashreplace")


def _must_be_ours(place: Path) -> None:
    if place.is_dir():
        there = sorted(os.listdir(place))
        strange = [name for name in there if name not in OUR_FILES]
        if strange:
            raise ValueError(
                f"{place} holds {strange[0]}, which would be lost; a model is saved into a new folder, "
                "or over one that holds nothing but a saved model"
            )
        if there and not _written_by_us(place / SINGLE):
            raise ValueError(f"{place} holds a model that Telescope did not write; save into another folder")
    elif place.exists():
        raise ValueError(f"{place} is a file; a model is saved as a folder")


def _written_by_us(weights: Path) -> bool:
    try:
        with safe_open(weights, "pt") as opened:
            return (opened.metadata() or {}).get("written_by") == WRITTEN_BY["written_by"]
    except (OSError, SafetensorError):
        return False


def _onto_disk(folder: Path) -> None:
    """Every file and the folder itself, with the rights that a file here usually has."""
    usual = folder.stat().st_mode & 0o666  # the safetensors library makes its files private
    for file in folder.iterdir():
        file.chmod(usual)
        _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    if os.name == "nt":  # Windows syncs no folder, and no file that is open for reading
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
