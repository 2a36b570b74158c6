"""Checks of the lesson on changing a model: a head that is muted, keys that are hidden."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..layers import MultiHeadAttention
from . import by_hand
from .comparing import Case, Cases, exercise
from .material import matrices, normal
from .slips import Slips


def _muted(x: Tensor, w: dict[str, Tensor], heads: int, off: int, **switches: Any) -> Tensor:
    """Return multi-head attention without one head, with usual mistakes."""
    how = switches.get("mute", "context")
    at = {"context": off, "one less": off - 1, "one more": (off + 1) % heads}.get(how, off)

    def change(context: Tensor) -> Tensor:
        kept = context.clone()
        match how:
            case "mean":
                kept[off] = context[off].mean(0)
            case "others":
                kept = torch.zeros_like(context)
                kept[off] = context[off]
            case "token":
                kept[:, off] = 0.0
            case "feature":
                kept[..., off % context.shape[-1]] = 0.0
            case "even":
                v = by_hand.split(x @ w["W_v"], heads)
                kept[off] = v[off].mean(0)
            case "rescaled":
                kept[off] = 0.0
                kept = kept * heads / (heads - 1)
            case "nothing" | "output" | "columns" | "input":
                pass
            case _:
                kept[at] = 0.0
        return kept

    own = dict(w)
    width = x.shape[1] // heads
    part = slice(off * width, (off + 1) * width)
    if how == "columns":
        own["W_o"] = w["W_o"].clone()
        own["W_o"][:, part] = 0.0
    if how == "input":
        x = x.clone()
        x[:, part] = 0.0
    inner = {key: value for key, value in switches.items() if key != "mute"}
    result = by_hand.attention(x, x, own, heads, change=change, **inner)
    if how == "output":
        result = result.clone()
        result[:, part] = 0.0
    return result


MUTED_SLIPS: dict[str, dict[str, Any]] = {
    "no head is muted": {"mute": "nothing"},
    "a slice of the output is 0; W_o has mixed the heads by then, so put the 0 before it": {
        "mute": "output"
    },
    "columns of W_o are 0, which is a slice of the output; W_o has mixed the heads by then: a head "
    "has rows of W_o": {"mute": "columns"},
    "another head is muted, the one before: heads count from 0": {"mute": "one less"},
    "another head is muted, the next one: heads count from 0": {"mute": "one more"},
    "the head keeps the mean of its context; set it to 0": {"mute": "mean"},
    "scores, queries or keys of the head are 0, so that its weights are even, and it still "
    "contributes; set its context to 0": {"mute": "even"},
    "this is the head alone: the others are muted": {"mute": "others"},
    "the other heads are rescaled; they stay as they are": {"mute": "rescaled"},
    "a token is muted in all heads; heads are the first axis of the context": {"mute": "token"},
    "a feature is muted in all heads; heads are the first axis of the context": {"mute": "feature"},
    "a slice of the input x is 0; all heads read all of x, so set the head's context to 0": {
        "mute": "input"
    },
}


@exercise("muted(x, W_q, W_k, W_v, W_o, heads, off)", "agrees with ts.mute")
def muted() -> Cases:
    """Check muted(x, W_q, W_k, W_v, W_o, heads, off): multi-head attention with the context of one
    head set to 0.
    """
    torch.manual_seed(3)
    layer = MultiHeadAttention(8, 4, bias=False)
    x = normal(5, 8)
    w = matrices(layer)
    # The first head and one in the middle: off by one is noticed.
    for off in (0, 2):

        def compute(off: int = off, **switches: Any) -> Tensor:
            return _muted(x, w, 4, off, **switches)

        yield Case(
            (x, w["W_q"], w["W_k"], w["W_v"], w["W_o"], 4, off),
            compute(),
            Slips(compute, {**MUTED_SLIPS, **by_hand.ATTENTION_SLIPS, **by_hand.PROJECTION_SLIPS}),
            if_nan="scores of -inf in a whole row give NaN; set the context of the head to 0 "
            "instead",
            raises={
                r"\(5x6 and 8x8\)|shape '\[5, 8\]'": "the head is removed, and W_o no longer fits "
                "the sizes: set its context to 0, and keep its place",
                r"index . is out of bounds for dimension 0 with size 1": "this is one head of the "
                "whole width; split queries, keys and values first",
            },
        )


@exercise(
    "hidden(o, lse, o_g, lse_g)",
    "agrees with attention over the other keys: no weight was formed again",
)
def hidden() -> Cases:
    """Check hidden(o, lse, o_g, lse_g): the context without a group of keys."""
    q = normal(4, 8)
    k = normal(9, 8, seed=1)
    v = normal(9, 3, seed=2)
    raw = q @ k.mT / sqrt(8)
    group = slice(2, 5)
    # Context and logsumexp over all keys, and over the group alone.
    o = raw.softmax(-1) @ v
    o_g = raw[:, group].softmax(-1) @ v[group]
    lse = raw.logsumexp(-1)
    lse_g = raw[:, group].logsumexp(-1)
    shares = {
        "right": (lse_g - lse).exp(),
        "exchanged": (lse - lse_g).exp(),
        "no exp": lse_g - lse,
        "quotient": lse_g / lse,
        "exps": lse_g.exp() - lse.exp(),
    }

    def compute(share: str = "right", taken: str = "a · o_g", by: str = "1 - a") -> Tensor:
        a = shares[share][:, None]
        left = {
            "a · o_g": o - a * o_g,
            "o_g": o - o_g,
            "added": o + a * o_g,
            "nothing": o,
            "mixed": (1 - a) * o + a * o_g,
        }[taken]
        divided = {
            "1 - a": left / (1 - a),
            "nothing": left,
            "a": left / a,
            "1 + a": left / (1 + a),
            "the group alone": o - a * o_g / (1 - a),
            "1": left - a,
        }
        return divided[by]

    # The right answer attends to the keys outside of the group.
    others = [0, 1, 5, 6, 7, 8]
    yield Case(
        (o, lse, o_g, lse_g),
        raw[:, others].softmax(-1) @ v[others],
        Slips(
            compute,
            {
                "this is o: nothing is hidden": {"taken": "nothing", "by": "nothing"},
                "this mixes o and o_g in a mean; subtract a · o_g, and divide by 1 - a": {
                    "taken": "mixed",
                    "by": "nothing",
                },
                "the weights that are left must sum to 1 again: divide by 1 - a": {"by": "nothing"},
                "the group's context counts with its share of the weight: a · o_g": {
                    "taken": "o_g"
                },
                "divide by 1 - a, the share of the other keys, not by a": {"by": "a"},
                "divide by 1 - a, the share of the other keys, not by 1 + a": {"by": "1 + a"},
                "only a · o_g is divided by 1 - a; put parentheses around o - a * o_g, the whole "
                "of it": {"by": "the group alone"},
                "/ 1 - a divides by 1 and subtracts a; put parentheses around 1 - a": {"by": "1"},
                "the share is exchanged: a = exp(lse_g - lse), below 1": {"share": "exchanged"},
                "exp is missing: a = exp(lse_g - lse)": {"share": "no exp"},
                "lse is a logarithm: the share is exp of the difference, a = exp(lse_g - lse)": {
                    "share": "quotient"
                },
                "the share is a quotient of sums, exp(lse_g - lse), not the difference of exps": {
                    "share": "exps"
                },
                "a · o_g is added; subtract it": {"taken": "added"},
                "the group is not taken out: subtract a · o_g before the division": {
                    "taken": "nothing"
                },
            },
            {
                "this is o_g, the context of the group; return that of the other keys": o_g,
                "this is a, the share of the group; return the context of the other keys": (
                    shares["right"][:, None]
                ),
            },
        ),
        raises={
            r"\((3|4)\) must match.*\((3|4)\)": "o has an axis for the features, and lse has not: "
            "[:, None] makes a column of the share"
        },
    )
