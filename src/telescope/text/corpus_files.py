"""Where data lie, and their lines: a set that is missing or broken is one sentence."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
LARGEST = 1 << 28  # bytes of a file, unpacked: a small one may unpack to any size
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
    there = packed if packed.exists() else file
    if not there.exists():
        raise ValueError(f"there is no {file}, and no {packed.name} beside it")
    if not there.is_file():
        raise ValueError(f"{there} cannot be read: it is not a file")  # a pipe would be waited for
    try:
        with gzip.open(there) if there is packed else there.open("rb") as opened:
            contents = opened.read(LARGEST + 1)
        if len(contents) > LARGEST:
            raise ValueError(f"{there} holds more than {LARGEST:,} bytes of text, more than a set of data does")
        return contents.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:  # cut off, or not packed at all
        raise ValueError(f"{there} cannot be read: {error}") from None
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
        numbered = ((f"{file}, line {i}", parsed(line, f"{file}, line {i}")) for i, line in enumerate(lines(file), 1))
    else:
        several = parsed(read(file), str(file))
        if not isinstance(several, list):
            raise ValueError(f"{file}: is not a list of records")
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


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: is JSON that is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None
