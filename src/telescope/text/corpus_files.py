"""Read the files of corpora: find their folder, and report a missing or broken file in one
sentence.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
MAX_BYTES = 1 << 28  # of an unpacked file: a small .gz may unpack to any size
LONE_SURROGATE = re.compile("[\\ud800-\\udfff]")  # in a str of Python every surrogate is a lone one
DEFAULT_FOLDERS = (
    "data",
    "shared/data",
    "../shared/data",
)  # in the current folder, or beside the checkout


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all data: the given one, else that of TELESCOPE_DATA, else a default one
    that exists.
    """
    named = given or os.environ.get("TELESCOPE_DATA")
    if named:
        return Path(named)
    return next(
        (Path(folder) for folder in DEFAULT_FOLDERS if Path(folder).is_dir()),
        Path(DEFAULT_FOLDERS[0]),
    )


def corpus_folder(data: Path, name: str, source: str) -> Path:
    """Return the folder of a corpus; if it is missing, raise a ValueError that names `source`,
    where to get it.
    """
    if not (data / name).is_dir():
        raise ValueError(
            f"there is no {data / name}; get it from {source}, and name its parent folder by "
            "--data or TELESCOPE_DATA"
        )
    return data / name


def read_text(file: Path) -> str:
    """Return the UTF-8 text of a file, or of its packed version with .gz behind the name."""
    packed = file.with_name(f"{file.name}.gz")
    path = packed if packed.exists() else file
    if not path.exists():
        raise ValueError(f"there is no {file}, and no {packed.name} beside it")
    if not path.is_file():
        raise ValueError(f"{path} cannot be read: it is not a file")  # opening a pipe would block
    try:
        with gzip.open(path) if path is packed else path.open("rb") as opened:
            contents = opened.read(MAX_BYTES + 1)
        if len(contents) > MAX_BYTES:
            raise ValueError(
                f"{path} holds more than {MAX_BYTES:,} bytes of text; a corpus file holds at most "
                "so many"
            )
        return contents.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:  # truncated, or not packed at all
        raise ValueError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{file}, line {line}: is not UTF-8") from None


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file, split at newlines only: str.splitlines would split at other
    characters too.
    """
    text = read_text(file)
    return text.removesuffix("\n").split("\n") if text else []


def read_columns(file: Path, count: int) -> Iterator[list[str]]:
    """Yield the cells of each line of a tab-separated table; raise a ValueError if a line has not
    `count` of them.
    """
    for number, line in enumerate(read_lines(file), 1):
        cells = line.split("\t")
        if len(cells) != count:
            raise ValueError(
                f"{file}, line {number}: has {len(cells)} columns separated by tabs, not {count}"
            )
        yield cells


def read_records(file: Path, *fields: str) -> Iterator[tuple[str, ...]]:
    """Yield these text fields of each JSON object of a file: one object a line (.jsonl), or a list
    of them (.json).
    """
    if file.suffix == ".jsonl":
        numbered_lines = ((f"{file}, line {i}", line) for i, line in enumerate(read_lines(file), 1))
        numbered = ((where, parse_json(line, where)) for where, line in numbered_lines)
    else:
        parsed = parse_json(read_text(file), str(file))
        if not isinstance(parsed, list):
            raise ValueError(f"{file}: is not a list of records")
        numbered = ((f"{file}, record {i}", record) for i, record in enumerate(parsed, 1))
    for where, record in numbered:
        values = [record.get(field) for field in fields] if isinstance(record, dict) else []
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) < len(fields):
            raise ValueError(f"{where}: is not an object with the texts {' and '.join(fields)}")
        for field, text in zip(fields, texts, strict=True):
            check_characters(text, where, field)
        yield texts


def read_parallel(left: Path, right: Path) -> list[tuple[str, str]]:
    """Return the pairs of lines of two files, in which equal line numbers belong together."""
    left_lines = read_lines(left)
    right_lines = read_lines(right)
    if len(left_lines) != len(right_lines):
        raise ValueError(
            f"{left} has {len(left_lines):,} lines, {right} {len(right_lines):,}; they should be "
            "the same sentences"
        )
    return list(zip(left_lines, right_lines, strict=True))


def check_characters(text: str, where: str, field: str) -> None:
    """Raise a ValueError that begins with `where` if a text has half of a character, as JSON can
    escape it: \\ud800.
    """
    half = LONE_SURROGATE.search(text)
    if half is not None:
        raise ValueError(
            f'{where}: "{field}" has \\u{ord(half[0]):04x}, which is half of a character; write '
            "the whole character, "
            "or remove the half"
        )


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text; raise a ValueError that begins with `where`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: is JSON that is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None
