"""Checks of the lesson on the Synthesizer, attention without keys."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention, causal
from ..layers import SynthesizerAttention
from .comparing import Case, Cases, exercise
from .material import causal_matrix, normal
from .slips import Slips, softmaxed, weights_slips


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
