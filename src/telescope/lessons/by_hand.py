"""The layers of the lessons by hand, with a switch for each step that students get wrong.

Without switches each function gives what the layers of telescope.layers give. `Switches` are passed
down from a model to its blocks and their layers; each layer looks at those that concern it.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .material import causal_matrix
from .slips import softmaxed, weights_slips

Weights = Mapping[str, Any]  # as `matrices` returns them
Switches = Mapping[str, Any]


def split(x: Tensor, heads: int, how: str = "heads") -> Tensor:
    """Return (n, heads · d) as (heads, n, d)."""
    n = x.shape[0]
    match how:
        case "one":
            return x[None]
        case "mixed":
            return x.reshape(heads, n, -1)
        case "neighbours":
            return x.reshape(n, -1, heads).permute(2, 0, 1)
        case _:
            return x.reshape(n, heads, -1).transpose(0, 1)


def merge(y: Tensor, how: str = "heads") -> Tensor:
    """Return (heads, n, d) as (n, heads · d)."""
    match how:
        case "mixed":
            return y.reshape(y.shape[1], -1)
        case "mean":
            return y.mean(0).repeat(1, y.shape[0])
        case "last":
            kept = torch.zeros_like(y)
            kept[-1] = y[-1]
            return merge(kept)
        case "neighbours":
            return y.permute(1, 2, 0).reshape(y.shape[1], -1)
        case _:
            return y.transpose(0, 1).reshape(y.shape[1], -1)


def attention(
    x: Tensor, memory: Tensor, w: Weights, heads: int, mask: Tensor | None = None, **switches: Any
) -> Tensor:
    """Return multi-head attention of x over the memory."""
    get = switches.get
    w = {**w, **{name: w[other] for name, other in get("exchange", {}).items()}}
    turned = get("turned", ())
    W = {name: matrix.mT if name in turned else matrix for name, matrix in w.items()}

    def project(y: Tensor, name: str) -> Tensor:
        return y if name in get("unused", ()) else y @ W[name]

    keys_of = get("keys_of", memory)
    q = split(project(get("queries_of", x), "W_q"), heads, get("split", "heads"))
    k = split(project(keys_of, "W_k"), heads, get("split", "heads"))
    v = split(project(memory, "W_v"), heads, get("split", "heads"))
    v = {"keys": k, "queries": q, "values": v}[get("weigh", "values")]
    divisors = {
        "√d_k": sqrt(q.shape[-1]),
        "nothing": 1.0,
        "d_k": float(q.shape[-1]),
        "√d_model": sqrt(x.shape[-1]),
        "√heads": sqrt(heads),
        "√n": sqrt(k.shape[-2]),
        "multiplied": 1 / sqrt(q.shape[-1]),
    }
    scores = (k @ q.mT if get("keys_ask") else q @ k.mT) / divisors[get("divisor", "√d_k")]
    if get("sees_past") and mask is None:
        # Aligned to the last query, or to the first.
        mask = causal_matrix(*scores.shape[-2:])
        mask = torch.ones_like(mask).tril() if get("sees_past") == "first" else mask
    fill = get("fill", -torch.inf)
    if mask is not None and not get("mask_after"):
        scores = scores.masked_fill(~mask, fill)
    weights = softmaxed(scores, get("how", "softmax"), get("axis", -1))
    if mask is not None and get("mask_after"):
        weights = weights * mask
    if get("end") == "weights":
        return weights
    context = weights @ v
    change = get("change")
    if change is not None:
        context = change(context)
    joined = merge(context, get("merge", "heads"))
    return joined if "W_o" in get("unused", ()) else joined @ W["W_o"]


ATTENTION_SLIPS: dict[str, dict[str, Any]] = {
    "the scores are not divided by √d_k": {"divisor": "nothing"},
    "the scores are divided by √d_model; each head has d_k = d_model / heads": {
        "divisor": "√d_model"
    },
    "the scores are divided by d_k; divide by its square root": {"divisor": "d_k"},
    "the scores are multiplied by √d_k; divide by it": {"divisor": "multiplied"},
    "the scores are divided by √heads; divide by the root of a head's width": {"divisor": "√heads"},
    "√ of the number of tokens is used; d_k is the width of a key": {"divisor": "√n"},
    "W_o is not used": {"unused": ("W_o",)},
    "this is one head of the whole width; split queries, keys and values": {"split": "one"},
    "the heads are split by one reshape, which mixes the rows: view as (n, heads, d), then "
    "exchange the first two axes": {"split": "mixed"},
    "neighbouring features went to different heads: view as (n, heads, d), not (n, d, heads)": {
        "split": "neighbours"
    },
    "the merge mixes the rows: exchange the first two axes before you reshape": {"merge": "mixed"},
    "the merge interleaves the heads; their features stand side by side, head by head": {
        "merge": "neighbours"
    },
    "softmax runs over the heads; use dim=-1, the keys": {"axis": 0},
    "keys ask and queries answer: scores are q kᵀ": {"keys_ask": True},
    "the weights multiply the keys, of W_k; they should multiply the values, of W_v": {
        "weigh": "keys"
    },
    **weights_slips(),
}
PROJECTIONS = ("W_q", "W_k", "W_v")
PROJECTION_SLIPS: dict[str, dict[str, Any]] = {
    "W_o is transposed": {"turned": ("W_o",)},
    "W_q, W_k and W_v are transposed: multiply x @ W, without .T": {"turned": PROJECTIONS},
    **{f"{name} is not used": {"unused": (name,)} for name in PROJECTIONS},
    **{f"{name} is transposed": {"turned": (name,)} for name in PROJECTIONS},
    **{
        f"{other} is used in place of {name}": {"exchange": {name: other}}
        for name in PROJECTIONS
        for other in PROJECTIONS
        if name != other
    },
    "W_q is used for queries, keys and values; keys have W_k, and values W_v": {
        "exchange": {"W_k": "W_q", "W_v": "W_q"}
    },
    "the heads are averaged; their features stand side by side": {"merge": "mean"},
    "only the last head is kept; are the others overwritten in a loop?": {"merge": "last"},
}


def norm(x: Tensor, **switches: Any) -> Tensor:
    """Return LayerNorm without gain and bias."""
    match switches.get("norm", "features"):
        case "tokens":
            return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
        case "n - 1":
            return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        case "root mean square":
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        case _:
            return functional.layer_norm(x, x.shape[-1:])


NORM_SLIPS: dict[str, dict[str, Any]] = {
    "the norms run over the tokens; they run over the features of one token, dim=-1": {
        "norm": "tokens"
    },
    "the variance of the norms is divided by n - 1; use correction=0": {"norm": "n - 1"},
    "the norms do not subtract the mean, as RMSNorm; LayerNorm does": {"norm": "root mean square"},
}


def feed_forward(x: Tensor, w: Weights, **switches: Any) -> Tensor:
    """Return the feed-forward network of each row."""
    W_1: Tensor = w["W_1"]
    W_2: Tensor = w["W_2"]
    hidden = x @ W_1
    match switches.get("activation", switches.get("usual", "relu")):
        case "after":
            return (hidden @ W_2).relu()
        case "none":
            return hidden @ W_2
        case name:
            activate: Callable[[Tensor], Tensor] = getattr(functional, name)
            return activate(hidden) @ W_2


ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")
NAMES = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "tanh", "sigmoid": "the sigmoid"}


def activation_slips(usual: str) -> dict[str, dict[str, Any]]:
    """Return the slips of a feed-forward network whose activation is `usual`."""
    own = NAMES[usual]
    return {
        f"the {own} of the feed-forward network is missing": {"activation": "none"},
        f"the {own} of the feed-forward network comes after W_2; it stands between W_1 and W_2": {
            "activation": "after"
        },
        **{
            f"the feed-forward network has {NAMES[other]}, and should have {own}": {
                "activation": other
            }
            for other in ACTIVATIONS
            if other != usual
        },
    }


def sublayer(x: Tensor, place: str, layer: Callable[[Tensor], Tensor], **switches: Any) -> Tensor:
    """Return a sublayer with its residual connection and its norm.

    place  the sublayer's name: "attention", "cross" or "feed_forward"
    """
    get = switches.get
    if place in get("missing", ()):
        return x
    if place in get("twice", ()):
        once = {**switches, "twice": ()}
        x = sublayer(x, place, layer, **once)
    has_residual = place not in get("no_residual", ())
    has_norm = place not in get("no_norm", ())
    order = get("order", get("usual_order", "post"))
    if order == "pre":
        inner = norm(x, **switches) if has_norm else x
        start = inner if place in get("residual_of_normed", ()) else x
        return start + layer(inner) if has_residual else layer(inner)
    if order == "of sublayer":
        return x + norm(layer(x), **switches)
    if order == "of normed":
        normed = norm(x, **switches)
        return normed + layer(normed)
    out = x + layer(x) if has_residual else layer(x)
    return norm(out, **switches) if has_norm else out


def order_slips(usual: str) -> dict[str, dict[str, Any]]:
    """Return the slips of norms at the wrong place; usual is "post" or "pre"."""
    if usual == "post":
        return {
            "the norms come before the sublayers; in this block they come after the sum": {
                "order": "pre"
            },
            "the norm is taken of the sublayer alone; it comes after the sum, norm(x + "
            "sublayer(x))": {"order": "of sublayer"},
            "the residual is norm(x), and nothing is normalised after the sum: norm(x + "
            "sublayer(x))": {"order": "of normed"},
        }
    return {
        "the norms come after the sum (post-norm); here they come before each sublayer: x + "
        "sublayer(norm(x))": {"order": "post"},
        "the norm is taken of what the sublayer returns; it comes before each sublayer: x + "
        "sublayer(norm(x))": {"order": "of sublayer"},
        "the residual is norm(x); add the sublayer to x itself": {"order": "of normed"},
        "the residual of the attention is norm(x); add the attention to x itself": {
            "residual_of_normed": ("attention",)
        },
    }


def place_slips(names: Mapping[str, str], norms: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the slips of sublayers that are missing, doubled, or lack a residual or a norm.

    names  what a sublayer is called, by its place
    norms  what the norm of a sublayer is called
    """
    places = tuple(names)
    return {
        "the residual is missing: x + sublayer(x)": {"no_residual": places},
        **{
            f"the residual of the {name} is missing: x + {name}": {"no_residual": (place,)}
            for place, name in names.items()
        },
        "the norms are missing": {"no_norm": places},
        **{f"{name} is missing": {"no_norm": (place,)} for place, name in norms.items()},
        **{f"the {name} is missing": {"missing": (place,)} for place, name in names.items()},
        **{f"the {name} comes twice": {"twice": (place,)} for place, name in names.items()},
    }


def encoder_block(x: Tensor, w: Weights, heads: int, **switches: Any) -> Tensor:
    """Return an encoder block: self-attention, then the feed-forward network."""
    start = x

    def attend(y: Tensor) -> Tensor:
        return attention(y, y, w["self"], heads, **switches)

    def feed(y: Tensor) -> Tensor:
        return feed_forward(y, w["feed_forward"], **switches)

    if switches.get("swapped"):
        x = sublayer(x, "feed_forward", feed, **switches)
        return sublayer(x, "attention", attend, **switches)
    x = sublayer(x, "attention", attend, **switches)
    if switches.get("feed_of_input") == "all":
        return norm(start + feed(start), **switches)
    if switches.get("feed_of_input"):
        return norm(x + feed(start), **switches)
    return sublayer(x, "feed_forward", feed, **switches)


def decoder_block(y: Tensor, memory: Tensor, w: Weights, heads: int, **switches: Any) -> Tensor:
    """Return a decoder block: masked self-attention, cross-attention, the feed-forward network."""
    get = switches.get
    n = len(y)
    masks = {
        "past": causal_matrix(n, n),
        "none": None,
        "strict": causal_matrix(n, n) & ~torch.eye(n, dtype=torch.bool),
        "future": ~causal_matrix(n, n),
        "future and itself": ~causal_matrix(n, n) | torch.eye(n, dtype=torch.bool),
    }
    start = y
    past = masks[get("seen", "past")]
    cross_w = w[get("cross_weights", "cross")]
    over = causal_matrix(n, len(memory)) if get("cross_masked") else None

    def own(x: Tensor) -> Tensor:
        return attention(x, x, w["self"], heads, past, **switches)

    def cross(x: Tensor) -> Tensor:
        read = x if get("cross_self") else memory
        return attention(x, read, cross_w, heads, over, **switches)

    def feed(x: Tensor) -> Tensor:
        return feed_forward(x, w["feed_forward"], **switches)

    if get("parallel"):
        y = norm(y + own(y) + cross(y), **switches)
        return sublayer(y, "feed_forward", feed, **switches)
    if get("cross_first"):
        y = sublayer(y, "cross", cross, **switches)
        y = sublayer(y, "attention", own, **switches)
        return sublayer(y, "feed_forward", feed, **switches)
    y = sublayer(y, "attention", own, **switches)
    if get("cross_residual_of_start"):
        y = norm(start + cross(y), **switches)
    else:
        y = sublayer(y, "cross", cross, **switches)
    return sublayer(y, "feed_forward", feed, **switches)


MASK_SLIPS: dict[str, dict[str, Any]] = {
    "the self-attention sees the future; mask it": {"seen": "none"},
    "a token should see itself too; the first query sees nothing, which gives NaN": {
        "seen": "strict"
    },
    "the mask is exchanged: a query sees the future alone, and not its past": {"seen": "future"},
    "the mask is exchanged: a query sees itself and the future, use tril": {
        "seen": "future and itself"
    },
    "masked scores are 0, and exp(0) = 1 is a weight; use -inf": {"fill": 0.0},
    "the mask sets weights to 0 after softmax, so rows do not sum to 1; put -inf before softmax": {
        "mask_after": True
    },
}
DECODER_SLIPS: dict[str, dict[str, Any]] = {
    **MASK_SLIPS,
    "the second attention reads y; its keys and values come from the memory": {"cross_self": True},
    "the cross-attention is masked too; every query may see the whole memory": {
        "cross_masked": True
    },
    'the cross-attention uses w["self"]; it has matrices of its own, w["cross"]': {
        "cross_weights": "self"
    },
    "the order is exchanged: self-attention comes first, then cross-attention": {
        "cross_first": True
    },
    "both attentions read y in parallel; cross-attention comes after the sum and the norm": {
        "parallel": True
    },
    "the residual of the cross-attention is the block's input; add it to what the self-attention "
    "left in the stream": {"cross_residual_of_start": True},
}
ENCODER_PLACES = {"attention": "self-attention", "feed_forward": "feed-forward network"}
DECODER_PLACES = {
    "attention": "self-attention",
    "cross": "cross-attention",
    "feed_forward": "feed-forward network",
}

# Mistakes that often come in twos; all pairs of all mistakes would take too long.
OFTEN: tuple[tuple[str, Any], ...] = (
    ("divisor", "nothing"),
    ("divisor", "√d_model"),
    ("axis", -2),
    ("keys_ask", True),
    ("unused", ("W_o",)),
    ("split", "one"),
    ("merge", "mixed"),
    ("activation", "none"),
    ("activation", "relu"),
    ("activation", "gelu"),
    ("order", "pre"),
    ("order", "post"),
    ("no_residual", ("attention", "feed_forward")),
    ("no_residual", ("attention", "cross", "feed_forward")),
    ("no_norm", ("feed_forward",)),
    ("seen", "none"),
    ("cross_self", True),
    ("embedding_scale", "none"),
    ("no_positions", ("source", "target")),
    ("places", "none"),
    ("places", "from 1"),
    ("scaled", True),
    ("no_last_norm", True),
    ("end", "probabilities"),
    ("end", "hidden"),
)
