"""Read a corpus text by text: .txt, .jsonl and .parquet files, folders of them, or texts in memory.

Every text has a number, its place in the corpus, whether or not it can be read: the number does not
depend on how many processes share the corpus. No more than one part of a file is in memory.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..files import import_optional, read_texts
from .checksums import checksum, file_checksum

SUFFIXES = (".txt", ".jsonl", ".parquet")
PART = 1 << 16  # characters of a .txt file that are one text, and the rest of the line
Texts = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Text(NamedTuple):
    """One text of a corpus: its number, the file and line it comes from, and its characters or why
    it has none.
    """

    number: int
    source: str
    line: int
    text: str
    broken: str = ""

    @property
    def where(self) -> str:
        """The place of the text, for messages: "corpus.jsonl, line 17"."""
        return f"{self.source}, line {self.line}" if self.line else self.source


class Corpus:
    """The texts of files, folders or a list, read again for each iteration.

    Raise a ValueError if there is no such file, if a folder holds no file that can be read, or if
    there is no text.
    """

    def __init__(self, texts: Texts, *, column: str = "text") -> None:
        self.column = column
        self.listed: list[str] | None = None
        self.files: list[Path] = []
        given = [texts] if isinstance(texts, str | os.PathLike) else [*texts]
        if not given:
            raise ValueError("texts=[] is an empty corpus; pass texts, or files with texts")
        if not isinstance(texts, str | os.PathLike) and all(
            isinstance(text, str) for text in given
        ):
            self.listed = [str(text) for text in given]
            self._check_not_paths(self.listed)
        else:
            self.files = [file for path in given for file in _files(Path(path))]
        self.size = (
            sum(map(len, self.listed))
            if self.listed
            else sum(file.stat().st_size for file in self.files)
        )
        """Characters of a list, or bytes of the files."""
        if not self.size:
            raise ValueError("the corpus is empty: its texts have no characters")

    @staticmethod
    def _check_not_paths(texts: Sequence[str]) -> None:
        for text in texts[:8]:
            if len(text) < 1000 and text.endswith(SUFFIXES) and Path(text).exists():
                raise ValueError(
                    f'texts=["{text}"] is a text of these letters; Path("{text}") is the file'
                )

    def describe(self) -> list[object]:
        """Return what identifies the corpus, for JSON: names, sizes and checksums of files, or that
        of a list.
        """
        if self.listed is not None:
            return [f"{len(self.listed)} texts", checksum(self.listed)]
        return [[str(file), file.stat().st_size, file_checksum(file)] for file in self.files]

    def __iter__(self) -> Iterator[Text]:
        for number, (source, line, text, broken) in enumerate(self._read()):
            yield Text(number, source, line, text, broken)

    def _read(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield the file, the line, the text, and why the text is broken."""
        if self.listed is not None:
            yield from ((f"text {i}", 0, text, "") for i, text in enumerate(self.listed))
        for file in self.files:
            for line, text, broken in READERS[file.suffix.lower()](file, self.column):
                yield str(file), line, text, broken


def _files(path: Path) -> list[Path]:
    """Return the file, or the files of a folder that can be read, sorted by name."""
    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not found:
            raise ValueError(f"{path} holds no texts: no file in it ends in {', '.join(SUFFIXES)}")
        return found
    if not path.exists():
        raise ValueError(
            f"{path} does not exist; texts are files ending in {', '.join(SUFFIXES)}, or folders "
            "of them"
        )
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise ValueError(f"{path} cannot be read as texts; files end in {', '.join(SUFFIXES)}")
    return [path]


Line = tuple[int, str, str]  # the line, the text, and why the text is broken


def _read_txt(file: Path, column: str) -> Iterator[Line]:
    """Yield parts of a file, each of whole lines."""
    first = 1
    part = []
    size = 0
    for number, (line, broken) in enumerate(_lines(file), 1):
        if broken:
            yield number, "", broken
            continue
        part.append(line)
        size += len(line)
        if size >= PART:
            yield first, "".join(part), ""
            first = number + 1
            part = []
            size = 0
    if size:
        yield first, "".join(part), ""


def _read_jsonl(file: Path, column: str) -> Iterator[Line]:
    """Yield the text of each line; blank lines are left out."""
    for number, (line, broken) in enumerate(_lines(file), 1):
        if not broken and not line.strip():
            continue
        text = ""
        if not broken:
            try:
                record = json.loads(line)
                value = record.get(column) if isinstance(record, dict) else record
                text, broken = (
                    (value, "")
                    if isinstance(value, str)
                    else ("", f'has no text in the field "{column}"')
                )
            except (ValueError, RecursionError) as problem:
                broken = f"is not JSON: {problem}"
        yield number, text, broken


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each line of a file, or why it cannot be read; a line has at most 2^24 bytes."""
    with file.open("rb") as opened:
        while line := opened.readline(1 << 24):
            try:
                yield line.decode("utf-8"), ""
            except UnicodeDecodeError:
                yield "", "is not UTF-8"


def _read_parquet(file: Path, column: str) -> Iterator[Line]:
    """Yield the text of each row; where the file is damaged, the reason in place of the first row
    that is lost.
    """
    import_optional(
        "pyarrow.parquet", "a .parquet file", "atlas"
    )  # its absence is no damage, and ends the run
    row = 0
    try:
        for row, (text,) in enumerate(read_texts(file, [column]), 1):
            yield row, text or "", "" if text is not None else "has no text"
    except ValueError as problem:
        yield row + 1 if row else 0, "", str(problem)


READERS = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}


def text_at(source: str, line: int, column: str = "text") -> str | None:
    """Return the text at a line of a file of a corpus; None where there is no such file or line any
    more.
    """
    file = Path(source)
    if file.suffix.lower() not in READERS or not file.is_file():
        return None
    try:
        for number, text, _ in READERS[file.suffix.lower()](file, column):
            if number >= line:
                return text if number == line else None
    except (OSError, ValueError):
        return None
    return None


def shards(texts: Iterable[Text], characters: int) -> Iterator[list[Text]]:
    """Yield runs of neighbouring texts of about so many characters: the unit of work, of saving and
    of resuming.
    """
    shard: list[Text] = []
    size = 0
    for text in texts:
        shard.append(text)
        size += len(text.text) + 16  # so that a shard of broken or empty texts ends too
        if size >= characters:
            yield shard
            shard = []
            size = 0
    if shard:
        yield shard
