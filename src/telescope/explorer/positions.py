"""Answers about where words are: what a model adds or rotates for a position, and what that does to
the scores of one query. Two answers need no model: random scores, and one position encoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Rotary
from ..layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..tasks import (
    ENCODINGS,
    MOST_FEATURES,
    POSITIONS,
    ScoreStatistics,
    encoding_curves,
    encoding_table,
    random_scores,
)
from ..tiles import OneHead
from .answers import Answer, RequestParams, Scores, Vector, bad_parameter
from .output import StackInputs
from .run import AttentionView, RunRequest

# Most columns and rows of the picture of an encoding
MOST_SHOWN_FEATURES = 256
MOST_SHOWN_POSITIONS = 64
SLIDER_WIDTHS = (4, 8, 16, 32, 64, 128)  # features that the page's slider has
MOST_QUERIES = 128  # over which scores are averaged by distance
# Bins of width 1 from -48.5 to 48.5; the outermost ones hold what lies beyond
HISTOGRAM_EDGE = 48.5
HISTOGRAM_BINS = 97
SHOWN_QUERY = 5  # of the random ones, whose scores and weights are shown one by one

# ------------------------------------------------------------------------------------ random scores


@dataclass(frozen=True)
class ScoreSpread(Answer):
    """What random scores do, and the scores and weights of one query.

    largest    the largest of a query's 8 weights, the mean over the queries
    gradient   Σ w(1 - w) over a query's weights, the mean over the queries
    histogram  97 counts
    """

    variance: float
    largest: float
    gradient: float
    histogram: Sequence[int]
    scores: Vector
    weights: Vector


@dataclass(frozen=True)
class VarianceAnswer(Answer):
    """q·k of random vectors with d features, as it is and divided by √d.

    most  the most features that can be asked for
    edge  where the histogram ends, on both sides
    """

    exact = True
    d: int
    most: int
    edge: float
    dot: ScoreSpread
    divided: ScoreSpread


def variance(params: RequestParams) -> VarianceAnswer:
    """Answer the spread of random scores for d features, 64 by default."""
    # Vectors without features have no scores: 0 is taken for 1.
    d = params.index("d", MOST_FEATURES + 1, "dimension", 64) or 1
    scores = random_scores(d)
    both = (_spread(part) for part in (scores, scores / d**0.5))
    return VarianceAnswer(d, MOST_FEATURES, HISTOGRAM_EDGE, *both)


def _spread(scores: Float[Tensor, "query key"]) -> ScoreSpread:
    # Move what lies beyond the edge into the outermost bins.
    inside = scores.clamp(0.5 - HISTOGRAM_EDGE, HISTOGRAM_EDGE - 0.5)
    histogram = torch.histc(inside, HISTOGRAM_BINS, -HISTOGRAM_EDGE, HISTOGRAM_EDGE)
    return ScoreSpread(
        **vars(ScoreStatistics.of(scores)),
        histogram=histogram.long().tolist(),
        scores=scores[SHOWN_QUERY],
        weights=scores[SHOWN_QUERY].softmax(-1),
    )


# ------------------------------------------------------------------------ encodings without a model


@dataclass(frozen=True)
class Curve(Answer):
    """A number for each distance from 0 to 63."""

    name: str
    numbers: Vector


@dataclass(frozen=True)
class EncodingTable(Answer):
    """A position encoding without a model.

    kind        "sinusoidal", "rotary" or "alibi"
    n           positions; widths: the features that the page offers
    table       what is added (position x feature), the angles in radians (position x pair), or the
                bias of ALiBi (head x distance)
    curves      by distance: the dot product of two positions, the score of one query and one key,
                or the weight of a key where all scores are equal
    difference  the largest of such a score between positions of the same distance: 0 but for
                rounding
    """

    exact = True
    kind: str
    d: int
    n: int
    widths: Sequence[int]
    table: Sequence[Sequence[float]]
    curves: Sequence[Curve]
    difference: float


def encodings(params: RequestParams) -> EncodingTable:
    """Answer one position encoding without a model, of d features, 64 by default."""
    d = params.number("d", 64)
    # Sinusoids and rotations take features in pairs.
    if not 2 <= d <= MOST_SHOWN_FEATURES or d % 2:
        raise bad_parameter(f"d={d} is not an even number from 2 to {MOST_SHOWN_FEATURES}")
    kind = params.word("kind", ENCODINGS)
    curves, difference = encoding_curves(kind, d)
    return EncodingTable(
        kind=kind,
        d=d,
        n=POSITIONS,
        widths=SLIDER_WIDTHS,
        table=_rounded(encoding_table(kind, d), 6),
        curves=[Curve(name, numbers) for name, numbers in curves.items()],
        difference=difference,
    )


def _rounded(table: Float[Tensor, "row column"], places: int) -> list[list[float]]:
    return [[round(x, places) for x in row] for row in table.tolist()]


# ----------------------------------------------------------------------------- positions of a model


@dataclass(frozen=True)
class AddedTable(Answer):
    """What is added to the embeddings of the first positions: the features that are shown, of all
    `features`.
    """

    features: int
    shown: Sequence[int]
    table: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Angles(Answer):
    """By how much each pair of features is rotated from one position to the next.

    pairs  "halves" or "neighbours"
    """

    pairs: str
    radians: Vector


@dataclass(frozen=True)
class ByDistance(Answer):
    """The mean score and weight by key - query, over the visible pairs of some queries.

    pairs    how many pairs have each distance
    queries  how many queries were read
    """

    distances: Sequence[int]
    scores: Vector
    weights: Vector
    pairs: Sequence[int]
    queries: int


@dataclass(frozen=True)
class EncodingAnswer(Answer):
    """What a model does for positions.

    kind   "sinusoidal", "learned", "rotary", "none" or "unknown"
    bias   such as alibi(8)
    """

    exact = True
    l: int
    h: int
    kind: str
    bias: str | None
    added: AddedTable | None
    angles: Angles | None
    by_distance: ByDistance


@dataclass(frozen=True)
class AddedVectors(Answer):
    """The embedding of one token, what is added to it, and the dot products of its position with
    all others.
    """

    embedded: Sequence[float]
    position: Sequence[float]
    dots: Vector


@dataclass(frozen=True)
class ScoresAndWeights(Answer):
    """The scores before the mask, and the weights."""

    scores: Scores
    weights: Scores


@dataclass(frozen=True)
class PositionsAnswer(Answer):
    """One query with its position and without.

    biases   what is added to the scores; null without a bias
    without  the same for a head that does not know positions; null where that is not known
    why      the reason then
    """

    exact = True
    l: int
    h: int
    i: int
    tokens: Sequence[str]
    added: AddedVectors | None
    biases: Scores | None
    with_: ScoresAndWeights
    without: ScoresAndWeights | None
    why: str | None


@torch.no_grad()
def encoding(request: RunRequest) -> EncodingAnswer:
    """Answer what a model does for positions, and a head's scores by distance."""
    view = request.view
    view.require("positions")
    one = request.one
    inputs = view.inputs
    # Of a recording the inputs are not known, so that its kind is "unknown".
    added = None if inputs is None else inputs.added
    rotary = None if inputs is None else inputs.rotary
    return EncodingAnswer(
        l=request.layer,
        h=request.h,
        kind="unknown" if inputs is None else inputs.kind,
        bias=None if one.attention.bias is None else repr(view.call.attention.bias),
        added=None if added is None else _picture(added),
        angles=None if rotary is None else _angles(rotary, one.keys.shape[-1]),
        by_distance=_by_distance(one),
    )


@torch.no_grad()
def positions(request: RunRequest) -> PositionsAnswer:
    """Answer one query with its position and without."""
    view = request.view
    view.require("positions")
    one = request.one
    i = request.i
    inputs = view.inputs
    seen = row_in_float64(one, i)
    steps = seen.steps
    plain = _unplaced(view, one, request.h)
    return PositionsAnswer(
        l=request.layer,
        h=request.h,
        i=i,
        tokens=view.tokens("k", request.b, range(view.size[1])),
        added=None if inputs is None else _vectors(inputs, i),
        # The step "biased" adds to the step "capped" before it.
        biases=None if one.attention.bias is None else steps["biased"] - steps["capped"],
        with_=_row(seen),
        without=None if isinstance(plain, str) else _row(row_in_float64(plain, i)),
        why=plain if isinstance(plain, str) else None,
    )


def _picture(added: Float[Tensor, "n d_model"]) -> AddedTable:
    d = added.shape[1]
    # Of many features, some at equal distances.
    shown = [at * d // min(d, MOST_SHOWN_FEATURES) for at in range(min(d, MOST_SHOWN_FEATURES))]
    return AddedTable(d, shown, _rounded(added[:MOST_SHOWN_POSITIONS, shown], 5))


def _vectors(inputs: StackInputs, i: int) -> AddedVectors | None:
    added = inputs.added
    if added is None:
        return None
    embedded, position = _rounded(torch.stack([inputs.embedded[i], added[i]]), 6)
    return AddedVectors(embedded, position, added.double() @ added[i].double())


def _angles(rotary: Rotary, d_k: int) -> Angles:
    # The angles of position 1 are those from each position to the next.
    turned = rotary.at(torch.ones(1, dtype=torch.long), d_k, torch.float64)
    return Angles(rotary.pairs, torch.atan2(turned.sin, turned.cos)[0])


def _unplaced(view: AttentionView, one: OneHead, h: int) -> OneHead | str:
    """Return a head as if it did not know positions, or the reason why that is not known."""
    # Without the bias; the recorded log-sum-exp is of other scores.
    bare = one._replace(attention=replace(one.attention, bias=None), lse=None)
    inputs = view.inputs
    if inputs is not None and inputs.rotary is not None:
        # Queries and keys as they were before rotation: rotated back by their own angles.
        queries, keys = (
            inputs.rotary(vectors.double(), -torch.arange(vectors.shape[-2], device=vectors.device))
            for vectors in (one.queries, one.keys)
        )
        return bare._replace(queries=queries, keys=keys)
    # Nothing is added or rotated: only a bias may know positions.
    if inputs is None or inputs.added is None:
        if one.attention.bias is not None:
            return bare
        if inputs is None:
            return "how this model knows positions was not recorded"
        return "this model has no positions: only its mask tells the words apart"

    # What is added is left out, and the first layer's queries and keys are computed again.
    block = view.block
    attention = getattr(block, "self_attention", None)
    if not isinstance(block, EncoderBlock | DecoderBlock) or not isinstance(
        attention, MultiHeadAttention
    ):
        return "queries and keys without positions are known for dot-product attention alone"
    if next((part for part in view.name.split(".") if part.isdigit()), None) != "0":
        return (
            "positions are added once, before the first layer: layer 0 shows what they do to scores"
        )
    norm = block.add_norm_1
    read = (norm.norm(inputs.unplaced) if norm.pre_norm else inputs.unplaced)[None]
    queries = attention.queries(read)
    keys, _ = attention.keys_and_values(read)
    place = view.call._head_index(h)
    # Several query heads may share the keys of one.
    shared = place * keys.shape[1] // queries.shape[1]
    return bare._replace(queries=queries[:, [place]], keys=keys[:, [shared]])


def _row(seen: RowInFloat64) -> ScoresAndWeights:
    return ScoresAndWeights(seen.steps["biased"], seen.steps["weights"])


def _by_distance(one: OneHead) -> ByDistance:
    n_q, n_k = one.size
    count = min(n_q, MOST_QUERIES)
    # Of a long text, some queries at equal distances.
    chosen = [at * n_q // count for at in range(count)]
    shift = n_q - 1  # the smallest distance, -(n_q - 1), is the first
    scores, weights, pairs = (torch.zeros(n_q + n_k - 1, dtype=torch.float64) for _ in range(3))
    for i in chosen:
        seen = row_in_float64(one, i)
        visible = seen.steps["masked"].cpu() != -torch.inf
        place = (torch.arange(n_k) - i + shift)[visible]
        scores[place] += seen.steps["biased"].cpu()[visible]
        weights[place] += seen.steps["weights"].cpu()[visible]
        pairs[place] += 1
    # Distances at which no pair is visible are left out.
    known = pairs > 0
    return ByDistance(
        # The last query stands at the last key, whatever their numbers are.
        distances=(torch.arange(len(pairs)) - shift + n_q - n_k)[known].tolist(),
        scores=(scores / pairs)[known],
        weights=(weights / pairs)[known],
        pairs=pairs[known].long().tolist(),
        queries=count,
    )
