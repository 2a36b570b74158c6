"""A run: every attention of a model on one text or recording, with the name and the facts that the
page shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ..attention import Pairs, softmax
from ..recording import RecordedCall, Recording, one_head
from ..tiles import OneHead
from ..token_kinds import Grid
from ..traces import SPACE, Words, token_label
from ..words import hint
from .answers import (
    AttentionFacts,
    ExampleFacts,
    Memory,
    RequestParams,
    RunFacts,
    not_kept,
    unknown,
)
from .joined_words import Decode, join_names, join_words, plain
from .lacks import NO_MOVE, NO_VECTORS, STEPS, SUMMARY, without_texts
from .output import Output, StackInputs

MOST_ALIGNED = 512  # words on each side of an alignment, and half of the most tokens
UNREAD = "…"  # the last written token: no query reads it, so a recording does not hold its id
KNOWN_WORDS = dict[tuple[int | None, ...], Words | None]  # by the ids of their tokens
# What the page may ask of an attention; what one cannot give has a reason in `why`
ABILITIES = (
    *("trace", "context", "map", "geometry", "alignment"),
    *("tokens", "after", "tiles", "positions", "image"),
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
        # "encoder.0.self call 1" is in the stack "encoder".
        parts = self.name.split(" ")[0].split(".")[:-1]
        return next((stack for stack in ("encoder", "decoder") if stack in parts), "self")

    @property
    def batch(self) -> int:
        return self.call._facts.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Return the number of queries that were kept, and of keys."""
        rows = self.call._facts.rows
        return self.call.size[0] if rows is None else len(rows), self.call.size[1]

    def length(self, axis: str) -> int:
        """Return the number of queries, axis "q", or keys, "k"."""
        return self.size["qk".index(axis)]

    def head(self, number: int, sequence: int) -> OneHead:
        """Return one head of one sequence; `number` is the head's number in the model."""
        return one_head(self.call, number, sequence)

    # ---------------------------------------------------------------------------- tokens and words

    def words(self, axis: str) -> Words | None:
        """Return the words of an axis; None where they are unknown, or the recording has grown."""
        words = self.rows if axis == "q" else self.columns
        known = words is not None and len(words.word_ids) == self.length(axis)
        return words if known else None

    def names(self, axis: str, sequence: int) -> list[str]:
        """Return the words of an axis; where there are none, its tokens."""
        words = self.words(axis)
        if words is not None:
            return list(words.names)
        return self.tokens(axis, sequence, range(self.length(axis)))

    def real(self, axis: str, sequence: int) -> list[int]:
        """Return which of `names` have text; all of them where no token is known to."""
        words = self.words(axis)
        if words is not None:
            return list(words.text_words)
        indices = range(self.length(axis))
        decode = self.decode
        if self.ids(axis) is None or decode is None:
            return list(indices)
        tokens = self._token_ids(axis, sequence, self._positions(axis, indices))
        found = [at for at, token in enumerate(tokens) if token is not None and decode([token])]
        return found or list(indices)

    def tokens(self, axis: str, sequence: int, indices: Sequence[int]) -> list[str]:
        """Return the texts of some queries ("q") or keys ("k"); a token without text has its name
        or its number. In cross-attention a query is labelled with the token that it predicts, the
        one after the token that it read.
        """
        words = self.words(axis)
        if words is not None:
            return [words.pieces[index] for index in indices]
        named = self._known_names(axis)
        if named is not None:
            return [named[index] for index in indices]
        positions = self._positions(axis, indices)
        if self.ids(axis) is None or self.decode is None:
            return [str(position) for position in positions]
        return [self._label(token) for token in self._token_ids(axis, sequence, positions)]

    def _known_names(self, axis: str) -> tuple[str, ...] | None:
        """Return the names that `ts.watch(tokens=...)` gave to an axis, as texts."""
        names = self.call._all_names("query" if axis == "q" else "key")
        return None if names is None else tuple(text.strip(" ") or SPACE for text in plain(names))

    def ids(self, axis: str) -> Tensor | None:
        """Return the token ids of an axis, (batch, position), or None where the model was not given
        tokens.
        """
        return self.call.query_ids if axis == "q" else self.call.key_ids

    def row_of(self, i: int) -> int:
        """Return the position of a query in the text: queries may have been recorded for some rows
        only.
        """
        rows = self.call._facts.rows
        return i if rows is None else rows[i]

    def _positions(self, axis: str, indices: Sequence[int]) -> Sequence[int]:
        return indices if axis == "k" else [self.row_of(index) for index in indices]

    def _token_ids(self, axis: str, sequence: int, positions: Iterable[int]) -> list[int | None]:
        """Return the token ids at positions of the text; None where the id is unknown."""
        ids = self.ids(axis)
        assert ids is not None
        # A query of a decoder that attends across writes the token after the one that it read.
        ahead = int(axis == "q" and self.kind == "cross")
        shifted = torch.tensor([position + ahead for position in positions], dtype=torch.long)
        last = ids.shape[1] - 1
        found = ids[sequence, shifted.clamp(max=last).to(ids.device)].tolist() if last >= 0 else []
        pairs = zip(found, shifted.tolist(), strict=True)
        return [token if at <= last else None for token, at in pairs]

    def _label(self, token: int | None) -> str:
        """Return the text of a token id, else its name, else its number."""
        if token is None or self.decode is None:
            return UNREAD
        return token_label(token, self.decode, self.token_name)

    def with_words(self, known: KNOWN_WORDS) -> "AttentionView":
        """Return the view with its tokens joined into words, where the text is short and has words.

        `known` holds the words of tokens that were joined before: most attentions of a recording
        read the same.
        """
        if self.batch != 1 or max(self.size) > MOST_ALIGNED or self.call._facts.rows is not None:
            return self
        rows, columns = (self._words_of_ids(axis, known) for axis in "qk")
        return replace(self, rows=rows, columns=columns)

    def _words_of_ids(self, axis: str, known: KNOWN_WORDS) -> Words | None:
        """Return the words of the recorded tokens of an axis; None where they have no text, or no
        words in it.
        """
        if (names := self.call._all_names("query" if axis == "q" else "key")) is not None:
            return join_names(names)
        if self.ids(axis) is None or self.decode is None:
            return None
        tokens = tuple(self._token_ids(axis, 0, range(self.length(axis))))
        if tokens not in known:
            known[tokens] = join_words(tokens, self.decode, self._label)
        return known[tokens]

    # -------------------------------------------------------------------------- what can be asked

    @cached_property
    def missing(self) -> dict[str, str]:
        """Return the answers that this attention cannot give, each with the reason."""
        call = self.call
        missing: dict[str, str] = {}

        # What was not kept, or cannot be computed from what was.
        if not call._has_queries:
            missing |= {"trace": SUMMARY.format("queries-keys"), "context": SUMMARY.format("steps")}
            if not call.survey().top.keys.shape[-1]:
                missing |= dict.fromkeys(("map", "alignment"), SUMMARY.format("queries-keys"))
        elif self._unusable is not None:
            missing |= dict.fromkeys(("trace", "context", "map", "alignment"), self._unusable)
        elif not call._has_values:
            missing["context"] = f'"{self.name}" was kept without values: {STEPS}'
        if call._has_queries and call.attention.normalize is not softmax:
            reason = (
                "the map shows log weights of softmax, and this attention has another normaliser"
            )
            missing.setdefault("map", reason)

        # What is too long to be drawn.
        counts = [
            length if words is None else len(words.names)
            for words, length in zip(map(self.words, "qk"), self.size, strict=True)
        ]
        if max(self.size) > 2 * MOST_ALIGNED or max(counts) > MOST_ALIGNED:
            reason = (
                f"{counts[0]:,} x {counts[1]:,} words are too many for ribbons; the map shows them"
            )
            missing.setdefault("alignment", reason)

        # What needs the vectors around the attention, the model, or the text.
        # The stream of beams, or of a call that was interrupted, has another length.
        stream = call._kept.get("before")
        if stream is None or stream.shape[1] != call.size[0]:
            # The worked examples, which have titles, cannot be watched again.
            missing["geometry"] = NO_VECTORS if self.title is None else NO_MOVE
        if self.block is None or "geometry" in missing:
            missing["after"] = (
                "what follows the heads is shown for models of Telescope that run here"
            )
        if (problem := self._no_positions()) is not None:
            missing["positions"] = problem
        if (problem := self._no_image()) is not None:
            missing["image"] = problem
        if self.ids("k") is None and self.words("k") is None and self._known_names("k") is None:
            missing["tokens"] = "the model was not given tokens, so positions are shown as numbers"
        return missing

    @cached_property
    def _unusable(self) -> str | None:
        """Why the definition cannot be evaluated, or None: functions inside a mask or bias are not
        saved.
        """
        call = self.call
        at = Pairs.block(range(1), range(1), of=call.size, batch=self.batch, heads=len(call.heads))
        try:
            call.attention.mask.sees(at)  # a saved function that is missing raises
            call.attention.biased(torch.zeros(()), at)
        except ValueError as problem:
            return f'"{self.name}": {problem}'
        return None

    def _no_image(self) -> str | None:
        """Return why weights cannot be shown over an image, or None."""
        sides = self.call._facts.tokens
        parts = () if sides is None or sides.keys is None else sides.keys._parts()
        if not any(isinstance(part, Grid) for _, part in parts):
            return (
                "no key is said to be a patch of an image: ts.watch(model, tokens=ts.Grid(14, 14)) "
                "says it"
            )
        # Queries and keys, or the largest weights, tell what a query sees.
        return self._unusable if self.call._has_queries else None

    def _no_positions(self) -> str | None:
        """Return why scores cannot be shown by distance, or None."""
        if not self.call._has_queries:
            return SUMMARY.format("queries-keys")
        if self._unusable is not None:
            return self._unusable
        # The examples, which have titles, show encodings without a model.
        if self.call.across and self.title is None:
            return (
                "the queries and keys of this attention are in two texts: there is no distance "
                "between them"
            )
        if max(self.size) > MOST_ALIGNED or self.call._facts.rows is not None:
            return (
                f"positions are shown for texts of at most {MOST_ALIGNED} tokens, of which every "
                "query was kept"
            )
        return None

    def require(self, what: str) -> None:
        """Raise Refusal 409, with the reason, if this attention cannot give an answer of this
        kind.
        """
        if what in self.missing:
            raise not_kept(self.missing[what])

    def describe(self, number: int) -> AttentionFacts:
        """Return the facts of this attention, the `number`-th of its run."""
        call = self.call
        d_k = call._facts.shape[3]
        return AttentionFacts(
            l=number,
            name=self.name,
            title=self.title,
            kind=self.kind,
            heads=call.heads,
            batch=self.batch,
            n_q=self.size[0],
            n_k=self.size[1],
            d_k=d_k,
            d_v=call.values.shape[-1] if call._has_values else None,
            formula=call.attention.formula(d_k),
            mask=repr(call.attention.mask),
            has={
                what: ("map" if what == "tiles" else what) not in self.missing for what in ABILITIES
            },
            why=self.missing,
        )


@dataclass(frozen=True, eq=False)
class Run:
    """All attentions of a model on one text; `recording` has their calls, if there is a model."""

    name: str
    rev: str
    kind: str
    title: str
    model: str
    keep: str
    views: tuple[AttentionView, ...]
    text: str | None = None
    target: str | None = None
    written: str | None = None
    example: ExampleFacts | None = None
    notice: str | None = None
    output: Output | None = None
    recording: Recording | None = None

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

    def describe(self) -> RunFacts:
        """Return the answer to GET /runs/{run}."""
        return RunFacts(
            run=self.name,
            rev=self.rev,
            kind=self.kind,
            title=self.title,
            model=self.model,
            text=self.text,
            target=self.target,
            written=self.written,
            keep=self.keep,
            example=self.example,
            notice=self.notice,
            output=None if self.output is None else self.output.describe(),
            attentions=[view.describe(number) for number, view in enumerate(self.views)],
        )


def run_of_recording(recording: Recording, name: str, rev: str) -> Run:
    """Return a recording as a run; an attention that was called several times has one view for each
    call.
    """
    # Shared by all views: the words of a text are joined once.
    known: KNOWN_WORDS = {}
    views = tuple(
        AttentionView(
            named if len(watched.calls) == 1 else f"{named} call {number}",
            call,
            recording.decode,
            token_name=recording.token_name,
        ).with_words(known)
        for named, watched in recording.items()
        for number, call in enumerate(watched.calls)
    )
    facts = (name, rev, "recording", name, recording.model, recording.keep)
    decodes = recording.decode is not None
    notice = without_texts([view.call for view in views], decodes=decodes)
    return Run(*facts, views, notice=notice, recording=recording)


# ----------------------------------------------------------------------------- requests about a run


class RunRequest(RequestParams):
    """A request about a run: its parameters l, h, i and b as what they name, read when they are
    asked for.
    """

    def __init__(
        self, run: Run, parameters: Mapping[str, str], memory: Memory | None = None
    ) -> None:
        super().__init__(parameters)
        self.run = run
        self.memory = memory or Memory()

    @cached_property
    def layer(self) -> int:
        """The parameter l, the index of an attention in the run."""
        return self.index("l", len(self.run.views), "attention")

    @cached_property
    def view(self) -> AttentionView:
        return self.run.views[self.layer]

    @cached_property
    def h(self) -> int:
        """The parameter h, a head's number in the model; heads that were not kept are unknown."""
        number = self.number("h")
        heads = self.view.call.heads
        if number not in heads:
            raise unknown(f"there is no head {number}; there are {', '.join(map(str, heads))}")
        return number

    @cached_property
    def b(self) -> int:
        """The parameter b, a sequence of the batch, 0 by default."""
        return self.index("b", self.view.batch, "sequence", 0)

    @cached_property
    def i(self) -> int:
        """The parameter i, a query."""
        return self.index("i", self.view.size[0], "query")

    @property
    def one(self) -> OneHead:
        """The head of the sequence that the request names."""
        return self.view.head(self.h, self.b)
