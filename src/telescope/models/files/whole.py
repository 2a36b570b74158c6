"""Writing a folder whole or not at all: it is filled beside its place, and takes it only when everything is on disk."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from safetensors import SafetensorError, safe_open

from .tensors import SINGLE

# In the header of the weights, by which a folder of ours is known. Of a "format" older versions of transformers ask.
WRITTEN_BY = {"format": "pt", "written_by": "telescope"}
OUR_FILES = {SINGLE, "config.json", "tokenizer.json", "tokenizer_config.json"}


@contextmanager
def written_whole(path: str | os.PathLike[str], must_be_ours: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A new folder to write into; when the block ends it becomes `path`, and after an error it is gone.

    A folder that was written this way before is replaced. Anything else that is there is left alone: a ValueError.
    """
    try:
        place = Path(path).resolve()  # through links, so that they stay
    except (OSError, RuntimeError):
        raise ValueError(f"{path} cannot be written: its links go in a circle") from None
    (must_be_ours or _must_be_ours)(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside, replaced = (place.with_name(f".{place.name}.{use}-{token_hex(4)}") for use in ("new", "replaced"))
    beside.mkdir()
    try:
        yield beside
        _onto_disk(beside)
        if place.exists():
            place.rename(replaced)
        try:
            beside.rename(place)
        except BaseException:
            if replaced.exists() and not place.exists():
                replaced.rename(place)
            raise
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sync(place.parent)
    shutil.rmtree(replaced, ignore_errors=True)


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
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
