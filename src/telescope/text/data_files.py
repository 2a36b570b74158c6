"""Read files of texts, of corpora and of a user's own, and report a missing or broken file in one
sentence: TSV, CSV, JSON lines, Parquet and plain text, by the names of columns.

A recipe names files in its [data] table, instead of a corpus:

    train = "pairs.tsv"         .tsv, .csv, .jsonl, .json or .parquet, the first three also with .gz
                                behind the name
    train = "train.{}"          two plain texts, line by line: train.en and train.de for the columns
                                en and de
    train = "novel.txt"         running text, for a language model

Paths are relative to the working directory, or to the folder given by --data.
"""

import csv
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ..files import paths, tables
from ..words import hint, one_line

Split = Literal["train", "validation", "test"]
Row = tuple[str, ...]  # one text for each column

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
PLAIN = (".txt", ".text", ".md")
BOTH_SIDES = "{}"  # in the name of two plain texts, in place of the column
MAX_BYTES = 1 << 28  # of an unpacked file: a small .gz or .parquet may unpack to any size
LONE_SURROGATE = re.compile("[\\ud800-\\udfff]")  # in a str of Python every surrogate is a lone one
# In the current folder, or beside the checkout.
DEFAULT_FOLDERS = ("data", "shared/data", "../shared/data")


# ------------------------------------------------------------------------------ where the data lies


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all data: the given one, else that of TELESCOPE_DATA, else a default one
    that exists.
    """
    named = given or os.environ.get("TELESCOPE_DATA")
    if named:
        return Path(named)
    return Path(next(filter(os.path.isdir, DEFAULT_FOLDERS), DEFAULT_FOLDERS[0]))


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


def find_file(data: Path, name: str) -> Path:
    """Return the file of this name, in the working directory or in the folder of all data.

    Raises a ValueError that suggests the nearest name where there is no such file.
    """
    places = [Path(name).expanduser(), data / name]
    for place in places:
        if place.is_file() or place.with_name(f"{place.name}.gz").is_file():
            return place
    # A folder of this name is the likelier mistake than a misspelt file.
    for place in places:
        if place.is_dir():
            raise ValueError(f"{place} is a folder; name a file in it")
    raise ValueError(f"there is no file {name}, here or in {data}{paths.suggest_name(places[0])}")


# ------------------------------------------------------------------------------ what a recipe reads


def read_rows(
    data: Path, name: str, columns: Sequence[str], left_out: Counter[str] | None = None
) -> list[Row]:
    """Return the texts of these columns, a tuple for each row; rows in which one of them is empty
    are left out.

    name      a table, or two plain texts with {} in the place of the column's name
    columns   names in the header of the table; "1", "2", ... for a table without a header
    left_out  its entry "empty" is increased by the number of rows that are left out

    Raises a ValueError for a missing file or column, a line that cannot be read, and a file without
    texts.
    """
    if BOTH_SIDES in name:
        files = [find_file(data, name.replace(BOTH_SIDES, column)) for column in columns]
        rows: Iterable[Row] = read_parallel(*files)
    else:
        rows = _read_table(find_file(data, name), columns)
    # White space around a text is no part of it, and a row of spaces is empty.
    stripped = [tuple(cell.strip() for cell in row) for row in rows]
    texts = [row for row in stripped if all(row)]
    if left_out is not None:
        left_out["empty"] += len(stripped) - len(texts)
    if not texts:
        wanted = " and ".join(f'"{column}"' for column in columns)
        raise ValueError(f"{name} is empty: it has no row with {wanted}")
    return texts


def read_running_text(
    data: Path, name: str, column: str | None, left_out: Counter[str] | None = None
) -> str:
    """Return one long text: a plain text, or one column of a table, with a line break after each
    row.

    left_out  as in `read_rows`
    """
    file = find_file(data, name)
    if _ending(file) in TABLES:
        if column is None:
            raise ValueError(f'{name} is a table; text = "..." names its column of texts')
        return "".join(f"{text}\n" for (text,) in read_rows(data, name, (column,), left_out))
    if column is not None:
        raise ValueError(
            f'{name} is plain text, which has no column text="{column}"; leave `text` out'
        )
    text = read_text(file)
    if not text.strip():
        raise ValueError(f"{name} is empty: it has no text")
    return text


def column_names(data: Path, name: str) -> list[str]:
    """Return the columns of a table, from its header or its first record."""
    file = find_file(data, name)
    match _ending(file):
        case ".tsv" | ".csv":
            return next(_read_cells(file), ("", []))[1]
        case ".parquet":
            try:
                return tables.column_names(file)
            except ValueError as problem:
                raise ValueError(f"{file} {problem}") from None
        case ".jsonl" | ".json":
            _, record = next(_read_objects(file), ("", {}))
            return list(record) if isinstance(record, dict) else []
    return []


def split_of(text: str, held_out: int) -> Split:
    """Return "validation" for `held_out` % of all texts, chosen by a hash, so that equal texts stay
    together.
    """
    part = hashed(" ".join(text.casefold().split())) % 10_000
    return "validation" if part < 100 * held_out else "train"


def hashed(text: str) -> int:
    """Return a number of 64 bits that is the same for equal texts, on every machine."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


# -------------------------------------------------------------------------------- formats of tables


def _ending(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _read_table(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    match _ending(file):
        case ".tsv" | ".csv":
            return _read_separated(file, columns)
        case ".jsonl" | ".json":
            return read_records(file, *columns)
        case ".parquet":
            return _read_parquet(file, columns)
        case ending:
            raise ValueError(f'{file} ends with "{ending}"; tables are {", ".join(TABLES)}')


def _read_cells(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line. In TSV a quote is a character; in CSV it encloses
    a cell.
    """
    # No quoting in TSV: a single quote in a text would swallow the lines after it.
    tabs = _ending(file) == ".tsv"
    # Excel begins a file with a mark of its encoding.
    text = read_text(file).removeprefix("\ufeff")
    if tabs:
        reader = csv.reader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield f"{file}, line {reader.line_num}", cells
    except csv.Error as problem:
        kind = "TSV" if tabs else "CSV"
        raise ValueError(f"{file}, line {reader.line_num}: is not {kind}: {problem}") from None


def _read_separated(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    lines = _read_cells(file)
    place, header = next(lines, ("", []))
    if not header:
        return

    # "1" and "2" are places where no column of the header has these names.
    numbered = all(column.isdecimal() and int(column) >= 1 for column in columns)
    if numbered and not set(columns) <= set(header):
        where = [int(column) - 1 for column in columns]
        lines = chain([(place, header)], lines)
    else:
        for column in columns:
            if column not in header:
                raise ValueError(
                    one_line(
                        f'{file} has no column "{column}" (without a header, columns are "1", '
                        f'"2", ...); {hint(column, header)}'
                    )
                )
        where = [header.index(column) for column in columns]

    for place, cells in lines:
        if len(cells) <= max(where):
            raise ValueError(
                f"{place}: has {len(cells)} columns, and column {max(where) + 1} is needed"
            )
        yield tuple(cells[i] for i in where)


def read_records(file: Path, *fields: str) -> Iterator[Row]:
    """Yield these text fields of each JSON object of a file: one object a line (.jsonl), or a list
    of them (.json).
    """
    for place, record in _read_objects(file):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: is not an object with the texts {' and '.join(fields)}")
        for field in fields:
            if field not in record:
                raise ValueError(
                    one_line(f'{place}: has no field "{field}"; {hint(field, record)}')
                )
            text = record[field]
            if not isinstance(text, str):
                raise ValueError(f'{place}: "{field}" is no text')
            # JSON can escape half of a character, \ud800, which no tokenizer takes.
            half = LONE_SURROGATE.search(text)
            if half is not None:
                raise ValueError(
                    f'{place}: "{field}" has \\u{ord(half[0]):04x}, which is half of a character; '
                    "write the whole character, or remove the half"
                )
        yield tuple(record[field] for field in fields)


def _read_objects(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each record."""
    if _ending(file) == ".jsonl":
        for number, line in enumerate(read_lines(file), 1):
            if line.strip():
                place = f"{file}, line {number}"
                yield place, parse_json(line, place)
        return
    parsed = parse_json(read_text(file), str(file))
    if not isinstance(parsed, list):
        raise ValueError(f"{file}: is not a list of records")
    yield from ((f"{file}, record {number}", record) for number, record in enumerate(parsed, 1))


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text; raise a ValueError that begins with `where`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: is JSON that is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None


def _read_parquet(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    size = 0
    try:
        for row in tables.read_texts(file, columns):
            cells = tuple(cell or "" for cell in row)
            size += sum(map(len, cells))
            if size > MAX_BYTES:
                raise ValueError(
                    f"holds more than {MAX_BYTES:,} characters; a file of data holds at most so "
                    "many"
                )
            yield cells
    except ValueError as problem:
        raise ValueError(f"{file} {problem}") from None


# --------------------------------------------------------------------------------------- plain text


def read_text(file: Path) -> str:
    """Return the UTF-8 text of a file, or of its packed version with .gz behind the name."""
    packed = file.with_name(f"{file.name}.gz")
    path = packed if packed.exists() else file
    if not path.exists():
        raise ValueError(f"there is no {file}, and no {packed.name} beside it")
    if not path.is_file():
        raise ValueError(f"{path} cannot be read: it is not a file")  # opening a pipe would block
    try:
        # One byte more than is allowed: longer files are noticed without being read.
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


def read_parallel(*files: Path) -> Iterator[Row]:
    """Return the lines of several files in which equal line numbers belong together."""
    lines = [read_lines(file) for file in files]
    if len({len(each) for each in lines}) > 1:
        counts = ", ".join(
            f"{file} has {len(each):,} lines" for file, each in zip(files, lines, strict=True)
        )
        raise ValueError(f"{counts}; equal line numbers should belong together")
    return zip(*lines, strict=True)
