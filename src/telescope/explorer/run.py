"""A run: every attention of a model on one text or recording, with the name and the facts that the
page shows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Pairs, softmax
from ..recording.queries_keys_call import StepsCall, one_head
from ..recording.recorded_call import RecordedCall
from ..recording.recording import Recording
from ..recording.summaries_call import SummariesCall
from ..tiles import OneHead
from ..traces.whole_words import INCOMPLETE, Span, Words
from ..words import hint
from .output import Output
from .requests import not_kept
from .stack_inputs import StackInputs

ALIGNED = 512  # most words on each side of an alignment, and half of the most tokens
LONGEST_WORD = 6  # tokens, on average: beyond, the text is not made of words
UNREAD = "…"  # the last written token: no query reads it, so a recording does not hold its id
Decode = Callable[[list[int]], str]
STEPS = 'telescope watch --keep steps, or ts.watch(keep="steps"), keeps them'
SUMMARY = (
    "this recording kept summaries alone, and this screen shows every step of a query: "
    'telescope watch --keep {0}, or ts.watch(keep="{0}"), keeps what it needs'
)


@dataclass(frozen=True, eq=False)
class AttentionView:
    """One call of one attention. `rows` and `columns` are the words of queries and keys, where the
    text has words.

    `title` is a name for people, where the attention has one. `beside` are the views, this one
    included, whose vectors share one picture of the geometry. `block` is the model's block around
    the attention, where the model is at hand; `inputs` are the embeddings and positions that its
    stack reads.
    """

    name: str
    call: RecordedCall
    decode: Decode | None = None
    rows: Words | None = None
    columns: Words | None = None
    token_name: Callable[[int], str | None] | None = None
    title: str | None = None
    beside: tuple["AttentionView", ...] = ()
    block: nn.Module | None = None
    inputs: StackInputs | None = None

    @property
    def kind(self) -> str:
        """Return "cross", "encoder", "decoder", or "self" where the model has one stack."""
        if self.call.across:
            return "cross"
        parts = self.name.split(" ")[0].split(".")[:-1]
        return next((stack for stack in ("encoder", "decoder") if stack in parts), "self")

    @property
    def batch(self) -> int:
        return self.call.facts.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Return the number of queries that were kept, and of keys."""
        rows = self.call.facts.rows
        return self.call.size[0] if rows is None else len(rows), self.call.size[1]

    def head(self, number: int, sequence: int) -> OneHead:
        """Return one head of one sequence; `number` is the head's number in the model."""
        return one_head(self.call, number, sequence)

    def words(self, axis: str) -> Words | None:
        """Return the words of an axis, "q" or "k"; None where they are unknown, or the recording
        has grown since.
        """
        words = self.rows if axis == "q" else self.columns
        return (
            words
            if words is not None and len(words.word_ids) == self.size[0 if axis == "q" else 1]
            else None
        )

    def tokens(self, axis: str, sequence: int, indices: range | list[int]) -> list[str]:
        """Return the texts of some queries ("q") or keys ("k"); a token without text has its name
        or its number.

        In cross-attention a query is labelled with the token that it predicts, the one after the
        token that it read.
        """
        words = self.words(axis)
        if words is not None:
            return [words.pieces[index] for index in indices]
        positions = self._positions(axis, indices)
        if self.ids(axis) is None or self.decode is None:
            return [str(position) for position in positions]
        return [self._label(token) for token in self._token_ids(axis, sequence, positions)]

    def real(self, axis: str, sequence: int) -> list[int]:
        """Return the indices of queries or keys whose token has text; all indices where no token is
        known to.
        """
        indices = range(self.size[0 if axis == "q" else 1])
        if self.ids(axis) is None or self.decode is None:
            return list(indices)
        decode = self.decode
        tokens = self._token_ids(axis, sequence, self._positions(axis, indices))
        found = [
            index
            for index, token in zip(indices, tokens, strict=True)
            if token is not None and decode([token])
        ]
        return found or list(indices)

    def _token_ids(self, axis: str, sequence: int, positions: Iterable[int]) -> list[int | None]:
        """Return the token ids at positions of the text; None where the id is unknown."""
        ids = self.ids(axis)
        assert ids is not None
        ahead = int(axis == "q" and self.kind == "cross")
        shifted = torch.tensor(list(positions), dtype=torch.long) + ahead
        last = ids.shape[1] - 1
        found: list[int] = (
            ids[sequence, shifted.clamp(max=last).to(ids.device)].tolist() if len(shifted) else []
        )
        return [
            token if position <= last else None
            for token, position in zip(found, shifted.tolist(), strict=True)
        ]

    def _label(self, token: int | None) -> str:
        """Return the text of a token id, else its name, else its number."""
        if token is None or self.decode is None:
            return UNREAD
        name = None if self.token_name is None else self.token_name(token)
        return self.decode([token]) or name or str(token)

    def words_of_ids(
        self, axis: str, known: dict[tuple[int | None, ...], Words | None]
    ) -> Words | None:
        """Return the words of the recorded tokens of an axis; None where they have no text, or no
        words in it.

        `known` holds the words of tokens that were joined before: most attentions of a recording
        read the same.
        """
        if self.ids(axis) is None or self.decode is None:
            return None
        tokens = tuple(self._token_ids(axis, 0, range(self.size[0 if axis == "q" else 1])))
        if tokens not in known:
            known[tokens] = self._join(tokens, self.decode)
        return known[tokens]

    def _join(self, tokens: Iterable[int | None], decode: Decode) -> Words | None:
        """Return the words of tokens, by the characters that each adds to the text; None where
        words are too long.
        """
        text = ""
        read = list[int]()
        spans = list[Span | str]()
        for token in tokens:
            if token is None or not decode(
                [token, token]
            ):  # twice: a space by itself may be dropped
                spans.append(self._label(token))
                continue
            read.append(token)
            longer = decode(read)
            if longer.endswith(INCOMPLETE):  # the token that completes the character covers it
                spans.append((len(text), len(text)))
                continue
            spans.append((min(len(text), len(longer)), len(longer)))
            text = longer
        words = Words.from_spans(decode(read) if read else "", spans)
        return words if LONGEST_WORD * len(words.names) >= len(spans) else None

    def ids(self, axis: str) -> Tensor | None:
        """Return the token ids of an axis, (batch, position), or None where the model was not given
        tokens.
        """
        return self.call.query_ids if axis == "q" else self.call.key_ids

    def _positions(self, axis: str, indices: range | list[int]) -> range | list[int]:
        """Return positions in the text: queries may have been recorded for some rows only."""
        rows = self.call.facts.rows
        return indices if axis == "k" or rows is None else [rows[index] for index in indices]

    @cached_property
    def missing(self) -> dict[str, str]:
        """Return the answers that this attention cannot give, each with the reason."""
        missing: dict[str, str] = {}
        everything = ("trace", "context", "map", "alignment")
        summary = isinstance(self.call, SummariesCall)
        if summary:
            missing |= {"trace": SUMMARY.format("queries-keys"), "context": SUMMARY.format("steps")}
            if not self.call.survey().top.keys.shape[-1]:
                missing |= dict.fromkeys(("map", "alignment"), SUMMARY.format("queries-keys"))
        elif (problem := _unusable_definition(self.call)) is not None:
            missing |= dict.fromkeys(everything, f'"{self.name}": {problem}')
        elif not isinstance(self.call, StepsCall):
            missing["context"] = f'"{self.name}" was kept without values: {STEPS}'
        if "map" not in missing and not summary and self.call.attention.normalize is not softmax:
            missing["map"] = (
                "the map shows log weights of softmax, and this attention has another normaliser"
            )
        rows, columns = (
            count if words is None else len(words.names)
            for words, count in zip(map(self.words, "qk"), self.size, strict=True)
        )
        if max(self.size) > 2 * ALIGNED or max(rows, columns) > ALIGNED:
            missing.setdefault(
                "alignment",
                f"{rows:,} x {columns:,} words are too many for ribbons; the map shows them",
            )
        stream = self.call.parts.get("before")
        if stream is None or stream.shape[1] != self.call.size[0]:
            missing["geometry"] = (
                f"this needs the vectors before and after attention, which were not kept: {STEPS} "
                "of Telescope's models"
            )
        if self.block is None or "geometry" in missing:
            missing["after"] = (
                "what follows the heads is shown for models of Telescope that run here"
            )
        if (problem := self._no_positions()) is not None:
            missing["positions"] = problem
        if self.ids("k") is None and self.words("k") is None:
            missing["tokens"] = "the model was not given tokens, so positions are shown as numbers"
        return missing

    def _no_positions(self) -> str | None:
        """Return why scores cannot be shown by distance, or None."""
        if isinstance(self.call, SummariesCall):
            return SUMMARY.format("queries-keys")
        if (problem := _unusable_definition(self.call)) is not None:
            return f'"{self.name}": {problem}'
        if (
            self.call.across and self.title is None
        ):  # the examples, which have titles, show encodings without a model
            return (
                "the queries and keys of this attention are in two texts: there is no distance "
                "between them"
            )
        if max(self.size) > ALIGNED or self.call.facts.rows is not None:
            return (
                f"positions are shown for texts of at most {ALIGNED} tokens, of which every "
                "query was kept"
            )
        return None

    def require(self, what: str) -> None:
        """Raise Refusal 409, with the reason, if this attention cannot give an answer of this
        kind.
        """
        if what in self.missing:
            raise not_kept(self.missing[what])

    def to_json(self, number: int) -> dict[str, Any]:
        """Return an entry of the list "attentions" in a run's JSON."""
        facts = self.call.facts
        queries, keys = self.size
        has = (
            "trace",
            "context",
            "map",
            "geometry",
            "alignment",
            "tokens",
            "after",
            "tiles",
            "positions",
        )
        return {
            "l": number,
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "heads": list(self.call.heads),
            "batch": self.batch,
            "n_q": queries,
            "n_k": keys,
            "d_k": facts.shape[3],
            "d_v": self.call.parts["values"].shape[-1]
            if isinstance(self.call, StepsCall)
            else None,
            "formula": self.call.attention.formula(facts.shape[3]),
            "mask": repr(self.call.attention.mask),
            "has": {what: ("map" if what == "tiles" else what) not in self.missing for what in has},
            "why": self.missing,
        }


@dataclass(frozen=True, eq=False)
class Run:
    """All attentions of a model on one text; `rev` changes with the contents and `keep` says what
    was recorded.
    """

    name: str
    rev: str
    kind: str
    title: str
    model: str
    keep: str
    views: tuple[AttentionView, ...]
    text: str | None = None
    written: str | None = None
    example: dict[str, Any] | None = None
    """A worked example: its captions, and the matrices that it is computed from."""
    notice: str | None = None
    """What a reader should know before believing the numbers."""
    output: Output | None = None
    """What the model made of the text: of a sentence that a GPT or a Transformer has read."""

    def place(self, word: str | None) -> int:
        """Return the query at which the walk starts: the last token of this word, or of the text's
        last word.
        """
        words = self.views[0].rows
        if words is None or not words.text_words:
            return 0
        number = words.text_words[-1] if word is None else words.find(word)
        if number is None:
            raise ValueError(f'no word is "{word}"; {hint(str(word), words.names)}')
        return words.positions(number)[-1]

    def to_json(self) -> dict[str, Any]:
        """Return the answer to GET /runs/{run}."""
        return {
            "run": self.name,
            "rev": self.rev,
            "kind": self.kind,
            "title": self.title,
            "model": self.model,
            "text": self.text,
            "written": self.written,
            "keep": self.keep,
            "example": self.example,
            "notice": self.notice,
            "output": None if self.output is None else self.output.to_json(),
            "attentions": [view.to_json(number) for number, view in enumerate(self.views)],
        }


def run_of_recording(recording: Recording, name: str, rev: str) -> Run:
    """Return a recording as a run; an attention that was called several times has one view for each
    call.
    """
    known: dict[tuple[int | None, ...], Words | None] = {}
    views = [
        with_words(
            AttentionView(
                named if len(watched.calls) == 1 else f"{named} call {number}",
                call,
                recording.decode,
                token_name=recording.token_name,
            ),
            known,
        )
        for named, watched in recording.items()
        for number, call in enumerate(watched.calls)
    ]
    return Run(name, rev, "recording", name, recording.model, recording.keep, tuple(views))


def with_words(
    view: AttentionView, known: dict[tuple[int | None, ...], Words | None]
) -> AttentionView:
    """Return the view of a recording with its tokens joined into words, where the text is short and
    has words.

    `known` is that of `AttentionView.words_of_ids`, one for all views of the recording.
    """
    if (
        view.batch != 1
        or view.decode is None
        or max(view.size) > ALIGNED
        or view.call.facts.rows is not None
    ):
        return view
    rows, columns = (view.words_of_ids(axis, known) for axis in "qk")
    return replace(view, rows=rows, columns=columns)


def _unusable_definition(call: RecordedCall) -> str | None:
    """Return why a definition cannot be evaluated, or None: functions inside a mask or bias are not
    saved.
    """
    at = Pairs.block(
        range(1), range(1), of=call.size, batch=call.facts.shape[0], heads=len(call.heads)
    )
    attention = call.attention
    try:
        attention.mask.sees(at)
        attention.biased(torch.zeros(()), at)
    except ValueError as problem:
        return str(problem)
    return None
