"""What `recording.sources` is asked, checked against the recording.

A user counts the tokens of one sequence from 0; tensors have a column for each token of the batch,
padding included. `Question` converts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..attention import Attention
from ..words import check_index
from .attention_call import TextColumns
from .names import HeadNumbers, Layers, list_names, numbers_of_heads, select_layers
from .recorded_call import RecordedCall
from .sources import OTHER, Segments, read_segments, span_positions, token_texts

Calls = Mapping[str, RecordedCall]


class NotKeptError(ValueError):
    """A recording kept too little; the message names the option of `ts.watch` that keeps it."""


@dataclass(frozen=True, eq=False)
class Question:
    """What `recording.sources` is asked, checked: the calls, and the rows of the span."""

    calls: Calls
    """Every attention's only call, by name, in the order of the model."""
    readers: Calls
    """Those that read the context: cross-attentions, or else all."""
    span: range
    """The positions of the tokens that were written, counted in the sequence."""
    sequence: int
    columns: TextColumns
    """Of the sequence's own tokens, in the tensors of the readers."""
    layers: Layers
    heads: tuple[int, ...] | None
    segments: Segments
    """Of the context."""
    restricted: dict[int, tuple[Any, Attention, Attention]] = field(default_factory=dict)
    """By the id of a definition: some rows, the definition, and that of these rows."""

    @property
    def reader(self) -> RecordedCall:
        return next(iter(self.readers.values()))

    def select(self, calls: Calls) -> Calls:
        """Return those of the calls that `layers` selects; raise a ValueError if there is none."""
        chosen = select_layers(list(self.calls), self.layers)
        # What does not read the context is no answer, whatever it is called.
        if self.layers is not None and calls.keys().isdisjoint(chosen):
            raise ValueError(
                f"layers={self.layers!r} selects {list_names(chosen)}, which read no context; of "
                f"this model {', '.join(calls)} do"
            )
        return {name: calls[name] for name in chosen if name in calls}

    def own_ids(self) -> tuple[list[int] | None, list[int] | None]:
        """Return the token ids of the sequence that is read and of the one that is written, where
        they are known.
        """
        read = self.reader.key_ids
        written = self.reader.query_ids
        columns = self.columns
        return (
            None
            if read is None
            else read[self.sequence, columns.keys.start : columns.keys.stop].tolist(),
            None
            if written is None
            else written[self.sequence, columns.queries.start : columns.queries.stop].tolist(),
        )

    @property
    def across(self) -> bool:
        """Whether the context is another sequence than the answer."""
        return self.reader.across

    @property
    def context(self) -> int:
        """How many tokens the context has: all of another sequence, or those before the span."""
        return len(self.columns.keys) if self.across else self.span.start

    @property
    def rows(self) -> list[int]:
        """The columns of the queries that wrote the span."""
        first = self.columns.queries.start if self.across else self.columns.keys.start
        # The query before a token wrote the token.
        return [first + token - 1 for token in self.span]


def ask(
    attentions: Mapping[str, Sequence[RecordedCall]],
    span: Any,
    segments: Any,
    layers: Layers,
    heads: HeadNumbers,
    sequence: int,
    decode: Any,
    token_name: Any,
) -> Question:
    """Return the question, checked against the recording; raise a ValueError of one sentence where
    it does not fit.
    """
    # Each attention must have been called for one text.
    calls = {name: _only(name, recorded) for name, recorded in attentions.items() if recorded}
    if not calls:
        raise ValueError("nothing was recorded: run the model inside of the block of ts.watch")

    # Cross-attentions read the context; in a model without any, all layers do.
    crossing = {name: call for name, call in calls.items() if call.across}
    readers = crossing or calls
    reader = next(iter(readers.values()))

    # Translate the sequence and the span into columns of the tensors.
    sequence = check_index("sequence", sequence, reader._facts.shape[0])
    columns = reader.text_columns(sequence)
    checked = check_span(span, reader, columns)
    # In self-attention, the context ends where the span begins.
    count = len(columns.keys) if reader.across else checked.start
    ids = reader.key_ids
    texts = None

    # Segments of one token each are named by the tokens' texts.
    if segments is None and ids is not None and decode is not None:
        own = ids[sequence, columns.keys.start : columns.keys.start + count].tolist()
        read = token_texts(own, count, decode, token_name)
        # A token of spaces alone would have an empty name.
        texts = [f"{text.strip() or repr(text)}" for text in read]
    numbers = None if heads is None else numbers_of_heads(heads)
    named = _read_segments(segments, count, texts)
    return Question(calls, readers, checked, sequence, columns, layers, numbers, named)


def _read_segments(given: Any, count: int, texts: Sequence[str] | None) -> Segments:
    if isinstance(given, Mapping) and OTHER in given:
        raise ValueError(f'"{OTHER}" is the name of the tokens in no segment; give another name')
    return read_segments(given, count, texts)


def _only(name: str, recorded: Sequence[RecordedCall]) -> RecordedCall:
    if len(recorded) > 1:
        raise ValueError(
            f'"{name}" was called for {len(recorded)} sequences; sources takes a recording of one '
            "run"
        )
    return recorded[0]


class AnswerPositions(NamedTuple):
    """Where the tokens stand whose sources can be asked for, counted in the sequence's own
    tokens.
    """

    first: int
    """The token of the first query that was recorded."""
    begins: int
    """The first token that was written after the prompt or, without a prompt, after the first
    token.
    """
    end: int
    """One past the last: the last query wrote the token after it."""
    has_prompt: bool

    @classmethod
    def of(cls, call: RecordedCall, columns: TextColumns) -> "AnswerPositions":
        """Return the positions of a sequence whose own tokens have these columns."""
        first = 0
        if not call.across:  # the first query may be a later token than the first key
            first = columns.queries.start + call.size[1] - call.size[0] - columns.keys.start
        prompt = call._facts.prompt
        # A prompt as long as the text is all of it: nothing was generated.
        has_prompt = prompt is not None and prompt < call.size[0]
        begins = first + 1
        if has_prompt and prompt is not None:
            # The prompt counts columns: subtract the padding in front of the sequence.
            begins = first + prompt - columns.queries.start
        return cls(first, begins, first + len(columns.queries) + 1, has_prompt)


def check_span(span: Any, call: RecordedCall, columns: TextColumns) -> range:
    """Return the positions of the tokens that were written; raise a ValueError if they are not in
    the answer.

    Positions count the sequence's own tokens, which have these columns.
    """
    first, begins, end, has_prompt = AnswerPositions.of(call, columns)
    positions = span_positions("span", span, end)

    # Refuse what is empty, has gaps, or lies outside of the answer.
    if not positions:
        raise ValueError(
            f"span={span!r} holds no token; it takes the positions of the tokens that were written"
        )
    if positions != list(range(positions[0], positions[-1] + 1)):
        raise ValueError(
            f"span={span!r} has gaps; ask for one stretch of tokens at a time, such as range(10, "
            "20)"
        )
    if positions[0] < 0 or positions[-1] >= end:
        raise ValueError(
            f"span={span!r} is not in the text, whose tokens are numbered 0 to {end - 1}, or from "
            f"-{end} to -1"
        )
    if has_prompt and positions[0] < begins:
        raise ValueError(
            f"span={span!r} begins in the prompt, which is tokens 0 to {begins - 1}; the answer "
            f"begins at {begins}"
        )
    # No recorded query wrote the first token.
    if positions[0] < first + 1:
        raise ValueError(f"span={span!r} begins at the first token, which no token comes before")
    return range(positions[0], positions[-1] + 1)
