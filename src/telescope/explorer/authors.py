"""Answers about who wrote what: one score, split by who wrote what the query and the key read; and
the words that a head pushes up and down.

What cannot be split has a reason in its answer: to ask is no mistake of the reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..authors import Author, Labels, Push, Why
from ..recording import Recording
from .answers import Answer
from .run import AttentionView, Run, RunRequest

MOST_AUTHORS = 8  # of each side, by name; the others are one number
LEAST_SHARE = 1e-3  # of the largest, below which an author has no name either, such as rounding
MOST_PAIRS = 6
MOST_TOKENS = 8  # of each direction
NO_MODEL = "these vectors come from no model, so nobody wrote them: type a sentence of your own"
TOO_LONG = "the text is too long to keep who wrote what: choose a shorter one"
PADDING = "this token is padding, which is no part of the text"

# ---------------------------------------------------------------------------------------------- why


@dataclass(frozen=True)
class AuthorShare(Answer):
    """What one author has to do with a score.

    l  the attention, where the author is a head of this run; h: the head
    """

    name: str
    value: float
    l: int | None
    h: int | None


@dataclass(frozen=True)
class AuthorSide(Answer):
    """The authors of what a query, or a key, reads, the largest first: at most eight by name, and
    none below a thousandth of the largest.

    others  the sum of all others; left: how many they are
    """

    authors: Sequence[AuthorShare]
    others: float
    left: int


@dataclass(frozen=True)
class AuthorPair(Answer):
    """One term of a score: an author of the query, on an author of the key."""

    query: str
    key: str
    value: float


@dataclass(frozen=True)
class ScoreSplit(Answer):
    """A score as the sum of its terms: a pair of authors each. Summed to the authors of either
    side, the terms add up to the same score.

    score   q · k · scale, before softcap, bias and mask; masked: after them
    weight  of the key, after softmax
    pairs   the six largest terms
    terms   how many there are
    """

    score: float
    masked: float
    weight: float
    query: AuthorSide
    key: AuthorSide
    pairs: Sequence[AuthorPair]
    terms: int
    sentence: str


@dataclass(frozen=True)
class WhyAnswer(Answer):
    """Why a query looks at a key: its score, split by who wrote what the two read. With another key
    in `than`, all numbers are those of the key less those of the other one: what all keys have
    alike, which softmax does not see, cancels.

    than    the index of the other key, or null; other: what it is called
    query   what the query is called; in cross-attention, the word that it writes
    read    the token that the query read
    split   null where the score cannot be split
    reason  why it cannot, in one sentence
    """

    l: int
    h: int
    i: int
    j: int
    than: int | None
    b: int
    query: str
    key: str
    other: str | None
    read: str
    split: ScoreSplit | None
    reason: str | None


def why(request: RunRequest) -> WhyAnswer:
    """Answer who wrote what a score is made of, or why that cannot be known."""
    view = request.view
    h = request.h
    i = request.i
    j = request.index("j", view.size[1], "key")
    is_compared = "than" in request.parameters
    than = request.index("than", view.size[1], "key") if is_compared else None
    b = request.b
    query = view.tokens("q", b, [i])[0]
    key = view.tokens("k", b, [j])[0]
    other = None if than is None else view.tokens("k", b, [than])[0]
    answer = WhyAnswer(request.layer, h, i, j, than, b, query, key, other, query, None, None)
    try:
        recording = _recording(request.run)
        found = recording.why(
            view.call.name,
            h,
            _query(view, b, i),
            _position(view, "k", b, j),
            against=None if than is None else _position(view, "k", b, than),
            sequence=b,
        )
    except ValueError as problem:
        return replace(answer, reason=str(problem))
    read = found.query if view.kind == "cross" else query
    found = replace(found, query=read, key=key, against=other)
    return replace(answer, read=read, split=_split(found, _heads(request.run, recording)))


def _split(found: Why, heads: Mapping[str, tuple[int, int]]) -> ScoreSplit:
    return ScoreSplit(
        score=found.score,
        masked=found.masked,
        weight=found.weight,
        query=_side(found.by("query"), heads),
        key=_side(found.by("key"), heads),
        pairs=[AuthorPair(*term) for term in found.top(MOST_PAIRS)],
        terms=found.terms.numel(),
        sentence=found.sentence,
    )


def _side(sums: Mapping[str, float], heads: Mapping[str, tuple[int, int]]) -> AuthorSide:
    # The largest is first.
    least = LEAST_SHARE * abs(next(iter(sums.values())))
    named = [(name, value) for name, value in sums.items() if abs(value) >= least][:MOST_AUTHORS]
    others = list(sums.values())[len(named) :]
    authors = [AuthorShare(name, value, *heads.get(name, (None, None))) for name, value in named]
    return AuthorSide(authors, sum(others), len(others))


# ----------------------------------------------------------------------------------------- writes


@dataclass(frozen=True)
class PushedToken(Answer):
    """A token that a head pushes up or down.

    value  what the head adds to its logit, less what it adds to all logits on average
    key    the key that carried most of it; j: its index, null where it stands for many
    part   what the key carried
    """

    id: int
    text: str
    value: float
    key: str
    j: int | None
    part: float


@dataclass(frozen=True)
class WritesAnswer(Answer):
    """The tokens of the whole vocabulary that the output of a head pushes up and down most, after
    one query.

    after    the token that the query read
    written  the word that it wrote, in cross-attention
    up       null where the head has no logits, as is down
    reason   why it has none, in one sentence
    """

    l: int
    h: int
    i: int
    b: int
    after: str
    written: str | None
    up: Sequence[PushedToken] | None
    down: Sequence[PushedToken] | None
    reason: str | None


def writes(request: RunRequest) -> WritesAnswer:
    """Answer which words a head pushes up and down, or why that cannot be known."""
    view = request.view
    b = request.b
    i = request.i
    name = view.tokens("q", b, [i])[0]
    answer = WritesAnswer(request.layer, request.h, i, b, name, None, None, None, None)
    try:
        found = _recording(request.run).pushes(
            view.call.name, request.h, _query(view, b, i), top=MOST_TOKENS, sequence=b
        )
    except ValueError as problem:
        return replace(answer, reason=str(problem))
    # A query of a decoder that attends across is called by the word that it writes.
    if view.kind == "cross":
        answer = replace(answer, after=found.after, written=name)
    up, down = ([_pushed(view, b, one) for one in some] for some in (found.up, found.down))
    return replace(answer, up=up, down=down)


def _pushed(view: AttentionView, b: int, one: Push) -> PushedToken:
    if one.position is None:
        return PushedToken(one.id, one.token, one.value, one.key, None, one.part)
    j = view.call.text_columns(b).keys[one.position]
    key = view.tokens("k", b, [j])[0]
    return PushedToken(one.id, one.token, one.value, key, j, one.part)


# --------------------------------------------------------------------------------- places and names


def _recording(run: Run) -> Recording:
    if run.recording is None:
        raise ValueError(NO_MODEL)
    stream = run.recording._stream
    if run.kind == "sentence" and stream is not None and not stream.passes:
        raise ValueError(TOO_LONG)
    return run.recording


def _query(view: AttentionView, b: int, i: int) -> int:
    return _position(view, "q", b, view.row_of(i))


def _position(view: AttentionView, axis: str, b: int, column: int) -> int:
    """Return the position of a token among those of its sequence, padding left out."""
    columns = view.call.text_columns(b)
    own = columns.queries if axis == "q" else columns.keys
    if column not in own:
        raise ValueError(PADDING)
    return own.index(column)


def _heads(run: Run, recording: Recording) -> dict[str, tuple[int, int]]:
    """Return the attention and the number of each head of a run, by what authors are called."""
    label = Labels(list(recording))
    return {
        label(Author("head", view.call.name, h)): (l, h)
        for l, view in enumerate(run.views)
        for h in view.call.heads
    }
