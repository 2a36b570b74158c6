"""Checks of the lessons on many heads, on two sequences, and on the Synthesizer."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention, causal
from ..layers import LuongAttention, MultiHeadAttention, SynthesizerAttention
from . import by_hand
from .comparing import Case, Cases, exercise
from .material import causal_matrix, matrices, normal
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
        yield Case(
            (d, m, width, heads), float(one_head * heads + W_o), as_floats, tolerance=1e-9
        )


# ------------------------------------------------------------------------- Luong, and two sequences


def _slips_of_luong(states: Tensor, memory: Tensor, W: Tensor | None = None) -> Slips:
    """Return the slips of attention between states and a memory, through W if there is one."""
    m, d = states.shape
    n, e = memory.shape
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


# --------------------------------------------------------------------------------- the Synthesizer


@exercise("synthesizer(x, A, b1, B, b2, V)", "agrees with ts.layers.SynthesizerAttention")
def synthesizer() -> Cases:
    """Check synthesizer(x, A, b1, B, b2, V): softmax(ReLU(x A + b1) B + b2) x V, causal, one
    head.
    """
    torch.manual_seed(0)
    layer = SynthesizerAttention(
        d_model=4, heads=1, block=8, attention=Attention(scale=1.0, mask=causal)
    )
    x = normal(1, 5, 4)
    with torch.no_grad():
        # Numbers that count in A, B and the biases; W_O and V's bias are no part of this exercise.
        layer.A.weight.normal_()
        layer.A.bias.normal_()
        layer.B.normal_()
        assert layer.b2 is not None
        layer.b2.normal_()
        nn.init.eye_(layer.W_O.weight)
        layer.W_O.bias.zero_()
        layer.V.bias.zero_()
        right = layer(x)[0]
    A = layer.A.weight.detach().mT
    b1 = layer.A.bias.detach()
    B = layer.B.detach()[0]
    b2 = layer.b2.detach()[0, 0]
    V = layer.V.weight.detach().mT
    yield Case(
        (x[0], A, b1, B, b2, V),
        right,
        Slips(
            lambda **switches: _synthesizer(x[0], A, b1, B, b2, V, **switches), SYNTHESIZER_SLIPS
        ),
        raises={
            r"\(5x8 and 5x4\)|\(8\).*\(5\)|\(5\).*\(8\)": "the table B has 8 columns, and the text "
            "5 tokens: cut the scores to their first n columns, [:, :n]",
        },
        causal="x",
    )


def _synthesizer(
    x: Tensor,
    A: Tensor,
    b1: Tensor,
    B: Tensor,
    b2: Tensor,
    V: Tensor,
    activation: str = "relu",
    at_end: str = "nothing",
    columns: str = "first",
    mask: str = "past",
    fill: float = -torch.inf,
    divisor: float = 1.0,
    how: str = "softmax",
    axis: int = -1,
    end: str = "context",
    unused: tuple[str, ...] = (),
    turned: str = "",
) -> Tensor:
    """Return a causal head of a Synthesizer, with usual mistakes."""
    n = len(x)
    hidden = x @ (A.mT if turned == "A" else A)
    hidden = hidden if "b1" in unused else hidden + b1
    if turned == "b1":
        hidden = (x + b1) @ A
    if activation != "nothing":
        hidden = getattr(torch.nn.functional, activation)(hidden)
    table = hidden @ B if "b2" in unused else hidden @ B + b2
    table = table.relu() if at_end == "relu" else table
    scores = {"first": table[:, :n], "last": table[:, -n:], "all": table}[columns] / divisor
    past = causal_matrix(n, scores.shape[1]) if columns != "all" else torch.ones_like(scores) > 0
    diagonal = torch.eye(n, scores.shape[1], dtype=torch.bool)
    seen = {
        "past": past,
        "none": torch.ones_like(past),
        "after": torch.ones_like(past),
        "strict": past & ~diagonal,
        "future": ~past | diagonal,
    }[mask]
    if how == "nothing":
        fill = 0.0
    weights = softmaxed(scores.masked_fill(~seen, fill), how, axis)
    weights = weights * past if mask == "after" else weights[:, :n]
    values = x if "V" in unused else x @ (V.mT if turned == "V" else V)
    return weights if end == "weights" else weights @ values


SYNTHESIZER_SLIPS: dict[str, dict[str, Any]] = {
    "the mask is missing: no query may see a later position": {"mask": "none"},
    "a token should see itself too; the first query sees nothing, which gives NaN": {
        "mask": "strict"
    },
    "the mask is exchanged: the future is seen, and the past hidden": {"mask": "future"},
    "the mask sets weights to 0 after softmax, so rows do not sum to 1; put -inf before softmax": {
        "mask": "after"
    },
    "masked scores are 0, and exp(0) = 1 is a weight; use -inf": {"fill": 0.0},
    "the ReLU is missing": {"activation": "nothing"},
    "the ReLU comes after B; it stands between A and B": {
        "activation": "nothing",
        "at_end": "relu",
    },
    "there is a second ReLU, after B; the scores may be negative": {"at_end": "relu"},
    "GELU is used; the Synthesizer has a ReLU": {"activation": "gelu"},
    "tanh is used; the Synthesizer has a ReLU": {"activation": "tanh"},
    "the sigmoid is used; the Synthesizer has a ReLU": {"activation": "sigmoid"},
    "b1 is missing": {"unused": ("b1",)},
    "b2 is missing": {"unused": ("b2",)},
    "b1 and b2 are missing": {"unused": ("b1", "b2")},
    "V is not used: the values are x V": {"unused": ("V",)},
    "V is transposed: the values are x @ V": {"turned": "V"},
    "A is transposed: the first product is x @ A": {"turned": "A"},
    "b1 is added to x, before A; it is added after the product": {"turned": "b1"},
    "the Synthesizer has no √d_k": {"divisor": 2.0},
    "softmax runs over the whole table; cut it to the n columns of this text first": {
        "columns": "all",
        "mask": "none",
    },
    "the last n columns of the table are used; take the first n": {"columns": "last"},
    "these are the weights; the context is the weights times x V": {"end": "weights"},
    **weights_slips(),
}


@exercise(
    "synthesizer_parameters(d, block)",
    "the count does not depend on the text, but the longest text is fixed",
)
def synthesizer_parameters() -> Cases:
    """Check synthesizer_parameters(d, block): A and b1, B and b2, V, of one head, without biases of
    V.
    """
    for d, block in ((256, 128), (6, 4)):
        right = d * d + d + d * block + block + d * d
        mistakes = {
            "b1 and b2 are missing": 2 * d * d + d * block,
            "b1 is missing": right - d,
            "b2 is missing": right - block,
            "V is missing": right - d * d,
            "V, b1 and b2 are missing": d * d + d * block,
            "V and b1 are missing": right - d * d - d,
            "V and b2 are missing": right - d * d - block,
            "a bias of V is counted; V has no bias here": right + d,
            "V is (d, d), not (d, block)": right - d * d + d * block,
            "A is (d, d), not (d, block), and so is V": right - 2 * d * d + 2 * d * block,
            "B is (d, block), not (block, block)": right - d * block + block * block,
            "b2 has a number for each column of B, block of them, not d": right - block + d,
            "one matrix of d · d is too many: there is no W_o here": right + d * d,
            "this is 4 d²; B is (d, block), and there are biases": 4 * d * d,
        }
        as_floats = {sentence: float(count) for sentence, count in mistakes.items()}
        yield Case((d, block), float(right), as_floats, tolerance=1e-9)
