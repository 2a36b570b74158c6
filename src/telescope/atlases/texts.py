"""Read a corpus text by text, cut it into shards and sequences of tokens, and pad these into
batches.

A corpus is .txt, .jsonl and .parquet files, folders of them, or texts in memory. Every text has a
number, its place in the corpus, whether or not it can be read: the number does not depend on how
many processes share the corpus. No more than one part of a file is in memory.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ..files import import_optional, panics_as_errors, read_texts
from .fingerprint import checksum, file_checksum

SUFFIXES = (".txt", ".jsonl", ".parquet")
PART = 1 << 16  # characters of a .txt file that are one text, and the rest of the line
COLUMN = "text"  # that holds the text, unless another is named
DEFAULT_LENGTH = 2048  # tokens of a sequence, where the model would take more
Encode = Callable[[str], list[int]]
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

    def __init__(self, texts: Texts, *, column: str = COLUMN) -> None:
        self.column = column
        self.listed: list[str] | None = None
        self.files: list[Path] = []
        given = [texts] if isinstance(texts, str | os.PathLike) else [*texts]
        if not given:
            raise ValueError("texts=[] is an empty corpus; pass texts, or files with texts")
        # A list of strings is texts; one string, or a list with a Path, names files.
        if not isinstance(texts, str | os.PathLike) and all(
            isinstance(text, str) for text in given
        ):
            self.listed = [str(text) for text in given]
            self._check_not_paths(self.listed)
        else:
            self.files = [file for path in given for file in _files(Path(path))]
        # Texts in memory, and lines of a .txt file, have no columns.
        if column != COLUMN and not any(file.suffix.lower() != ".txt" for file in self.files):
            raise ValueError(
                f'column="{column}" is of .jsonl and .parquet files, and texts= has none; leave '
                "column= out"
            )
        # The size is the whole of which a progress display shows the share.
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
        # File names given by mistake show among the first texts.
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
        # Sorted, so that the number of a text does not depend on the file system.
        found = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not found:
            raise ValueError(f"{path} holds no texts: no file in it ends in {', '.join(SUFFIXES)}")
        return found
    if not path.exists():
        # One text by itself, in place of a list.
        if " " in str(path):
            raise ValueError(
                f"{path} is no file; a text goes in a list: texts=[text], one string names a file"
            )
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
        # A broken line stands alone; the lines around it still form a part.
        if broken:
            yield number, "", broken
            continue
        part.append(line)
        size += len(line)
        # End the part with this line, once it is long enough.
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
                # A line is an object with this field, or the text itself as a JSON string.
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
        # The limit bounds the memory; a longer line is read in pieces.
        while line := opened.readline(1 << 24):
            try:
                yield line.decode("utf-8"), ""
            except UnicodeDecodeError:
                yield "", "is not UTF-8"


def _read_parquet(file: Path, column: str) -> Iterator[Line]:
    """Yield the text of each row; where the file is damaged, the reason in place of the first row
    that is lost.
    """
    # Outside of the try: a missing pyarrow is no damage, and ends the run.
    import_optional("pyarrow.parquet", "a .parquet file", "atlas")
    row = 0
    try:
        for row, (text,) in enumerate(read_texts(file, [column]), 1):
            yield row, text or "", "" if text is not None else "has no text"
    except ValueError as problem:
        # Line 0 stands for the whole file, of which nothing could be read.
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
        for number, text, broken in READERS[file.suffix.lower()](file, column):
            # A broken line comes before the part of the file that it stands in.
            if number >= line and not broken:
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


# ---------------------------------------------------------------------------- sequences and batches


class TokenSequence(NamedTuple):
    """A stretch of a text: the number of the text, its first token within the text, and the
    tokens.
    """

    text: int
    first: int
    ids: list[int]


class TokenBatch(NamedTuple):
    """Sequences of like length, padded behind."""

    ids: Int[Tensor, "batch token"]
    lengths: list[int]
    places: Int[Tensor, "batch 2"]
    """The text of each sequence, and its first token within the text."""

    @property
    def is_padded(self) -> bool:
        return min(self.lengths) < self.ids.shape[1]

    def only(self, i: int) -> "TokenBatch":
        """Return a batch of one sequence, without padding."""
        length = self.lengths[i]
        return TokenBatch(self.ids[i : i + 1, :length], [length], self.places[i : i + 1])


def encoder_of(tokenizer: Any) -> Encode:
    """Return a function from a text to its token ids, for tokenizers of tokenizers and of
    transformers.
    """
    if tokenizer is None or not hasattr(tokenizer, "encode"):
        raise ValueError(
            "an atlas reads texts, so it needs a tokenizer: ts.atlas(model, texts, tokenizer=...)"
        )

    def encode(text: str) -> list[int]:
        # A panic of the Rust library is no Exception: make it one, so that the text can be skipped.
        with panics_as_errors("the tokenizers library panics"):
            encoded = tokenizer.encode(text)
        # `tokenizers` returns an Encoding, `transformers` a list of ids.
        return list(getattr(encoded, "ids", encoded))

    return encode


def longest_input(model: Any) -> int | None:
    """Return how many tokens a model takes, None where nothing limits it."""
    config = getattr(model, "config", None)
    if getattr(config, "positions", None) in ("rotary", "none", "sinusoidal", "sinusoidal_halves"):
        # A model of Telescope: max_positions is what it was trained on, and no limit.
        return None
    # Families of models have different names for the limit.
    for name in ("max_positions", "max_position_embeddings", "n_positions", "max_sequence_length"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def default_length(model: Any) -> int:
    """Return the length of sequences: what the model was trained on, at most DEFAULT_LENGTH."""
    config = getattr(model, "config", None)
    # A model with rotary positions takes any length, but was trained on `max_positions`.
    limits = (longest_input(model), getattr(config, "max_positions", None))
    return min([limit for limit in limits if isinstance(limit, int)] + [DEFAULT_LENGTH])


def sequences_of(
    texts: Iterable[tuple[Text, list[int]]], length: int, *, packed: bool
) -> Iterator[TokenSequence]:
    """Yield stretches of at most `length` tokens, at least two: of one text each or, if packed, of
    several in a row.

    A packed sequence has the number of the text that it begins in.
    """
    # Cut each text by itself; a rest of one token is left out.
    if not packed:
        for text, ids in texts:
            for first in range(0, len(ids), length):
                if len(ids) - first > 1:
                    yield TokenSequence(text.number, first, ids[first : first + length])
        return

    # Packed: fill each stretch with one text after the other.
    stretch: list[int] = []
    place = (0, 0)
    for text, ids in texts:
        start = 0
        while start < len(ids):
            # A stretch is known by the text and the token that it begins with.
            place = (text.number, start) if not stretch else place
            taken = ids[start : start + length - len(stretch)]
            stretch = stretch + taken
            start += len(taken)
            if len(stretch) == length:
                yield TokenSequence(*place, stretch)
                stretch = []
    if len(stretch) > 1:
        yield TokenSequence(*place, stretch)


def batches_of(sequences: Iterable[TokenSequence], size: int, pad: int) -> Iterator[TokenBatch]:
    """Yield batches of at most `size` sequences, the shortest first, so that little is padded.

    A batch holds no sequence of less than three quarters of its longest one.
    """
    # Text and first token break ties, so that batches are the same in every run.
    ordered = sorted(
        sequences, key=lambda sequence: (len(sequence.ids), sequence.text, sequence.first)
    )
    batch: list[TokenSequence] = []
    for sequence in ordered:
        # The first sequence of a batch is its shortest, the next one would be its longest.
        if batch and (len(batch) == size or 4 * len(batch[0].ids) < 3 * len(sequence.ids)):
            yield _padded(batch, pad)
            batch = []
        batch.append(sequence)
    if batch:
        yield _padded(batch, pad)


def _padded(batch: list[TokenSequence], pad: int) -> TokenBatch:
    longest = max(len(sequence.ids) for sequence in batch)
    ids = torch.full((len(batch), longest), pad, dtype=torch.long)
    for i, sequence in enumerate(batch):
        ids[i, : len(sequence.ids)] = torch.tensor(sequence.ids)
    places = torch.tensor([[sequence.text, sequence.first] for sequence in batch])
    return TokenBatch(ids, [len(sequence.ids) for sequence in batch], places)
