"""Checks of the lessons on many heads, and on two sequences."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..layers import LuongAttention, MultiHeadAttention
from . import by_hand
from .comparing import Case, Cases, exercise
from .material import matrices, normal
from .slips import Slips, softmaxed, weights_slips

# -------------------------------------------------------------------------------------- many heads


@exercise("split_heads(x, heads)", "agrees")
def split_heads() -> Cases:
    """Check split_heads(x, heads): (n, heads · d) to (heads, n, d)."""
    for n, heads, d in ((5, 3, 2), (4, 2, 4)):
        x = normal(n, heads * d)
        right = x.reshape(n, heads, d).transpose(0, 1)
        yield Case(
            (x, heads),
            right,
            {
                "rows are mixed: view as (n, heads, d) first, then exchange the first two "
                "axes": x.reshape(heads, n, d),
                "the heads stand in the middle; exchange the first two axes": (
                    x.reshape(n, heads, d)
                ),
                "neighbouring features went to different heads: view as (n, heads, d), not (n, d, "
                "heads)": x.reshape(n, d, heads).permute(2, 0, 1),
                "this is one head, head 0; return all of them": x[:, :d],
                "every head has the whole width; divide the features among the heads": (
                    x.expand(heads, *x.shape)
                ),
                "the heads stand below each other; torch.stack gives them an axis of their own": (
                    torch.cat(list(right))
                ),
                "the heads come in reversed order; head 0 has the first features": right.flip(0),
            },
        )


@exercise("merge_heads(y)", "is the inverse of split_heads")
def merge_heads() -> Cases:
    """Check merge_heads(y): (heads, n, d) back to (n, heads · d)."""
    for heads, n, d in ((3, 5, 2), (2, 4, 3)):
        y = normal(heads, n, d)
        right = y.transpose(0, 1).reshape(n, -1)
        yield Case(
            (y,),
            right,
            {
                "rows are mixed: exchange the first two axes before you reshape": y.reshape(n, -1),
                "rows are mixed: exchange the first two axes before you reshape, not the last "
                "two": y.transpose(1, 2).reshape(n, -1),
                "the features of the heads are interleaved; they stand side by side, head by "
                "head": by_hand.merge(y, "neighbours"),
                "the heads stand below each other; put their features side by side, on the last "
                "axis": torch.cat(list(y)),
                "this is the sum of the heads; put their features side by side": y.sum(0),
                "this is the mean of the heads; put their features side by side": y.mean(0),
                "the axes are exchanged, and the heads not joined yet: reshape to (n, heads · d)": (
                    y.transpose(0, 1)
                ),
                "the heads come in reversed order; head 0 has the first features": (
                    torch.cat(list(y.flip(0)), -1)
                ),
                "this is one head, head 0; put the features of all side by side": y[0],
            },
        )


def slips_of_heads(
    x: Tensor, memory: Tensor, w: dict[str, Tensor], others: dict[str, Tensor]
) -> Slips:
    """Return the slips of multi-head attention with two heads of x over the memory.

    others  what mistakes of the exercise alone give
    """
    return Slips(
        lambda **switches: by_hand.attention(x, memory, w, 2, **switches),
        {
            **by_hand.ATTENTION_SLIPS,
            **by_hand.PROJECTION_SLIPS,
            "a causal mask hides later keys; here every query sees all": {"sees_past": "last"},
            "a causal mask hides later keys; here every query sees all of them": {
                "sees_past": "first"
            },
            "these are the weights; the context is the weights times the values": {
                "end": "weights"
            },
        },
        {
            "x is added to the result, a residual connection; it comes in a later lesson": (
                x + by_hand.attention(x, memory, w, 2)
            ),
            **others,
        },
    )


@exercise("multi_head(x, W_q, W_k, W_v, W_o, heads)", "agrees with ts.layers.MultiHeadAttention")
def multi_head() -> Cases:
    """Check multi_head(x, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, bias=False)
    x = normal(1, 5, 8)
    w = matrices(layer)
    with torch.no_grad():
        right = layer(x)[0]
    projected = x[0] @ w["W_o"]
    first = {
        "W_o multiplies x first, and the result again; it comes last alone, after the merge": (
            by_hand.attention(projected, projected, w, 2)
        ),
        "W_o multiplies x first; it comes last, after the merge": (
            by_hand.attention(projected, projected, w, 2, unused=("W_o",))
        ),
    }
    yield Case(
        (x[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        slips_of_heads(x[0], x[0], w, first),
    )


@exercise("parameters(d, m, l, T)", "d·(2m + l)·T + T·l·d")
def parameters() -> Cases:
    """Check parameters(d, m, l, T): d·(2m + l)·T + T·l·d."""
    for d, m, width, heads in ((12, 4, 7, 5), (10, 3, 5, 2), (512, 64, 64, 8)):
        one_head = d * (2 * m + width)  # W_q, W_k and W_v
        W_o = heads * width * d  # one matrix for all heads
        mistakes = {
            "W_o is missing: T·l·d more": one_head * heads,
            "this is one head; there are T": one_head + width * d,
            "W_q, W_k and W_v are those of one head; there are T": one_head + W_o,
            "W_o maps all heads together: T·l rows, not l": one_head * heads + width * d,
            "W_o is d · d here; it has T·l rows, which may be another number": (
                one_head * heads + d * d
            ),
            "W_o is counted twice": one_head * heads + 2 * W_o,
            "W_q and W_k are both d x m": d * (m + width) * heads + W_o,
            "biases are counted too; here are none": (
                (d + 1) * (2 * m + width) * heads + (heads * width + 1) * d
            ),
            "the matrices are multiplied; add their sizes": d * m * m * width * heads * W_o,
            "this is 4 d², which holds only where T·m = T·l = d": 4 * d * d,
            "W_v is as wide as W_k here; the values have the width l": 3 * d * m * heads + W_o,
            "T is missing: this is one head, and a W_o of d · d": one_head + d * d,
            "parentheses are missing: d multiplies all of 2m + l, d·(2m + l)": (
                d * 2 * m + width * heads + W_o
            ),
        }
        as_floats = {sentence: float(count) for sentence, count in mistakes.items()}
        yield Case((d, m, width, heads), float(one_head * heads + W_o), as_floats, tolerance=1e-9)


# ------------------------------------------------------------------------- Luong, and two sequences


def _slips_of_luong(states: Tensor, memory: Tensor, W: Tensor | None = None) -> Slips:
    """Return the slips of attention between states and a memory, through W if there is one."""
    d = states.shape[1]
    e = memory.shape[1]
    through = torch.eye(d) if W is None else W
    scores = states @ through @ memory.mT

    def compute(
        divisor: float = 1.0,
        how: str = "softmax",
        axis: int = -1,
        raw: Tensor = scores,
        values: Tensor = memory,
        end: str = "context",
    ) -> Tensor:
        weights = softmaxed(raw / divisor, how, axis)
        return {"context": weights @ values, "weights": weights, "scores": raw}[end]

    switches = {
        "these are the weights; multiply them by the memory": {"end": "weights"},
        "these are the scores; softmax makes weights of them, which multiply the memory": {
            "end": "scores"
        },
        "softmax runs over the states; each state spreads its weight over the memory, dim=-1": {
            "axis": 0
        },
        "Luong's score has no √d_k; here the scores are divided by the root of the memory's "
        "width": {"divisor": sqrt(e)},
        **weights_slips(rows="states"),
    }
    units = [torch.nn.functional.normalize(part, dim=-1) for part in (states, memory)]
    others: dict[str, Tensor] = {}
    if W is None:
        switches |= {
            "Luong's dot score has no √d_k": {"divisor": sqrt(d)},
            "the scores are cosines; Luong's dot score is a plain dot product": {
                "raw": units[0] @ units[1].mT
            },
        }
        context = compute()
        others = {
            "the states attend to themselves; keys and values are the memory": (
                (states @ states.mT).softmax(-1) @ states
            ),
            "the memory asks and the states answer; it is the other way round": (
                (memory @ states.mT).softmax(-1) @ states
            ),
            "the states are joined to the context; return the context alone": (
                torch.cat([context, states], -1)
            ),
            "the context is joined to the states; return the context alone": (
                torch.cat([states, context], -1)
            ),
            "the states are added to the context; return the context alone": states + context,
        }
    else:
        switches |= {
            "the general score has no √d; here the scores are divided by the root of the states' "
            "width": {"divisor": sqrt(d)},
            "tanh is taken of the scores; the general score is s W hᵀ alone": {
                "raw": scores.tanh()
            },
            "the values are projected by W; they are the memory itself": {"values": memory @ W.mT},
            "W stands in the score more than once; the score is s W hᵀ": {
                "raw": states @ W @ W.mT @ W @ memory.mT
            },
            "the absolute values of W are taken, and the signs of its numbers are lost": {
                "raw": states @ W.abs() @ memory.mT
            },
        }
    return Slips(compute, switches, others)


@exercise("luong(states, memory)", 'agrees with ts.layers.LuongAttention("dot")')
def luong() -> Cases:
    """Check luong(states, memory): c_i = Σ_j softmax(s_i · h_j) h_j."""
    states = normal(1, 3, 4)
    memory = normal(1, 5, 4, seed=1)
    right = LuongAttention("dot", d_query=4)(states, memory)[0]
    yield Case(
        (states[0], memory[0]),
        right,
        _slips_of_luong(states[0], memory[0]),
        raises={r"\(3x5 and 3x4\)": "the weights multiply the states; they multiply the memory"},
    )


@exercise("general(states, memory, W)", 'agrees with ts.layers.LuongAttention("general")')
def general_score() -> Cases:
    """Check general(states, memory, W): s W h^T, with a matrix between two widths."""
    torch.manual_seed(0)
    layer = LuongAttention("general", d_query=4, d_memory=6)
    states = normal(1, 3, 4)
    memory = normal(1, 5, 6, seed=1)  # wider than the states
    W = layer.W.detach()
    with torch.no_grad():
        right = layer(states, memory)[0]
    yield Case(
        (states[0], memory[0], W),
        right,
        _slips_of_luong(states[0], memory[0], W),
        raises={
            r"\(3x5 and 3x4\)": "the weights multiply the states; they multiply the memory",
            r"\(3x4 and 6x5\)": "states and memory have different widths, 4 and 6: W stands "
            "between them, states @ W @ memory.mT",
        },
    )


@exercise(
    "cross_attention(y, memory, W_q, W_k, W_v, W_o, heads)",
    "agrees with ts.layers.MultiHeadAttention(...)(y, memory)",
)
def cross_attention() -> Cases:
    """Check cross_attention(y, memory, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(1)
    layer = MultiHeadAttention(8, 2, bias=False)
    y = normal(1, 3, 8)
    memory = normal(1, 5, 8, seed=1)
    w = matrices(layer)
    with torch.no_grad():
        right = layer(y, memory)[0]
        swapped = layer(memory, y)[0]  # the memory asks
    both = torch.cat([memory, y], 1)[0]

    def compute(of: str = "memory", **switches: Any) -> Tensor:
        # Which text gives the keys and values, and which one asks.
        read = {"memory": memory[0], "y": y[0], "both": both, "alone": memory[0]}[of]
        asks = memory[0] if of == "alone" else y[0]
        return by_hand.attention(asks, read, w, 2, **switches)

    slips = slips_of_heads(y[0], memory[0], w, {})
    yield Case(
        (y[0], memory[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        Slips(
            compute,
            {
                "keys and values are made of y; they come from the memory": {"of": "y"},
                "keys and values come from y too; they come from the memory alone": {"of": "both"},
                "queries come from y; here the memory attends to itself": {"of": "alone"},
                **slips.switches,
            },
            {
                **slips.others,
                "queries come from y, keys and values from the memory; here it is the other way "
                "round": swapped,
                "queries come from y, keys and values from the memory; here it is the other way "
                "round, reshaped to the rows of y": swapped.reshape(-1)[:24].reshape(3, 8),
            },
        ),
        raises={
            r"\[2, 5\] but got: \[2, 3\]": "the values come from y; they come from the memory, as "
            "the keys do",
            r"\[2, 3\] but got: \[2, 5\]": "the keys come from y; they come from the memory, as "
            "the values do",
        },
    )
