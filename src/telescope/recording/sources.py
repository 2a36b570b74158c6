"""`recording.sources(span)`: how much of the tokens written in a span comes from every token and
segment before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from typing import Any, NamedTuple, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..field_words import FieldNames
from ..files import frame
from ..guesses import OF_SOURCES
from ..printed import STYLE, html_of
from ..traces import PlainTable, render_text, token_label
from ..words import whole_number
from .recorded_call import RecordedCall

OTHER = "other"


@dataclass(frozen=True, eq=False)
class Segments:
    """A segment for each token of a text, numbered from 0 on in the order of `names`.

    Tokens that no given segment holds belong to a last one, "other".

    Attributes:
        names: of the segments.
        ids: (token,), the number of each token's segment.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="queries-keys") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4, 5]]))
        >>> found = recording.sources([4], segments={"question": (0, 2)}).segments
        >>> found.names[:2], found.tokens()[:2]
        (('question', 'other'), [[0, 1], [2, 3]])
    """

    names: tuple[str, ...]
    ids: Int[Tensor, " token"]

    def tokens(self) -> list[list[int]]:
        """Return the positions of the tokens of every segment."""
        found: list[list[int]] = [[] for _ in self.names]
        for token, number in enumerate(self.ids.tolist()):
            found[number].append(token)
        return found

    def _with_rest(self, name: str, count: int) -> "Segments":
        """Return these segments and one more, of the tokens behind the text up to `count`."""
        # The new segment's number is the next one.
        return Segments(
            (*self.names, name), pad(self.ids, (0, count - len(self.ids)), value=len(self.names))
        )


def segments_of_calls(given: Any, calls: Sequence[RecordedCall]) -> Segments:
    """Return the segments of the text that these calls attend to; raise a ValueError if they attend
    to several.
    """
    # Segments number the tokens of one text: all calls must have its length.
    counts = {call.size[1] for call in calls}
    if len(counts) != 1:
        raise ValueError(
            f"segments belong to one text, and keys of {len(counts)} lengths were recorded"
        )
    # Texts of a batch may differ in length, without padding; segments fit the longest.
    longest = max(len(own.keys) for own in calls[0]._all_text_columns())
    return read_segments(given, longest)


def read_segments(given: Any, count: int, texts: Sequence[str] | None = None) -> Segments:
    """Return the segments of a text of `count` tokens.

    given   a mapping from names to spans; a list of spans; a number for each token, as in
            `survey(segments=...)`; None for a segment for each token, named by `texts`. A span is a
            range, a slice, a position, a pair (start, stop) or a list of positions.

    Raise a ValueError if segments overlap, are empty, or do not fit the text.
    """
    # Without segments, each token is one.
    if given is None:
        names = [f"{i}" for i in range(count)] if texts is None else list(texts)
        return Segments(tuple(names), torch.arange(count))
    if isinstance(given, Tensor):
        given = given.tolist()

    # Read names with spans, a number for each token, or spans without names.
    if isinstance(given, Mapping):
        spans = {str(name): _positions(name, span, count) for name, span in given.items()}
    elif given and all(issubclass(kind, SupportsIndex) for kind in {*map(type, given)}):
        return _from_numbers([whole_number("segments", one) for one in given], count)
    elif isinstance(given, Iterable) and not isinstance(given, str):
        spans = {str(i): _positions(i, span, count) for i, span in enumerate(given)}
    else:
        raise TypeError(
            "segments takes names and spans, or a number for each token, not "
            f"{type(given).__name__}"
        )

    # Number each token by its segment; -1 is a token in no segment yet.
    ids = torch.full((count,), -1)
    for number, (name, positions) in enumerate(spans.items()):
        where = torch.tensor(positions)
        # Weight of a token in two segments would count twice.
        taken = ids[where] >= 0
        if taken.any():
            first = int(where[taken][0])
            other = list(spans)[int(ids[first])]
            raise ValueError(
                f'segments "{other}" and "{name}" overlap at token {first}; a token belongs to one '
                "alone"
            )
        ids[where] = number
    return _with_other(list(spans), ids)


def _from_numbers(numbers: list[int], count: int) -> Segments:
    if len(numbers) != count:
        raise ValueError(
            f"segments has {len(numbers)} numbers for a text of {count} tokens; it takes one for "
            "each"
        )
    if min(numbers) < 0:
        raise ValueError(f"segments has the number {min(numbers)}; segments are numbered from 0 on")
    return Segments(tuple(str(i) for i in range(max(numbers) + 1)), torch.tensor(numbers))


def _with_other(names: list[str], ids: Tensor) -> Segments:
    # Add a segment for the rest, unless every token has one.
    if not (ids < 0).any():
        return Segments(tuple(names), ids)
    other = OTHER
    # A user may have given this name to a segment.
    while other in names:
        other = f"{other} tokens"
    return Segments((*names, other), torch.where(ids < 0, len(names), ids))


def _positions(name: Any, span: Any, count: int) -> list[int]:
    """Return the positions of a span; raise a ValueError if it is empty or not in the text."""
    positions = span_positions(f'segment "{name}"', span, count)
    if not positions:
        raise ValueError(f'segment "{name}" holds no token')
    for position in positions:
        if not 0 <= position < count:
            raise ValueError(
                f'segment "{name}" has token {position}; the text has {count}, numbered 0 to '
                f"{count - 1}"
            )
    return positions


def span_positions(what: str, span: Any, count: int) -> list[int]:
    """Return the positions of a span in a text of `count` tokens. Negative ones count from the end,
    -1 is the last; those outside of the text stay as they are, and a slice is cut to the text.
    """
    return [i + count if -count <= i < 0 else i for i in _given_positions(what, span, count)]


def _given_positions(what: str, span: Any, count: int) -> list[int]:
    """Return the positions of a span, as they are given."""
    if isinstance(span, slice):
        return list(range(*span.indices(count)))
    if isinstance(span, range):
        return list(span)
    if isinstance(span, SupportsIndex):
        return [whole_number(what, span)]
    # A tuple of two is start and stop; two single positions are given as a list.
    if isinstance(span, tuple) and len(span) == 2:
        start, stop = (whole_number(what, one) for one in span)
        # (5, -1) ends before the last token, as in a slice; (-3, 0) are the last three.
        return list(range(start, stop + count if stop < 0 <= start else stop))
    if isinstance(span, Iterable) and not isinstance(span, str):
        return [whole_number(what, one) for one in span]
    raise TypeError(
        f"{what} is a range, a slice, a pair (start, stop) or positions, not {type(span).__name__}"
    )


ANSWER = "the answer itself"
SHOWN = 20  # rows of a printed table
WIDE = 60  # characters of a segment's text in a printed table
KINDS = {
    "weights": "the mean weight, of layers, heads and written tokens",
    "carried": "weights times ‖W_O v‖, of each layer as shares, the mean of the layers",
    "rollout": "weights multiplied through all layers, half of each token staying where it is",
    "gradient": "weight times gradient, summed over layers and heads",
    "hidden": "the fall of the answer's log-probability, in nats, when the segment alone is hidden",
}
"""What the score of each `how` is."""


class Source(NamedTuple):
    """One segment of the context: its name, its tokens, what the answer takes from it, and its
    text.

    Attributes:
        name: of the segment.
        tokens: how many tokens it has.
        score: what the answer takes from it; `Sources.how` says how it was found.
        text: of its tokens.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="queries-keys") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4, 5]]))
        >>> first, second, *_ = recording.sources([4])
        >>> first.score >= second.score, first.tokens
        (True, 1)
    """

    name: str
    start: int
    """The position of its first token."""
    stop: int
    """One past the position of its last token."""
    tokens: int
    score: float
    share: float
    """The score divided by the sum of all scores, each without its sign."""
    text: str


@dataclass(frozen=True, eq=False)
class Sources(FieldNames):
    """Where the tokens of a span come from: a ranked table, which prints as one and draws as a text
    in a notebook.

    Iteration, indices and `len` are those of the rows, the largest score first. Shares sum to one,
    if no score is below zero: tokens in no segment are "other", and what comes from the answer's
    own tokens is "the answer itself".

    Attributes:
        how: how the scores were found, as `recording.sources` was told.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="queries-keys") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4, 5]]))
        >>> parts = {"question": (0, 2), "text": (2, 4)}
        >>> found = recording.sources([4], "rollout", segments=parts)
        >>> sorted(found.shares) == sorted(row.name for row in found.rows)
        True
        >>> (
        ...     len(found.token_scores()),
        ...     found.to_dict()["how"],
        ...     len(found.table()) == len(found),
        ... )
        (4, 'rollout', True)
    """

    _theirs = OF_SOURCES

    how: str
    span: range
    """The positions of the tokens that were written."""
    segments: Segments
    """Of the context, and of the answer's own tokens behind it where they count."""
    by_segment: Float[Tensor, " segment"]
    """The score of each segment, float64, in the order of the segments."""
    scores: Float[Tensor, " token"] | None
    """The score of every token of the context, float64; None for how="hidden", which knows segments
    alone.
    """
    context: tuple[str, ...]
    """The text of every token of the context, or its number where there is no tokenizer."""
    answer: tuple[str, ...]
    """The same of the tokens that were written."""

    @cached_property
    def rows(self) -> tuple[Source, ...]:
        """A row for each segment, the largest score first."""
        # Where the answer's own tokens count, they follow the context.
        whole = [*self.context, *self.answer]
        # Scores may be negative. Without any score, shares are 0 and not NaN.
        total = float(self.by_segment.abs().sum()) or 1.0
        rows = [
            Source(
                name,
                own[0],
                own[-1] + 1,
                len(own),
                score,
                score / total,
                "".join(whole[token] for token in own if token < len(whole)),
            )
            for name, own, score in zip(
                self.segments.names, self.segments.tokens(), self.by_segment.tolist(), strict=True
            )
            # A segment without tokens has no row.
            if own
        ]
        return tuple(sorted(rows, key=lambda row: -row.score))

    def __iter__(self) -> Iterator[Source]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Source:
        if isinstance(index, str):
            raise TypeError(
                f'sources are ranked rows, and no ["{index}"]; .shares["{index}"] is the share of '
                "a segment"
            )
        return self.rows[index]

    @property
    def shares(self) -> dict[str, float]:
        """The share of each segment, by name; segments of one name, such as two equal tokens, are
        added.
        """
        shares: dict[str, float] = {}
        for row in self.rows:
            shares[row.name] = shares.get(row.name, 0.0) + row.share
        return shares

    def table(self, *, library: str = "pandas") -> Any:
        """Return the rows as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        columns = {name: [getattr(row, name) for row in self.rows] for name in Source._fields}
        return frame({"how": [self.how] * len(self.rows), **columns}, library)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "how": self.how,
            "meaning": KINDS[self.how],
            "span": [self.span.start, self.span.stop],
            "context": list(self.context),
            "answer": list(self.answer),
            "scores": None if self.scores is None else self.scores.tolist(),
            "rows": [row._asdict() for row in self.rows],
        }

    def __rich__(self) -> PlainTable:
        written = _one_line("".join(self.answer))
        named = f'"{written}"' if written else "the next token"
        title = f"sources of {named}, by {self.how}\n{KINDS[self.how]}"
        table = PlainTable(
            title=title,
            box=None,
            pad_edge=False,
            title_justify="left",
            min_width=len(KINDS[self.how]),
        )
        for name in ("segment", "tokens", "score", "share", "text"):
            right = name in ("score", "share")
            table.add_column(
                name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
            )

        # Print the largest scores, and sum up the rest in one row.
        for row in self.rows[:SHOWN]:
            where = f"{row.start} to {row.stop - 1}" if row.stop > row.start + 1 else str(row.start)
            text = _one_line(row.text)
            table.add_row(_one_line(row.name), where, f"{row.score:.4g}", f"{row.share:.1%}", text)
        if len(self.rows) > SHOWN:
            rest = sum(row.share for row in self.rows[SHOWN:])
            table.add_row(f"{len(self.rows) - SHOWN} more", "", "", f"{rest:.1%}", "")
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())

    def _repr_html_(self) -> str:
        """Return the text of the context, each token on a background as strong as its score, then
        the answer, and the table of the segments.
        """
        scores = self.token_scores()
        # The largest score has the strongest background, whatever its sign.
        largest = max((abs(score) for score in scores), default=0.0) or 1.0
        words = "".join(
            _word(text, score, largest) for text, score in zip(self.context, scores, strict=True)
        )
        return (
            f'<div style="white-space: pre-wrap; line-height: 1.7">{words}<hr>'
            f"<strong>{escape(''.join(self.answer))}</strong><br><small>{escape(self.how)}: "
            f"{escape(KINDS[self.how])}</small></div>{STYLE}{html_of(self.__rich__())}"
        )

    def token_scores(self) -> list[float]:
        """Return a score for every token of the context; of how="hidden", that of the segment it
        belongs to.
        """
        scores: list[float] = (
            # A segment's score is that of all its tokens.
            self.by_segment[self.segments.ids] if self.scores is None else self.scores
        ).tolist()
        return scores


def _word(text: str, score: float, largest: float) -> str:
    """Return a token as HTML: blue where the score is above zero, red where it is below."""
    colour = "37, 99, 235" if score >= 0 else "220, 38, 38"
    return (
        f'<span title="{score:.4g}" style="background: rgba({colour}, '
        f'{0.8 * abs(score) / largest:.3f})">'
        f"{escape(text)}</span>"
    )


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= WIDE else f"{flat[: WIDE - 1]}…"


def token_texts(
    ids: Sequence[int] | None,
    count: int,
    decode: Callable[[list[int]], str] | None,
    token_name: Callable[[int], str | None] | None,
) -> list[str]:
    """Return the text of every token; its name where it has no text, or its number without a
    tokenizer.

    Some tokenizers drop the space before a token that is decoded alone; decoding the token after
    another shows it.
    """
    # Without a tokenizer, tokens are numbered.
    if ids is None or decode is None:
        return [f"{i} " for i in range(count)]
    # Decode each token, and each pair of neighbours, once.
    alone = cache(lambda token: decode([token]))
    pair = cache(lambda before, token: decode([before, token]))
    texts = []
    for before, token in zip([None, *ids], ids, strict=False):
        # A special token has no text: show its name, or its number.
        text = alone(token) or token_label(token, decode, token_name)
        # After another token, the text shows the space that the token alone lacks.
        if before is not None and alone(token) and pair(before, token) == f"{alone(before)} {text}":
            text = f" {text}"
        texts.append(text)
    return texts
