"""Answers about one query of one head: every step and product (trace), single weights (cell,
cells), random scores.
"""

from typing import Any

import torch

from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..recording.summaries_call import SummariesCall
from ..tasks.explaining.variance import MOST, to_dict
from ..tiles import OneHead
from ..traces.numbers import json_number, json_numbers
from ..traces.trace import PAIR_STEPS
from .requests import RequestParams, unknown
from .run import AttentionView
from .summaries import top_weights

MOST_CELLS = 32  # weights in one answer to /cells


def trace(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/trace."""
    view.require("trace")
    h = head(view, params)
    b = sequence(view, params)
    i = params.index("i", view.size[0], "query")
    one = view.head(h, b)
    return trace_json(view, one, row_in_float64(one, i), {"l": layer, "h": h, "i": i, "b": b})


def trace_json(
    view: AttentionView, one: OneHead, seen: RowInFloat64, place: dict[str, int]
) -> dict[str, Any]:
    """Return the trace of one query as JSON; `place` holds l, h, i and b."""
    b = place["b"]
    i = place["i"]
    left = view.size[1] - len(seen.keys)
    return {
        **place,
        "token": view.tokens("q", b, [i])[0],
        "n_k": view.size[1],
        "keys": seen.keys.tolist(),
        "tokens": view.tokens("k", b, seen.keys.tolist()),
        "formula": one.attention.formula(one.keys.shape[-1]),
        "score": one.attention.score.formula,
        "scale": one.attention.scale_for(one.keys.shape[-1]),
        "stream": _stream(view, b, i),
        "query": json_numbers(seen.query),
        "key": json_numbers(seen.key),
        "value": json_numbers(seen.value),
        "factors": None
        if seen.factors is None
        else dict(zip(("query", "key"), map(json_numbers, seen.factors), strict=True)),
        "terms": json_numbers(seen.terms),
        "steps": [
            {"name": name, "formula": formula, "numbers": json_numbers(seen.steps[name])}
            for name, formula in seen.formulas.items()
            if name in seen.steps
        ],
        "lse": json_number(seen.lse),
        "sink": json_number(seen.sink),
        "context": json_numbers(seen.context),
        "rest": {"keys": left, "weight": seen.rest_weight, "context": json_numbers(seen.rest)},
    }


def cell(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/cell: every step of one query and one key."""
    if isinstance(view.call, SummariesCall):
        known = cells(view, params, layer)
        j = known["j"]
        names = {
            "query": view.tokens("q", known["b"], [known["i"]])[0],
            "key": view.tokens("k", known["b"], [j])[0],
        }
        return (
            known
            | names
            | {"visible": True, "dot": None, "scaled": None, "lse": None, "p": known["p"][0]}
        )
    h, i, b, (j, *_) = _cell_params(view, params, 1)
    seen = row_in_float64(view.head(h, b), i, torch.tensor([j]))
    steps = {name: float(step) for name, step in seen.steps.items()}
    return {
        **{"l": layer, "h": h, "i": i, "j": j, "b": b},
        "query": view.tokens("q", b, [i])[0],
        "key": view.tokens("k", b, [j])[0],
        "visible": steps["masked"] != -torch.inf,
        "dot": json_number(steps["scores"]),
        **{name: json_number(steps[name]) for name in PAIR_STEPS[1:-1]},
        "lse": json_number(seen.lse),
        "p": json_number(steps["weights"]),
    }


def cells(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/cells: weights of one query on adjacent keys. The row is summed once
    for all of them.
    """
    h, i, b, keys = _cell_params(view, params, MOST_CELLS)
    if isinstance(view.call, SummariesCall):
        weights, places = (
            part[view.call.heads.index(h), i].tolist() for part in top_weights(view.call, b)
        )
        known = {key: weight for key, weight in zip(places, weights, strict=True) if weight > 0}
        return {
            "l": layer,
            "h": h,
            "i": i,
            "j": keys[0],
            "b": b,
            "p": [known.get(key) for key in keys],
        }
    seen = row_in_float64(view.head(h, b), i, torch.tensor(keys))
    weights = json_numbers(seen.steps["weights"])
    visible = (seen.steps["masked"] != -torch.inf).tolist()
    shown = [p if seen else None for p, seen in zip(weights, visible, strict=True)]
    return {"l": layer, "h": h, "i": i, "j": keys[0], "b": b, "p": shown}


def variance(params: RequestParams) -> dict[str, Any]:
    """Answer GET /variance: the spread of random scores for d features."""
    return to_dict(params.index("d", MOST + 1, "dimension", 64) or 1)


def _cell_params(
    view: AttentionView, params: RequestParams, most: int
) -> tuple[int, int, int, range]:
    """Return the head, the query, the sequence, and the range of at most `most` keys from j on."""
    view.require("map" if isinstance(view.call, SummariesCall) else "trace")
    i = params.index("i", view.size[0], "query")
    j = params.index("j", view.size[1], "key")
    return head(view, params), i, sequence(view, params), range(j, min(j + most, view.size[1]))


def head(view: AttentionView, params: RequestParams) -> int:
    """Return the parameter h, a head's number in the model; heads that were not kept are
    unknown.
    """
    number = params.number("h")
    if number not in view.call.heads:
        raise unknown(
            f"there is no head {number}; there are {', '.join(map(str, view.call.heads))}"
        )
    return number


def sequence(view: AttentionView, params: RequestParams) -> int:
    """Return the parameter b, a sequence of the batch, 0 by default."""
    return params.index("b", view.batch, "sequence", 0)


def _stream(view: AttentionView, b: int, i: int) -> dict[str, Any] | None:
    """Return the residual stream before and after the attention at query i, or None where it was
    not kept.
    """
    if "geometry" in view.missing:
        return None
    row = i if view.call.facts.rows is None else view.call.facts.rows[i]
    return {
        "before": json_numbers(view.call.before[b, row]),
        "after": json_numbers(view.call.after[b, row]),
    }
