"""Where words are: what a model adds or rotates for a position, and what that does to the scores of
one query.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..layers import DecoderBlock, EncoderBlock
from ..layers.multi_head import MultiHeadAttention
from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..tasks.explaining.positions import KINDS, to_dict
from ..tiles import OneHead
from ..traces.numbers import json_numbers
from .requests import RequestParams, bad_parameter
from .run import AttentionView
from .stack_inputs import StackInputs
from .walk import head, sequence

# Most columns and rows of the picture of an encoding
FEATURES = 256
POSITIONS = 64
QUERIES = 128  # most queries over which scores are averaged by distance


def encodings(params: RequestParams) -> dict[str, Any]:
    """Answer GET /positions: one encoding without a model."""
    d = params.number("d", 64)
    if not 2 <= d <= FEATURES or d % 2:
        raise bad_parameter(f"d={d} is not an even number from 2 to {FEATURES}")
    return to_dict(params.word("kind", KINDS), d)


@torch.no_grad()
def encoding(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/encoding: what a model does for positions, and a head's scores by
    distance.
    """
    view.require("positions")
    h = head(view, params)
    b = sequence(view, params)
    one = view.head(h, b)
    inputs = view.inputs
    return {
        "l": layer,
        "h": h,
        "kind": "unknown" if inputs is None else inputs.kind,
        "bias": None if one.attention.bias is None else repr(view.call.attention.bias),
        "added": None if inputs is None or inputs.added is None else _picture(inputs.added),
        "angles": None if inputs is None or inputs.rotary is None else _frequencies(inputs, one),
        "by_distance": _by_distance(one),
    }


@torch.no_grad()
def positions(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/positions: one query with its position and without."""
    view.require("positions")
    h = head(view, params)
    b = sequence(view, params)
    i = params.index("i", view.size[0], "query")
    one = view.head(h, b)
    inputs = view.inputs
    seen = row_in_float64(one, i)
    plain, why = _unplaced(view, one, h)
    return {
        "l": layer,
        "h": h,
        "i": i,
        "tokens": view.tokens("k", b, range(view.size[1])),
        "added": None
        if inputs is None or inputs.added is None
        else _vectors(inputs, inputs.added, i),
        "biases": None
        if one.attention.bias is None
        else json_numbers(seen.steps["biased"] - seen.steps["capped"]),
        "with": _row(seen),
        "without": None if plain is None else _row(row_in_float64(plain, i)),
        "why": why,
    }


def _picture(added: Float[Tensor, "n d_model"]) -> dict[str, Any]:
    """Return what is added to the embeddings of the first positions, and its length for each
    token.
    """
    d = added.shape[1]
    features = list(range(d)) if d <= FEATURES else [at * d // FEATURES for at in range(FEATURES)]
    table = [[round(x, 5) for x in row] for row in added[:POSITIONS, features].tolist()]
    return {"features": d, "shown": features, "table": table}


def _vectors(inputs: StackInputs, added: Float[Tensor, "n d_model"], i: int) -> dict[str, Any]:
    """Return the embedding of one token, what is added to it, and the dot products of its position
    with all others.
    """
    vectors = {"embedded": inputs.embedded[i], "position": added[i]}
    dots = added.double() @ added[i].double()
    return {name: [round(x, 6) for x in one.tolist()] for name, one in vectors.items()} | {
        "dots": dots.tolist()
    }


def _frequencies(inputs: StackInputs, one: OneHead) -> dict[str, Any]:
    """Return by how much each pair of features is rotated from one position to the next, in
    radians.
    """
    assert inputs.rotary is not None
    turned = inputs.rotary.at(torch.ones(1, dtype=torch.long), one.keys.shape[-1], torch.float64)
    return {
        "pairs": inputs.rotary.pairs,
        "radians": torch.atan2(turned.sin, turned.cos)[0].tolist(),
    }


def _unplaced(view: AttentionView, one: OneHead, h: int) -> tuple[OneHead | None, str | None]:
    """Return a head as if it did not know positions, or the reason why that is not known."""
    bare = one._replace(attention=replace(one.attention, bias=None), lse=None)
    inputs = view.inputs
    if inputs is None:
        known = one.attention.bias is not None
        return (bare, None) if known else (None, "how this model knows positions was not recorded")
    if inputs.rotary is not None:
        return bare._replace(
            queries=_unrotated(inputs, one.queries), keys=_unrotated(inputs, one.keys)
        ), None
    if inputs.added is None:
        known = one.attention.bias is not None
        return (
            (bare, None)
            if known
            else (None, "this model has no positions: only its mask tells the words apart")
        )
    attention = getattr(view.block, "self_attention", None)
    if not isinstance(view.block, EncoderBlock | DecoderBlock) or not isinstance(
        attention, MultiHeadAttention
    ):
        return None, "queries and keys without positions are known for dot-product attention alone"
    if not _is_first(view):
        return (
            None,
            "positions are added once, before the first layer: layer 0 shows what they do to scores",
        )
    norm = view.block.add_norm_1
    read = (norm.norm(inputs.unplaced) if norm.pre_norm else inputs.unplaced)[None]
    queries = attention.queries(read)
    keys, _ = attention.keys_and_values(read)
    place = view.call.head_index(h)
    shared = place * keys.shape[1] // queries.shape[1]
    return bare._replace(
        queries=queries[:, place : place + 1], keys=keys[:, shared : shared + 1]
    ), None


def _is_first(view: AttentionView) -> bool:
    """Return whether an attention belongs to the first block of its stack."""
    return next((part for part in view.name.split(".") if part.isdigit()), None) == "0"


def _unrotated(inputs: StackInputs, features: Tensor) -> Tensor:
    """Return queries or keys as they were before rotation: rotated back by their own angles."""
    assert inputs.rotary is not None
    return inputs.rotary(
        features.double(), -torch.arange(features.shape[-2], device=features.device)
    )


def _row(seen: RowInFloat64) -> dict[str, Any]:
    """Return the scores before the mask, and the weights."""
    return {
        "scores": json_numbers(seen.steps["biased"]),
        "weights": json_numbers(seen.steps["weights"]),
    }


def _by_distance(one: OneHead) -> dict[str, Any]:
    """Return the mean score and weight by key - query, over visible pairs of at most 128
    queries.
    """
    n_q, n_k = one.size
    chosen = range(n_q) if n_q <= QUERIES else [at * n_q // QUERIES for at in range(QUERIES)]
    shift = n_q - 1  # the smallest distance, -(n_q - 1), is the first
    sums, weights, count = (torch.zeros(n_q + n_k - 1, dtype=torch.float64) for _ in range(3))
    for i in chosen:
        seen = row_in_float64(one, i)
        visible = seen.steps["masked"].cpu() != -torch.inf
        place = (torch.arange(n_k) - i + shift)[visible]
        sums[place] += seen.steps["biased"].cpu()[visible]
        weights[place] += seen.steps["weights"].cpu()[visible]
        count[place] += 1
    known = count > 0
    return {
        "distances": (torch.arange(len(count)) - shift + n_q - n_k)[known].tolist(),
        "scores": (sums / count)[known].tolist(),
        "weights": (weights / count)[known].tolist(),
        "pairs": count[known].long().tolist(),
        "queries": len(chosen),
    }
