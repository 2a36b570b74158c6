"""Where data lie, and their lines: a set that is missing or broken is one sentence."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
USUAL = ("data", "shared/data", "../shared/data")  # in the current folder, or beside the checkout


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder that was given, or the one that TELESCOPE_DATA names, or a usual one that exists."""
    named = given or os.environ.get("TELESCOPE_DATA")
    if named:
        return Path(named)
    return next((Path(place) for place in USUAL if Path(place).is_dir()), Path(USUAL[0]))


def set_folder(data: Path, name: str, source: str) -> Path:
    """The folder of one set; `source` is where it can be had."""
    if not (data / name).is_dir():
        raise ValueError(f"there is no {data / name}; get it from {source}, and say by --data or TELESCOPE_DATA where")
    return data / name


def read(file: Path) -> str:
    """The text of a file, or of the same file with .gz behind its name."""
    packed = file.with_name(f"{file.name}.gz")
    try:
        contents = gzip.decompress(packed.read_bytes()) if packed.exists() else file.read_bytes()
        return contents.decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"there is no {file}, and no {packed.name} beside it") from None
    except (OSError, EOFError) as error:  # cut off, or not packed at all
        raise ValueError(f"{packed if packed.exists() else file} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{file}, line {line}: is not UTF-8") from None


def lines(file: Path) -> list[str]:
    """By newlines alone: a caption may hold any other character that Python would end a line at."""
    text = read(file)
    return text.removesuffix("\n").split("\n") if text else []


def columns(file: Path, count: int) -> Iterator[list[str]]:
    """The lines of a table whose columns are separated by tabs."""
    for number, line in enumerate(lines(file), 1):
        cells = line.split("\t")
        if len(cells) != count:
            raise ValueError(f"{file}, line {number}: has {len(cells)} columns separated by tabs, not {count}")
        yield cells


def records(file: Path, *fields: str) -> Iterator[tuple[str, ...]]:
    """Texts of JSON objects, one of them a line (.jsonl) or all in one list (.json)."""
    if file.suffix == ".jsonl":
        numbered = ((f"{file}, line {i}", _json(line, f"{file}, line {i}")) for i, line in enumerate(lines(file), 1))
    else:
        several = _json(read(file), str(file))
        numbered = ((f"{file}, record {i}", record) for i, record in enumerate(several, 1))
    for where, record in numbered:
        texts = [record.get(field) for field in fields] if isinstance(record, dict) else []
        said = tuple(text for text in texts if isinstance(text, str))
        if len(said) < len(fields):
            raise ValueError(f"{where}: is not an object that says {' and '.join(fields)}")
        yield said


def side_by_side(left: Path, right: Path) -> list[tuple[str, str]]:
    """Two files in which the same line is the same sentence."""
    ours, theirs = lines(left), lines(right)
    if len(ours) != len(theirs):
        raise ValueError(f"{left} has {len(ours):,} lines, {right} {len(theirs):,}; they should be the same sentences")
    return list(zip(ours, theirs, strict=True))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None
