"""A recording as long tables: of heads, queries, keys, largest weights and tokens."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from ..files import Columns, Names, atomic_folder, resolve_path, write_parquet
from ..surveys import columns_of_summaries
from ..traces import INCOMPLETE
from ..words import hint
from .heads import Heads
from .recorded_call import RecordedCall

TABLES = ("heads", "queries", "keys", "top", "tokens")
COPIED_NUMBERS = 2**26  # numbers that are copied from a GPU at once: a quarter of a GiB
Calls = Mapping[str, Sequence[RecordedCall]]
Decode = Callable[[list[int]], str]


def table_parts(
    of: str, calls: Calls, heads: Callable[[], Heads], decode: Decode | None
) -> Iterator[Columns]:
    """Yield the columns of a table, one call after the other.

    A number of `call` counts the calls of one attention from 0 on. Raise a ValueError for an
    unknown table.
    """
    if of not in TABLES:
        raise ValueError(f'a recording has no table of "{of}"; {hint(str(of), TABLES)}')
    if of == "heads":
        yield heads().columns()
    elif of == "tokens":
        yield _token_columns(calls, decode)
    else:
        named = [
            (name, number, call)
            for name, recorded in calls.items()
            for number, call in enumerate(recorded)
        ]
        for some in _stretches(named):
            parts = [(call.survey().summary, call.heads, call.rows) for _, _, call in some]
            for (name, number, call), whole in zip(
                some, columns_of_summaries(parts, of), strict=True
            ):
                # Leave padding out, and number the tokens of each sequence from 0.
                columns = _own_tokens(whole, call)
                count = len(columns["head"])
                yield {
                    "layer": Names.repeated(name, count),
                    "call": numpy.full(count, number, numpy.int32),
                    **columns,
                }


def _stretches(
    named: Sequence[tuple[str, int, RecordedCall]],
) -> Iterator[list[tuple[str, int, RecordedCall]]]:
    """Yield calls whose tables are copied at once: a GPU's calls up to COPIED_NUMBERS, others one
    by one.
    """
    some: list[tuple[str, int, RecordedCall]] = []
    count = 0
    for one in named:
        call = one[2]
        # The table of the largest weights has the most columns and rows.
        count += 8 * call._facts.shape[0] * len(call.heads) * sum(call.size)
        some.append(one)
        if count >= COPIED_NUMBERS or call._facts.device.type == "cpu":
            yield some
            some, count = [], 0
    if some:
        yield some


def _own_tokens(columns: dict[str, Tensor], call: RecordedCall) -> dict[str, Tensor]:
    """Return the rows of tokens that count, with positions that count the tokens of each sequence
    from 0.
    """
    sequences = call._all_text_columns()
    batch = columns["batch"].long()
    kept = torch.ones(len(batch), dtype=torch.bool)
    # A table may name queries, keys, or both.
    for side, names in (("query", ("query",)), ("key", ("key", "peak_key"))):
        own = [sequence.queries if side == "query" else sequence.keys for sequence in sequences]
        # Where the own tokens begin and end, for each row of the table.
        first = torch.tensor([tokens.start for tokens in own], dtype=torch.int32)[batch]
        stop = torch.tensor([tokens.stop for tokens in own], dtype=torch.int32)[batch]
        if side in columns:
            kept &= (columns[side] >= first) & (columns[side] < stop)
        for name in names:
            if name in columns:  # -1 is no key
                columns[name] = torch.where(columns[name] < 0, columns[name], columns[name] - first)
    return columns if bool(kept.all()) else {name: column[kept] for name, column in columns.items()}


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the columns of all parts, one after the other; a column that a part lacks is NaN
    there.
    """
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        pieces: list[Any] = [part.get(name) for part in parts]
        counts = [len(_length(part)) for part in parts]
        # Names are codes into a list of texts: merge the lists, and translate the codes.
        if any(isinstance(piece, Names) for piece in pieces):
            texts = tuple(dict.fromkeys(text for piece in pieces for text in piece.texts))
            place = {text: i for i, text in enumerate(texts)}
            codes = [
                numpy.array([place[text] for text in piece.texts], numpy.int32)[piece.codes]
                for piece in pieces
            ]
            columns[name] = Names(numpy.concatenate(codes), texts)
        else:
            arrays = [
                numpy.full(count, numpy.nan) if piece is None else numpy.asarray(piece)
                for piece, count in zip(pieces, counts, strict=True)
            ]
            columns[name] = numpy.concatenate(arrays) if arrays else numpy.empty(0)
    return columns


def _length(part: Columns) -> Any:
    first = next(iter(part.values()))
    return first.codes if isinstance(first, Names) else first


def _token_columns(calls: Calls, decode: Decode | None) -> Columns:
    """Return the tokens of every sequence once: `side` is "queries", or "keys" where those are
    another sequence.
    """
    # Most layers read the same tokens: take each side of a call once.
    found: dict[tuple[str, int], list[Tensor]] = {}
    for recorded in calls.values():
        for number, call in enumerate(recorded):
            sequences = call._all_text_columns()
            if call.query_ids is not None and ("queries", number) not in found:
                rows = zip(call.query_ids.cpu(), sequences, strict=True)
                found["queries", number] = [
                    ids[own.queries.start : own.queries.stop] for ids, own in rows
                ]
            # Only in cross-attention are the keys another text.
            if call.across and call.key_ids is not None and ("keys", number) not in found:
                rows = zip(call.key_ids.cpu(), sequences, strict=True)
                found["keys", number] = [ids[own.keys.start : own.keys.stop] for ids, own in rows]

    # Make a row for each token, one sequence after the other.
    parts: list[Columns] = []
    for (side, number), texts in found.items():
        ids = torch.cat(texts)
        columns: dict[str, Any] = {
            "call": numpy.full(ids.numel(), number, numpy.int32),
            "side": Names.repeated(side, ids.numel()),
            "batch": torch.repeat_interleave(torch.tensor([len(own) for own in texts])).int(),
            "position": torch.cat([torch.arange(len(own)) for own in texts]).int(),
            "token": ids.int(),
        }
        if decode is not None:
            columns["text"] = numpy.array(
                [text for own in texts for text in _added_texts(own.tolist(), decode)], dtype=object
            )
        parts.append(columns)
    return joined(parts)


def _added_texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return what each token adds to the text of a sequence, with the space in front of it, which
    many tokenizers drop from a token that is decoded alone.
    """
    # Decode each different token once alone and once behind a token that has a text.
    alone = {token: decode([token]) for token in {*ids}}
    before = next((token for token, text in alone.items() if _is_whole(text)), None)
    if before is None:
        return [alone[token] for token in ids]
    start = alone[before]
    behind = {token: decode([before, token]) for token in alone}
    added = {
        token: text[len(start) :] if text.startswith(start) and alone[token] else alone[token]
        for token, text in behind.items()
    }
    # A special token at the start is no text yet: the first token with one is decoded alone.
    first = next((at for at, token in enumerate(ids) if alone[token]), 0)
    return [alone[token] if at <= first else added[token] for at, token in enumerate(ids)]


def _is_whole(text: str) -> bool:
    """Return whether a token's text is a text, and no part of a character."""
    return text.strip() != "" and INCOMPLETE not in text


def write_tables(
    path: str | os.PathLike[str], parts: Callable[[str], Iterator[Columns]], *, replace: bool
) -> None:
    """Write a Parquet file for each table into a folder, as a whole or not at all."""
    with atomic_folder(path, lambda place: _check_folder(place, replace=replace)) as folder:
        for name in TABLES:
            # Layers become row groups; heads and tokens are one table each.
            made = (
                [part for part in parts(name) if part]
                if name in ("heads", "tokens")
                else parts(name)
            )
            write_parquet(folder / f"{name}.parquet", made)


OUR_FILES = re.compile(rf"({'|'.join(TABLES)})\.parquet")


def _check_folder(path: str | os.PathLike[str], *, replace: bool) -> None:
    """Raise a ValueError if the path exists and is not an empty folder, or one of tables that may
    be replaced.
    """
    place = resolve_path(path)
    if not place.exists():
        return
    # A file in the place of the folder is not ours.
    files = sorted(os.listdir(place)) if place.is_dir() else [""]
    if not all(OUR_FILES.fullmatch(name) for name in files):
        raise ValueError(
            f"{place} exists and holds other files than tables, so it is left alone; use a new "
            "folder"
        )
    if files and not replace:
        raise ValueError(
            f"{place} holds tables already; to_parquet(..., replace=True) replaces them"
        )
