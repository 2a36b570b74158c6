"""Answers about whole attentions: pictures and habits of heads, geometry of the stream, tokens, and
the weight that they receive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import CLEAR, HABIT_KEYS, IN_SPACE, MEASURES, punctuation_test
from ..recording import heads_of
from ..tiles import BUDGET, Tiles
from ..traces import Plane, Words, cosines, plane
from .answers import ABSENT, Absent, Answer, Columns, Matrix, RequestParams, Scores, Vector, Weights
from .run import AttentionView, RunRequest
from .walk import Rest, Step
from .weights import is_small, known_share, pooled_weights, top_weights, word_weights

PICTURE_SIDE = 48  # pixels of a head's picture
# The most tokens in one answer
MOST_POINTS = 512
MOST_COSINES = 64
MOST_TOKENS = 4096
MOST_RECEIVED = 512
MOST_LARGEST = 14  # weights of one query
# The numbers of heads that read an image, of which one is a share of the weight, as habits are.
SHARES = tuple(name for name in IN_SPACE if MEASURES[name].is_share)


def habit_meanings() -> dict[str, str]:
    """Return the keys whose share of the weight is each habit, in words."""
    return {**HABIT_KEYS, **{name: MEASURES[name].meaning for name in SHARES}}


def distance_meanings() -> dict[str, str]:
    """Return how far heads look, in words, by the names of the numbers."""
    return {name: MEASURES[name].meaning for name in IN_SPACE if name not in SHARES}


def _by_words(params: RequestParams) -> bool:
    return params.word("by", ("pieces", "words")) == "words"


# ------------------------------------------------------------------------------------------ heads


@dataclass(frozen=True)
class HeadMap(Answer):
    """A head's weights, pooled where there are more tokens than pixels."""

    h: int
    share: Weights


@dataclass(frozen=True)
class HeadMeasures(Answer):
    """The kind and all measures of a head, by name."""

    h: int
    measures: Columns


@dataclass(frozen=True)
class HeadsAnswer(Answer):
    """A small map of each head of a layer, and what each head does by habit.

    rows        of each map, at most 48; columns likewise
    samples     how many of a pixel's queries were read; 0 where the maps are exact
    habits      null where they would need a pass over a long text
    habit_keys  the keys whose share of the weight is each habit, in words
    distances   how far heads look, in words, by the names of the numbers
    clear       the share from which on a habit names the kind of a head
    names       the words of the rows, where they are words; columns_of: of the columns
    """

    l: int
    rows: int
    columns: int
    exact_: bool
    samples: float
    maps: Sequence[HeadMap]
    habits: Sequence[HeadMeasures] | None
    habit_keys: dict[str, str]
    distances: dict[str, str]
    clear: float
    names: Sequence[str] | Absent = ABSENT
    columns_of: Sequence[str] | Absent = ABSENT


def heads(request: RunRequest) -> HeadsAnswer:
    """Answer a small picture and the measured habits of each head, or of the head h alone."""
    view = request.view
    call = view.call
    b = request.b
    which = [request.h] if "h" in request.parameters else list(call.heads)
    small = is_small(view)
    names: Sequence[str] | Absent = ABSENT
    columns_of: Sequence[str] | Absent = ABSENT

    # By words the picture is an alignment; else all scores are pooled, or sampled of a long text.
    has_words = view.words("q") is not None and "alignment" not in view.missing
    if _by_words(request) and small and has_words:
        words = word_weights(view, b)
        shares = [words.weights[call.heads.index(h)] for h in which]
        exact = call._has_queries
        samples: float = 0
        names = words.rows
        columns_of = words.columns
    else:
        drawn = [_picture(view, b, h, small=small) for h in which]
        shares = [share for share, _ in drawn]
        exact = all(count is None for _, count in drawn)
        samples = max(count or 0 for _, count in drawn)
    # All pictures of an attention have one size.
    height, width = shares[0].shape
    return HeadsAnswer(
        l=request.layer,
        rows=height,
        columns=width,
        exact_=exact,
        samples=samples,
        maps=[HeadMap(h, share) for h, share in zip(which, shares, strict=True)],
        # Habits of a long text would need all of its scores; a summary holds them.
        habits=_habits(view, which) if small or not call._has_queries else None,
        habit_keys=habit_meanings(),
        distances=distance_meanings(),
        clear=CLEAR,
        names=names,
        columns_of=columns_of,
    )


def _picture(
    view: AttentionView, b: int, h: int, *, small: bool
) -> tuple[Float[Tensor, "row column"], float | None]:
    """Return a head's picture, and how many of a pixel's queries it samples; None for all."""
    call = view.call
    place = call.heads.index(h)
    rows, columns = (min(PICTURE_SIDE, length) for length in view.size)
    # Of a short text, all weights are pooled.
    if call._has_queries and small:
        return call.survey().map(rows, columns)[b, place], None
    # Of a long text, one tile is computed, exact or sampled as far as the budget goes.
    if call._has_queries:
        view.require("map")
        tile = Tiles(view.head(h, b), PICTURE_SIDE).tile(0, 0, 0, BUDGET)
        # Beyond the last query and key a tile is NaN; its numbers are log2 of weights.
        height = (~tile.share[:, 0].isnan()).sum()
        width = (~tile.share[0].isnan()).sum()
        return tile.share[:height, :width].exp2(), None if tile.exact else tile.samples
    # A summary may hold a map; else the largest weights of each query are drawn.
    recorded = call._facts.recorded
    if recorded is not None:
        return call.survey().map(*recorded)[b, place], None
    view.require("map")
    share = pooled_weights(call, b, place, rows, columns, view.size[1])
    return share, known_share(call, b)


def _habits(view: AttentionView, which: list[int]) -> list[HeadMeasures]:
    """Return the measured habits of some heads, by their numbers in the model."""
    found = []
    is_mark = None if view.decode is None else punctuation_test(view.decode)
    for measured in heads_of({view.name: [view.call]}, is_mark).to_dict():
        number = measured.pop("number")
        # The layer is popped because the page knows it; it is never empty.
        if measured.pop("layer") and number in which:
            found.append(HeadMeasures(number, Columns(measured)))
    return found


# --------------------------------------------------------------------------------------- geometry


@dataclass(frozen=True)
class Cosines(Answer):
    """The cosine between the vectors of every two tokens."""

    before: Matrix
    after: Matrix


@dataclass(frozen=True)
class PlaneInSpace(Answer):
    """Where the plane of a worked example lies among its features: a vector is drawn at the dot
    products of vector - centre with both axes.

    before, after  the vectors of the tokens, whole
    rows           the row of the input x that each token's vector before is
    """

    axes: Matrix
    centre: Vector
    before: Matrix
    after: Matrix
    rows: Sequence[int]


@dataclass(frozen=True)
class GeometryAnswer(Answer):
    """The vectors of tokens before and after the attention, projected onto one plane.

    n          tokens of the text
    before     [x, y] of each token, in one plane with `after`
    explained  the share of the variance along x and y
    moved      the cosine between a token's vectors before and after
    cosines    null of more than 64 tokens
    space      of a worked example, whose points can be moved; null of a model
    """

    exact = True
    l: int
    start: int
    stop: int
    n: int
    tokens: Sequence[str]
    before: Matrix
    after: Matrix
    explained: Sequence[float]
    moved: Vector
    cosines: Cosines | None
    space: PlaneInSpace | None


def geometry(request: RunRequest) -> GeometryAnswer:
    """Answer the stream before and after the attention, of at most 512 tokens, on a plane."""
    view = request.view
    view.require("geometry")
    b = request.b
    span = request.span(view.size[0], MOST_POINTS)
    which = [view.row_of(i) for i in span]
    tokens = view.tokens("q", b, span)
    before = view.call.before[b, which]
    after = view.call.after[b, which]

    # Pieces become words where the whole text is shown; the views of an example share a plane.
    words = view.words("q") if _by_words(request) and len(span) == view.size[0] else None
    if words is not None:
        tokens = list(words.names)
        before = _mean_by_word(before, words)
        after = _mean_by_word(after, words)
        span = range(len(tokens))
    if view.beside:
        tokens = _tokens_of_all(view.beside)
        before = torch.cat([one.call.before[0] for one in view.beside])
        after = torch.cat([one.call.after[0] for one in view.beside])
        span = range(len(tokens))

    # One plane for both, so that a token's move can be seen.
    flat = plane(before, after)
    # Cosines of all pairs grow with the square of the tokens.
    few = len(tokens) <= MOST_COSINES
    return GeometryAnswer(
        l=request.layer,
        start=span.start,
        stop=span.stop,
        n=max(span.stop, view.size[0]) if len(tokens) == len(which) else len(tokens),
        tokens=tokens,
        before=flat.before,
        after=flat.after,
        explained=flat.explained,
        moved=flat.moved,
        cosines=Cosines(cosines(before), cosines(after)) if few else None,
        space=_space(request, flat, before, after, span),
    )


def _space(
    request: RunRequest,
    flat: Plane,
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n d"],
    span: range,
) -> PlaneInSpace | None:
    """Return the plane of a worked example in its space, or None of other runs."""
    example = request.run.example
    if example is None:
        return None
    words = next(one.rows for one in example.inputs if one.name == "x")
    assert words is not None
    # Views in one plane name their words. Other words may occur twice, and are taken by place.
    names = [name for one in request.view.beside for name in one.names("q", 0)]
    rows = [words.index(name) for name in names] or list(span)
    return PlaneInSpace(flat.axes, flat.centre, before, after, rows)


def _mean_by_word(vectors: Float[Tensor, "token d"], words: Words) -> Float[Tensor, "word d"]:
    """Return the mean vector of each word's tokens."""
    ids = torch.tensor(words.word_ids)
    # Sum the vectors of each word's tokens, then divide by their number.
    means = vectors.new_zeros(len(words.names), vectors.shape[1]).index_add(0, ids, vectors.cpu())
    return means / ids.bincount(minlength=len(words.names))[:, None]


def _tokens_of_all(views: tuple[AttentionView, ...]) -> list[str]:
    """Return the tokens of several views, one after the other; one that several have is told apart
    by its view's title.
    """
    owners = [(token, view.title) for view in views for token in view.names("q", 0)]
    tokens = [token for token, _ in owners]
    return [title if tokens.count(token) > 1 and title else token for token, title in owners]


# ------------------------------------------------------------------------------ tokens and weights


@dataclass(frozen=True)
class TokenRange(Answer):
    """The tokens `start` to `stop` of `n`. A token without text is its name, such as </s>, or its
    id. In cross-attention, a query is named by the token that it predicts: "…" for the last one if
    it was never read.

    axis   "q" or "k"
    words  the index of each token's word, over the whole axis; null where there are no words
    names  the texts of the words in the range, from words[0] on
    """

    l: int
    axis: str
    start: int
    stop: int
    n: int
    tokens: Sequence[str]
    words: Sequence[int] | None
    names: Sequence[str] | None


@dataclass(frozen=True)
class ReceivedAnswer(Answer):
    """How much weight each token of a part of the text gets from all queries; `most` is the largest
    of the whole text.
    """

    l: int
    h: int
    start: int
    stop: int
    n: int
    tokens: Sequence[str]
    received: Scores
    most: float


@dataclass(frozen=True)
class TopAnswer(Answer):
    """The largest weights of one query, as in a trace, with the one step "weights"."""

    l: int
    h: int
    i: int
    token: str
    n_k: int
    keys: Sequence[int]
    tokens: Sequence[str]
    steps: Sequence[Step]
    rest: Rest


def tokens(request: RunRequest) -> TokenRange:
    """Answer the texts of at most 4,096 queries or keys, and the words that they belong to."""
    view = request.view
    axis = request.word("axis", ("q", "k"))
    b = request.b
    count = view.length(axis)
    span = request.span(count, MOST_TOKENS)
    words = view.words(axis)
    # Words are numbered over the whole axis; names are those of the range alone.
    word_of = None if words is None else words.word_ids[span.start : span.stop]
    names = words.names[word_of[0] : word_of[-1] + 1] if words is not None and word_of else None
    return TokenRange(
        l=request.layer,
        axis=axis,
        start=span.start,
        stop=span.stop,
        n=count,
        tokens=view.tokens(axis, b, span),
        words=word_of,
        names=names,
    )


def received(request: RunRequest) -> ReceivedAnswer:
    """Answer how much weight each of at most 512 tokens gets from all queries."""
    view = request.view
    view.require("map")
    h = request.h
    b = request.b
    span = request.span(view.size[1], MOST_RECEIVED)
    # Sums over all queries, which may be larger than 1.
    weights = view.call.head(h).received[b, 0].double().cpu()
    return ReceivedAnswer(
        l=request.layer,
        h=h,
        start=span.start,
        stop=span.stop,
        n=view.size[1],
        tokens=view.tokens("k", b, span),
        received=weights[span.start : span.stop],
        most=float(weights.max()),
    )


def largest_weights(request: RunRequest) -> TopAnswer:
    """Answer the largest weights of one query, which a summary holds too."""
    view = request.view
    view.require("map")
    place = view.call.heads.index(request.h)
    top = top_weights(view.call, request.b)
    weights, keys = (part[place, request.i, :MOST_LARGEST] for part in top)
    # Weight 0 fills up where a query sees fewer keys than were kept.
    known = weights > 0
    weights = weights[known]
    shown: list[int] = keys[known].tolist()
    # Rounded weights may sum to a little more than 1.
    rest = max(0.0, 1.0 - float(weights.sum()))
    return TopAnswer(
        l=request.layer,
        h=request.h,
        i=request.i,
        token=view.tokens("q", request.b, [request.i])[0],
        n_k=view.size[1],
        keys=shown,
        tokens=view.tokens("k", request.b, shown),
        steps=[Step("weights", "weights", weights)],
        rest=Rest(view.size[1] - len(shown), rest, None),
    )
