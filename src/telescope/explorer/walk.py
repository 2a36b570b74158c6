"""The walk: one query of one head, every step and every product of it."""

from typing import Any

import torch

from ..recording.row_in_float64 import RowInFloat64, closely
from ..tiles.head_scores import OneHead
from ..trace.numbers import number, plain
from .requests import RequestParams, unknown
from .run import AttentionView

TOGETHER = 32  # cells


def trace(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
    looked.must_have("trace")
    h, b, i = head(looked, asked), sequence(looked, asked), asked.index("i", looked.size[0], "query")
    one = looked.head(h, b)
    return told_trace(looked, one, closely(one, i), {"l": layer, "h": h, "i": i, "b": b})


def told_trace(looked: AttentionView, one: OneHead, seen: RowInFloat64, place: dict[str, int]) -> dict[str, Any]:
    b, i, left = place["b"], place["i"], looked.size[1] - len(seen.keys)
    return {
        **place,
        "token": looked.tokens("q", b, [i])[0],
        "n_k": looked.size[1],
        "keys": seen.keys.tolist(),
        "tokens": looked.tokens("k", b, seen.keys.tolist()),
        "formula": one.attention.formula(one.keys.shape[-1]),
        "score": one.attention.score.formula,
        "scale": one.attention.scale_for(one.keys.shape[-1]),
        "stream": _stream(looked, b, i),
        "query": plain(seen.query),
        "key": plain(seen.key),
        "value": plain(seen.value),
        "factors": None if seen.factors is None else dict(zip(("query", "key"), map(plain, seen.factors), strict=True)),
        "terms": plain(seen.terms),
        "steps": [
            {"name": name, "formula": formula, "numbers": plain(seen.steps[name])}
            for name, formula in seen.formulas.items()
            if name in seen.steps
        ],
        "lse": number(seen.lse),
        "sink": number(seen.sink),
        "context": plain(seen.context),
        "rest": {"keys": left, "weight": seen.rest_weight, "context": plain(seen.rest)},
    }


def cell(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
    h, i, b, (j, *_) = _some(looked, asked, 1)
    seen = closely(looked.head(h, b), i, torch.tensor([j]))
    steps = {name: float(step) for name, step in seen.steps.items()}
    return {
        **{"l": layer, "h": h, "i": i, "j": j, "b": b},
        "query": looked.tokens("q", b, [i])[0],
        "key": looked.tokens("k", b, [j])[0],
        "visible": steps["masked"] != -torch.inf,
        "dot": number(steps["scores"]),
        **{name: number(steps[name]) for name in ("scaled", "capped", "biased", "masked")},
        "lse": number(seen.lse),
        "p": number(steps["weights"]),
    }


def cells(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
    """The weights of one query and keys that stand side by side: its row is summed once for all of them."""
    h, i, b, some = _some(looked, asked, TOGETHER)
    seen = closely(looked.head(h, b), i, torch.tensor(some))
    weights, visible = plain(seen.steps["weights"]), (seen.steps["masked"] != -torch.inf).tolist()
    told = [p if there else None for p, there in zip(weights, visible, strict=True)]
    return {"l": layer, "h": h, "i": i, "j": some[0], "b": b, "p": told}


def _some(looked: AttentionView, asked: RequestParams, most: int) -> tuple[int, int, int, range]:
    """A head, a query, a sequence, and so many keys from j on."""
    looked.must_have("trace")
    i, j = asked.index("i", looked.size[0], "query"), asked.index("j", looked.size[1], "key")
    return head(looked, asked), i, sequence(looked, asked), range(j, min(j + most, looked.size[1]))


def head(looked: AttentionView, asked: RequestParams) -> int:
    """By its number in the model; there may be some that were not kept."""
    number = asked.number("h")
    if number not in looked.call.heads:
        raise unknown(f"there is no head {number}; there are {', '.join(map(str, looked.call.heads))}")
    return number


def sequence(looked: AttentionView, asked: RequestParams) -> int:
    return asked.index("b", looked.batch, "sequence", 0)


def _stream(looked: AttentionView, b: int, i: int) -> dict[str, Any] | None:
    if "geometry" in looked.why_not:
        return None
    row = i if looked.call.facts.rows is None else looked.call.facts.rows[i]
    return {"before": plain(looked.call.before[b, row]), "after": plain(looked.call.after[b, row])}
