"""Answers about one query of one head: every step and product, and single weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..tiles import OneHead
from .answers import ABSENT, Absent, Answer, Matrix, Scores, Vector
from .run import AttentionView, RunRequest
from .weights import top_weights

MOST_CELLS = 32  # weights in one answer to /cells

# -------------------------------------------------------------------------------------------- trace


@dataclass(frozen=True)
class Stream(Answer):
    """The residual stream before and after an attention, at one query."""

    before: Vector
    after: Vector


@dataclass(frozen=True)
class Factors(Answer):
    """What the terms of the scores are products of."""

    query: Vector
    key: Matrix


@dataclass(frozen=True)
class Step(Answer):
    """One step from scores to weights, with a number for each key."""

    name: str
    formula: str
    numbers: Scores


@dataclass(frozen=True)
class Rest(Answer):
    """The sum over all keys that an answer leaves out."""

    keys: int
    weight: float
    context: Vector | None


@dataclass(frozen=True)
class TraceAnswer(Answer):
    """Every step of one query: of all keys if there are at most 512; else of the 64 with the
    largest weights, by position, and the sum over all others in `rest`.

    token    the query's token; tokens: those of the keys
    n_k      how many keys there are; keys: the positions of those in the answer
    formula  of the whole attention; score: of a score
    stream   null where it was not kept
    value    null where values were not kept, as is context
    factors  null where the score is no product
    terms    their sums over the features are the scores
    steps    scores, scaled, capped, biased, masked, weights: those that the definition has
    lse      ln Σ exp(score) over all keys; null where the normaliser is not softmax
    context  Σ weight · value + rest.context
    """

    exact = True
    l: int
    h: int
    i: int
    b: int
    token: str
    n_k: int
    keys: Sequence[int]
    tokens: Sequence[str]
    formula: str
    score: str
    scale: float
    stream: Stream | None
    query: Vector
    key: Matrix
    value: Matrix | None
    factors: Factors | None
    terms: Matrix
    steps: Sequence[Step]
    lse: float | None
    sink: float | None
    context: Vector | None
    rest: Rest


def trace(request: RunRequest) -> TraceAnswer:
    """Answer every step of one query."""
    request.view.require("trace")
    one = request.one
    return trace_row(request, request.view, one, row_in_float64(one, request.i))


def trace_row(
    request: RunRequest, view: AttentionView, one: OneHead, seen: RowInFloat64
) -> TraceAnswer:
    """Return the trace of the query that was computed, in a view that may be edited."""
    b = request.b
    i = request.i
    # Of a long text, the keys with the largest weights, by position.
    keys: list[int] = seen.keys.tolist()
    d_k = one.keys.shape[-1]
    return TraceAnswer(
        l=request.layer,
        h=request.h,
        i=i,
        b=b,
        token=view.tokens("q", b, [i])[0],
        n_k=view.size[1],
        keys=keys,
        tokens=view.tokens("k", b, keys),
        formula=one.attention.formula(d_k),
        score=one.attention.score.formula,
        scale=one.attention.scale_for(d_k),
        stream=stream_at(view, b, i),
        query=seen.query,
        key=seen.key,
        value=seen.value,
        factors=None if seen.factors is None else Factors(*seen.factors),
        terms=seen.terms,
        steps=[
            Step(name, formula, seen.steps[name])
            for name, formula in seen.formulas.items()
            if name in seen.steps
        ],
        lse=seen.lse,
        sink=seen.sink,
        context=seen.context,
        rest=Rest(view.size[1] - len(keys), seen.rest_weight, seen.rest),
    )


def stream_at(view: AttentionView, b: int, i: int) -> Stream | None:
    """Return the residual stream at query i, or None where it was not kept."""
    if "geometry" in view.missing:
        return None
    row = view.row_of(i)
    return Stream(view.call.before[b, row], view.call.after[b, row])


# -------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class CellAnswer(Answer):
    """Every step of one query and one key.

    visible  whether the mask lets the query see the key
    dot      the score; null where a recording kept summaries, as are scaled and lse
    p        the weight; null where the key is not among the largest weights of a summary
    """

    exact = True
    l: int
    h: int
    i: int
    j: int
    b: int
    query: str
    key: str
    visible: bool
    dot: float | None
    scaled: float | None
    capped: float | Absent
    biased: float | Absent
    masked: float | Absent
    lse: float | None
    p: float | None


@dataclass(frozen=True)
class CellsAnswer(Answer):
    """The weights of one query on keys j to j + 31, or to the last key; null where the key is
    masked, or not among the largest weights, where a recording kept summaries.
    """

    exact = True
    l: int
    h: int
    i: int
    j: int
    b: int
    p: Sequence[float | None]


def cell(request: RunRequest) -> CellAnswer:
    """Answer every step of one query and one key."""
    # A summary has no scores, only the largest weights.
    if not request.view.call._has_queries:
        weight = cells(request).p[0]
        steps: Any = dict.fromkeys(("scores", "scaled", "lse"), None) | {"weights": weight}
        return _cell(request, steps, visible=True)
    j = _keys(request, 1)[0]
    seen = row_in_float64(request.one, request.i, torch.tensor([j]))
    steps = {name: float(step) for name, step in seen.steps.items()} | {"lse": seen.lse}
    return _cell(request, steps, visible=steps["masked"] != -torch.inf)


def _cell(request: RunRequest, steps: dict[str, Any], *, visible: bool) -> CellAnswer:
    view = request.view
    j = _keys(request, 1)[0]
    return CellAnswer(
        l=request.layer,
        h=request.h,
        i=request.i,
        j=j,
        b=request.b,
        query=view.tokens("q", request.b, [request.i])[0],
        key=view.tokens("k", request.b, [j])[0],
        visible=visible,
        dot=steps["scores"],
        scaled=steps["scaled"],
        capped=steps.get("capped", ABSENT),
        biased=steps.get("biased", ABSENT),
        masked=steps.get("masked", ABSENT),
        lse=steps["lse"],
        p=steps["weights"],
    )


def cells(request: RunRequest) -> CellsAnswer:
    """Answer the weights of one query on adjacent keys: the row is summed once for all of them."""
    keys = _keys(request, MOST_CELLS)
    call = request.view.call
    if call._has_queries:
        seen = row_in_float64(request.one, request.i, torch.tensor(keys))
        weights = seen.steps["weights"].tolist()
        visible = (seen.steps["masked"] != -torch.inf).tolist()
        # Masked is not the same as a weight that rounds to 0.
        shown = [p if seen else None for p, seen in zip(weights, visible, strict=True)]
    else:
        place = call.heads.index(request.h)
        weights, places = (part[place, request.i].tolist() for part in top_weights(call, request.b))
        # Weight 0 fills up where a query has fewer keys than the summary keeps.
        known = {key: weight for key, weight in zip(places, weights, strict=True) if weight > 0}
        shown = [known.get(key) for key in keys]
    return CellsAnswer(request.layer, request.h, request.i, keys[0], request.b, shown)


def _keys(request: RunRequest, most: int) -> range:
    """Return at most `most` keys from the parameter j on, of an attention whose weights are
    known.
    """
    view = request.view
    view.require("trace" if view.call._has_queries else "map")
    _ = request.i  # refused before j
    j = request.index("j", view.size[1], "key")
    return range(j, min(j + most, view.size[1]))
