"""A run: what every attention of a model did with one text, under a name, as the page knows it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..attention import Pairs, softmax
from ..recording.kept import Call, StepsCall, SummariesCall
from ..recording.one_head import one_head
from ..recording.recording import Recording
from ..tiles.head_scores import OneHead
from ..trace.whole_words import Words
from ..words import hint
from .requests import not_kept

ALIGNED = 512  # words each way of an alignment, of twice as many tokens
UNREAD = "…"  # what was written last: no query has read it, so that no recording has its id
Decode = Callable[[list[int]], str]


@dataclass(frozen=True, eq=False)
class AttentionView:
    """One attention of a run: one call of it. `rows` and `columns` are its words, where a text was read as words."""

    name: str
    call: Call
    decode: Decode | None = None
    rows: Words | None = None
    columns: Words | None = None
    token_name: Callable[[int], str | None] | None = None

    @property
    def kind(self) -> str:
        if self.call.across:
            return "cross"
        where = self.name.split(" ")[0].split(".")[:-1]
        return next((stack for stack in ("encoder", "decoder") if stack in where), "self")

    @property
    def batch(self) -> int:
        return self.call.facts.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Queries that were kept, and keys."""
        rows = self.call.facts.rows
        return self.call.size[0] if rows is None else len(rows), self.call.size[1]

    def head(self, number: int, sequence: int) -> OneHead:
        return one_head(self.call, number, sequence)

    def words(self, axis: str) -> Words | None:
        return self.rows if axis == "q" else self.columns

    def tokens(self, axis: str, sequence: int, which: range | list[int]) -> list[str]:
        """The texts of these queries or keys; of one that has no text, its name or its number.

        A query that looks at another text is called by the token that it writes, the one after that which it read.
        """
        words = self.words(axis)
        if words is not None:
            return [words.pieces[place] for place in which]
        places = self._places(axis, which)
        if self.ids(axis) is None or self.decode is None:
            return [str(place) for place in places]
        return [self._called(token) for token in self._tokens(axis, sequence, places)]

    def real(self, axis: str, sequence: int) -> list[int]:
        """The queries or keys that are words of a text; all, where none is known to be."""
        there = range(self.size[0 if axis == "q" else 1])
        if self.ids(axis) is None or self.decode is None:
            return list(there)
        decode, tokens = self.decode, self._tokens(axis, sequence, self._places(axis, there))
        found = [place for place, token in zip(there, tokens, strict=True) if token is not None and decode([token])]
        return found or list(there)

    def _tokens(self, axis: str, sequence: int, places: Iterable[int]) -> list[int | None]:
        """Their ids; None is not known."""
        ids = self.ids(axis)
        assert ids is not None
        ahead = int(axis == "q" and self.kind == "cross")
        where, last = torch.tensor(list(places), dtype=torch.long) + ahead, ids.shape[1] - 1
        found: list[int] = ids[sequence, where.clamp(max=last).to(ids.device)].tolist() if len(where) else []
        return [token if place <= last else None for token, place in zip(found, where.tolist(), strict=True)]

    def _called(self, token: int | None) -> str:
        if token is None or self.decode is None:
            return UNREAD
        name = None if self.token_name is None else self.token_name(token)
        return self.decode([token]) or name or str(token)

    def ids(self, axis: str) -> Tensor | None:
        return self.call.query_ids if axis == "q" else self.call.key_ids

    def _places(self, axis: str, which: range | list[int]) -> range | list[int]:
        rows = self.call.facts.rows
        return which if axis == "k" or rows is None else [rows[place] for place in which]

    @cached_property
    def why_not(self) -> dict[str, str]:
        """What cannot be asked of it, and why."""
        lacking: dict[str, str] = {}
        everything = ("trace", "context", "map", "alignment")
        if isinstance(self.call, SummariesCall):
            said = f'"{self.name}" was kept as a summary alone; keep="queries-keys" or "steps" has more'
            lacking |= dict.fromkeys(everything, said)
        elif (problem := _untold(self.call)) is not None:
            lacking |= dict.fromkeys(everything, f'"{self.name}": {problem}')
        elif not isinstance(self.call, StepsCall):
            lacking["context"] = f'"{self.name}" was kept without values; keep="steps" has them'
        if "map" not in lacking and self.call.attention.normalize is not softmax:
            lacking["map"] = "a map of log weights is one of softmax, and this attention has another normaliser"
        rows, columns = (
            there if words is None else len(words.names)
            for words, there in zip((self.rows, self.columns), self.size, strict=True)
        )
        if max(self.size) > 2 * ALIGNED or max(rows, columns) > ALIGNED:
            lacking.setdefault("alignment", f"{rows:,} x {columns:,} words are too many for ribbons; see the map")
        stream = self.call.parts.get("before")
        if stream is None or stream.shape[1] != self.call.size[0]:
            lacking["geometry"] = (
                f'the residual stream around "{self.name}" was not kept; keep="steps" has it of our models'
            )
        if self.ids("k") is None and self.columns is None:
            lacking["tokens"] = "the model was not given tokens, so that places are numbers"
        return lacking

    def must_have(self, what: str) -> None:
        if what in self.why_not:
            raise not_kept(self.why_not[what])

    def to_json(self, number: int) -> dict[str, Any]:
        facts, (queries, keys) = self.call.facts, self.size
        has = ("trace", "context", "map", "geometry", "alignment", "tokens")
        return {
            "l": number,
            "name": self.name,
            "kind": self.kind,
            "heads": list(self.call.heads),
            "batch": self.batch,
            "n_q": queries,
            "n_k": keys,
            "d_k": facts.shape[3],
            "d_v": self.call.parts["values"].shape[-1] if isinstance(self.call, StepsCall) else None,
            "formula": self.call.attention.formula(facts.shape[3]),
            "mask": repr(self.call.attention.mask),
            "has": {what: what not in self.why_not for what in has},
            "why": self.why_not,
        }


@dataclass(frozen=True, eq=False)
class Run:
    name: str
    rev: str
    kind: str
    title: str
    model: str
    keep: str
    looked: tuple[AttentionView, ...]
    text: str | None = None
    written: str | None = None

    def place(self, word: str | None) -> int:
        """Where the walk begins: at the last token of this word, or of the last one in the text."""
        words = self.looked[0].rows
        if words is None or not words.real:
            return 0
        number = words.real[-1] if word is None else words.find(word)
        if number is None:
            raise ValueError(f'no word is "{word}"; {hint(str(word), words.names)}')
        return words.tokens(number)[-1]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "rev": self.rev,
            "kind": self.kind,
            "title": self.title,
            "model": self.model,
            "text": self.text,
            "written": self.written,
            "keep": self.keep,
            "attentions": [looked.to_json(number) for number, looked in enumerate(self.looked)],
        }


def of_recording(recording: Recording, name: str, rev: str) -> Run:
    """Everything that was recorded; an attention that was called several times is there once for each call."""
    looked = [
        AttentionView(
            named if len(watched.calls) == 1 else f"{named} call {number}",
            call,
            recording.decode,
            token_name=recording.token_name,
        )
        for named, watched in recording.items()
        for number, call in enumerate(watched.calls)
    ]
    return Run(name, rev, "recording", name, recording.model, recording.keep, tuple(looked))


def _untold(call: Call) -> str | None:
    """Why its definition cannot be used, if a part of it was a function, which is not saved with a recording."""
    at = Pairs.block(range(1), range(1), of=call.size, batch=call.facts.shape[0], heads=len(call.heads))
    attention = call.attention
    try:
        attention.mask.sees(at)
        attention.biased(torch.zeros(()), at)
    except ValueError as problem:
        return str(problem)
    return None
