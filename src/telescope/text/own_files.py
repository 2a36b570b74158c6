"""Read a user's own data: texts by the names of columns, from TSV, CSV, JSON lines, Parquet and
plain text.

A recipe names files in its [data] table, instead of a corpus:

    train = "pairs.tsv"         .tsv, .csv, .jsonl, .json or .parquet, the first three also with .gz
                                behind the name
    train = "train.{}"          two plain texts, line by line: train.en and train.de for the columns
                                en and de
    train = "novel.txt"         running text, for a language model

Paths are relative to the working directory, or to the folder given by --data.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path

from ..files import tables as parquet
from ..words import closest_name, hint, one_line
from .corpus_files import MAX_BYTES, Split, check_characters, parse_json, read_lines, read_text

TABLES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
PLAIN = (".txt", ".text", ".md")
BOTH_SIDES = "{}"  # in the name of two plain texts, in place of the column


def find_file(data: Path, name: str) -> Path:
    """Return the file of this name, in the working directory or in the folder of all data.

    Raises a ValueError that suggests the nearest name where there is no such file.
    """
    places = [Path(name).expanduser(), data / name]
    for place in places:
        if place.is_file() or place.with_name(f"{place.name}.gz").is_file():
            return place
    for place in places:
        if place.is_dir():
            raise ValueError(f"{place} is a folder; name a file in it")
    folder = places[0].parent
    others = (file.name for file in folder.iterdir() if file.is_file()) if folder.is_dir() else ()
    nearest = closest_name(places[0].name, others)
    suggestion = f'; did you mean "{folder / nearest}"?' if nearest else ""
    raise ValueError(f"there is no file {name}, here or in {data}{suggestion}")


def read_rows(
    data: Path, name: str, columns: Sequence[str], left_out: Counter[str] | None = None
) -> list[tuple[str, ...]]:
    """Return the texts of these columns, a tuple for each row; rows in which one of them is empty
    are left out.

    name      a table, or two plain texts with {} in the place of the column's name
    columns   names in the header of the table; "1", "2", ... for a table without a header
    left_out  its entry "empty" is increased by the number of rows that are left out

    Raises a ValueError for a missing file or column, a line that cannot be read, and a file without
    texts.
    """
    if BOTH_SIDES in name:
        rows: Iterable[tuple[str, ...]] = _read_parallel_texts(data, name, columns)
    else:
        file = find_file(data, name)
        rows = _read_table(file, columns)
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
                return parquet.column_names(file)
            except ValueError as problem:
                raise ValueError(f"{file} {problem}") from None
        case ".jsonl" | ".json":
            _, record = next(_read_objects(file), ("", {}))
            return list(record) if isinstance(record, dict) else []
        case _:
            return []


def split_of(text: str, held_out: int) -> Split:
    """Return "validation" for `held_out` % of all texts, chosen by a hash, so that equal texts stay
    together.
    """
    part = (
        int.from_bytes(sha256(" ".join(text.casefold().split()).encode()).digest()[:8], "big")
        % 10_000
    )
    return "validation" if part < 100 * held_out else "train"


def _ending(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _read_table(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    match _ending(file):
        case ".tsv" | ".csv":
            return _read_separated(file, columns)
        case ".jsonl" | ".json":
            return _read_json(file, columns)
        case ".parquet":
            return _read_parquet(file, columns)
        case ending:
            raise ValueError(f'{file} ends with "{ending}"; tables are {", ".join(TABLES)}')


def _read_cells(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line. In TSV a quote is a character; in CSV it encloses
    a cell.
    """
    tabs = _ending(file) == ".tsv"
    text = read_text(file).removeprefix("\ufeff")
    reader = (
        csv.reader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
        if tabs
        else csv.reader(StringIO(text, newline=""), strict=True)
    )
    try:
        for cells in reader:
            if cells:
                yield f"{file}, line {reader.line_num}", cells
    except csv.Error as problem:
        raise ValueError(
            f"{file}, line {reader.line_num}: is not {'TSV' if tabs else 'CSV'}: {problem}"
        ) from None


def _read_separated(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    lines = _read_cells(file)
    place, header = next(lines, ("", []))
    if not header:
        return
    numbered = all(column.isdecimal() and int(column) >= 1 for column in columns)
    if numbered and not set(columns) <= set(header):
        where = [int(column) - 1 for column in columns]
        lines = chain([(place, header)], lines)
    else:
        where = [_position(file, column, header) for column in columns]
    for place, cells in lines:
        if len(cells) <= max(where):
            raise ValueError(
                f"{place}: has {len(cells)} columns, and column {max(where) + 1} is needed"
            )
        yield tuple(cells[i] for i in where)


def _position(file: Path, column: str, header: Sequence[str]) -> int:
    if column not in header:
        there = f'{file} has no column "{column}" (without a header, columns are "1", "2", ...)'
        raise ValueError(one_line(f"{there}; {hint(column, header)}"))
    return list(header).index(column)


def _read_objects(file: Path) -> Iterator[tuple[str, object]]:
    if _ending(file) == ".jsonl":
        for number, line in enumerate(read_lines(file), 1):
            if line.strip():
                yield f"{file}, line {number}", parse_json(line, f"{file}, line {number}")
        return
    parsed = parse_json(read_text(file), str(file))
    if not isinstance(parsed, list):
        raise ValueError(f"{file}: is not a list of records")
    yield from ((f"{file}, record {number}", record) for number, record in enumerate(parsed, 1))


def _read_json(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for place, record in _read_objects(file):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: is not an object with fields by name")
        for column in columns:
            if column not in record:
                raise ValueError(
                    one_line(f'{place}: has no field "{column}"; {hint(column, record)}')
                )
            if not isinstance(record[column], str):
                raise ValueError(f'{place}: "{column}" is no text')
            check_characters(record[column], place, column)
        yield tuple(record[column] for column in columns)


def _read_parquet(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    size = 0
    try:
        for row in parquet.read_texts(file, columns):
            cells = tuple(cell or "" for cell in row)
            size += sum(map(len, cells))  # a small file may unpack to any size, like a .gz
            if size > MAX_BYTES:
                raise ValueError(
                    f"holds more than {MAX_BYTES:,} characters; a file of data holds at most so "
                    "many"
                )
            yield cells
    except ValueError as problem:
        raise ValueError(f"{file} {problem}") from None


def _read_parallel_texts(
    data: Path, name: str, columns: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    files = [find_file(data, name.replace(BOTH_SIDES, column)) for column in columns]
    lines = [read_lines(file) for file in files]
    if len({len(each) for each in lines}) > 1:
        counts = ", ".join(
            f"{file} has {len(each):,} lines" for file, each in zip(files, lines, strict=True)
        )
        raise ValueError(f"{counts}; equal line numbers should belong together")
    yield from zip(*lines, strict=True)
