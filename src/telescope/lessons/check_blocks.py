"""Checks of the parts of a Transformer: positions, norms, the encoder and the decoder block."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import Attention, causal, sinusoidal
from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from . import by_hand
from .comparing import Case, Cases, exercise
from .material import matrices, normal
from .slips import Slips

# --------------------------------------------------------------------------------------- positions


def positions_by_hand(
    n: int,
    d: int,
    first: int = 0,
    base: float = 10_000.0,
    order: str = "alternate",
    exponent: str = "2i / d",
    place: str = "divided",
    unit: float = 1.0,
) -> Tensor:
    """Return sinusoidal positions, with usual mistakes."""
    at = torch.arange(first, first + n)[:, None] * unit
    i = torch.arange(d // 2)
    exponents = {
        "2i / d": 2 * i / d,
        "i / d": i / d,
        "4i / d": 4 * i / d,
        "2i // d": 2 * i // d,
        "i / (d/2 - 1)": i / max(1, d // 2 - 1),
    }
    power = exponents[exponent]
    angle = {
        "divided": at / base**power,
        "multiplied": at * base**power,
        "powered": (at / base) ** power,
    }[place]
    every = torch.arange(d)
    own = at / base ** (every / d)  # an exponent for each feature
    sines = angle.sin()
    cosines = angle.cos()
    orders = {
        "alternate": lambda: torch.stack([sines, cosines], -1).reshape(n, d),
        "exchanged": lambda: torch.stack([cosines, sines], -1).reshape(n, d),
        "halves": lambda: torch.cat([sines, cosines], -1),
        "sines": lambda: torch.stack([sines, sines], -1).reshape(n, d),
        "cosines": lambda: torch.stack([cosines, cosines], -1).reshape(n, d),
        "angles": lambda: torch.stack([angle, angle], -1).reshape(n, d),
        "minus": lambda: torch.stack([-sines, cosines], -1).reshape(n, d),
        "own": lambda: torch.where(every % 2 == 0, own.sin(), own.cos()),
    }
    return orders[order]()


POSITION_SLIPS: dict[str, dict[str, Any]] = {
    "sines and cosines are exchanged: even features are sines": {"order": "exchanged"},
    "sines come first and cosines after; they alternate": {"order": "halves"},
    "positions count from 0": {"first": 1},
    "the base is 1,000; it is 10,000": {"base": 1e3},
    "the base is 100,000; it is 10,000": {"base": 1e5},
    "the place is multiplied by 10,000^(2i/d); divide by it": {"place": "multiplied"},
    "only sines are used; odd features are cosines": {"order": "sines"},
    "only cosines are used; even features are sines": {"order": "cosines"},
    "these are the angles; take their sines and cosines": {"order": "angles"},
    "the sign of the sines is wrong": {"order": "minus"},
    "the exponent of pair i is i/d; it is 2i/d": {"exponent": "i / d"},
    "the exponent of pair i is 4i/d, so twice too large; it is 2i/d": {"exponent": "4i / d"},
    "the exponent is rounded by //, to whole numbers; use /": {"exponent": "2i // d"},
    "the exponent is i / (d/2 - 1); here it is 2i/d, without - 1": {"exponent": "i / (d/2 - 1)"},
    "each feature has an exponent of its own; a sine and its cosine are a pair with the same "
    "one, 2i/d": {"order": "own"},
    "p / 10000 is raised to 2i/d; only 10000 is: put parentheses around the power": {
        "place": "powered"
    },
    "the angle is taken in degrees; sin and cos take radians, so do not convert": {
        "unit": torch.pi / 180
    },
}


@exercise("positions(n, d)", "agrees with ts.sinusoidal")
def positions() -> Cases:
    """Check positions(n, d): sinusoidal positional encoding, sines at even features and cosines at
    odd ones.
    """
    for n, d in ((6, 8), (5, 12)):

        def compute(n: int = n, d: int = d, **changes: Any) -> Tensor:
            return positions_by_hand(n, d, **changes)

        others = {
            "these are the numbers of the places; take sines and cosines of angles": (
                torch.arange(float(n))[:, None].expand(n, d)
            ),
            "these are one-hot vectors, 0 and 1; take sines and cosines of angles": torch.eye(n, d),
        }
        yield Case((n, d), sinusoidal(n, d), Slips(compute, POSITION_SLIPS, others))


# ------------------------------------------------------------------------------------------- norms


@exercise("layer_norm(x)", "agrees with torch")
def layer_norm() -> Cases:
    """Check layer_norm(x): mean 0 and variance 1 over the features of each token."""
    x = normal(4, 6) * 3 + 2  # neither mean 0 nor variance 1
    right = functional.layer_norm(x, (6,))

    def compute(
        axis: int = -1,
        variance_axis: int | None = None,
        correction: int = 0,
        eps: float = 1e-5,
        power: float = 0.5,
        centre: str = "each",
    ) -> Tensor:
        nothing = torch.tensor(0.0)
        means = {"each": x.mean(axis, keepdim=True), "all": x.mean(), "none": nothing}
        centred = x - means[centre]
        over = axis if variance_axis is None else variance_axis
        variance = x.var(over, correction=correction, keepdim=True) + eps
        return centred / variance**power

    centred = x - x.mean(-1, keepdim=True)
    lowest = x.amin(-1, keepdim=True)
    others = {
        "the mean is not subtracted: this is x over its root mean square, as in RMSNorm": (
            x / x.square().mean(-1, keepdim=True).sqrt()
        ),
        "mean and variance are those of all tokens; take them over the features of one token, "
        "dim=-1": functional.layer_norm(x, x.shape),
        "each vector is divided by its length; subtract the mean, and divide by the standard "
        "deviation": functional.normalize(x, dim=-1),
        "this is divided by the length, √d times the standard deviation; take the mean of the "
        "squares, not their sum": functional.normalize(centred, dim=-1),
        "this maps the smallest to 0 and the largest to 1, a range; divide by the standard "
        "deviation": (x - lowest) / (x.amax(-1, keepdim=True) - lowest),
        "the mean of absolute deviations is used; take the root of the mean square": (
            centred / centred.abs().mean(-1, keepdim=True)
        ),
        "the mean is subtracted, and nothing divided; divide by the standard deviation": centred,
        "softmax is no norm: subtract the mean, divide by the standard deviation": x.softmax(-1),
        "the standard deviation is multiplied; divide by it": (
            centred * x.std(-1, correction=0, keepdim=True)
        ),
    }
    switches: dict[str, dict[str, Any]] = {
        "the mean runs over the tokens; use dim=-1, the features of one token": {"axis": 0},
        "the variance runs over the tokens; use dim=-1, the features of one token": {
            "variance_axis": 0
        },
        "the variance is divided by n - 1; use correction=0": {"correction": 1},
        "divide by the standard deviation, not by the variance": {"power": 1.0},
        "the root is taken twice; divide by the standard deviation": {"power": 0.25},
        "the mean is not subtracted": {"centre": "none"},
        "the mean of all tokens is subtracted; each token has its own": {"centre": "all"},
        **{
            f"{eps:g} is added to the variance; add 1e-5": {"eps": eps}
            for eps in (0.1, 0.01, 1e-3, 1.0)
        },
    }
    yield Case((x,), right, Slips(compute, switches, others))
    # A token whose features are all equal has the variance 0.
    flat = torch.tensor([[3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    yield Case(
        (flat,),
        functional.layer_norm(flat, (4,)),
        if_nan="a token with equal features has the variance 0, and 0 / 0 is NaN; add 1e-5 to the "
        "variance",
    )


# ------------------------------------------------------------------------------------------ blocks


@exercise("encoder_block(x, w, heads)", "agrees with ts.layers.EncoderBlock")
def encoder_block() -> Cases:
    """Check encoder_block(x, w, heads): self-attention, add & norm, feed forward, add & norm."""
    torch.manual_seed(0)
    block = EncoderBlock(8, MultiHeadAttention(8, 2, bias=False), FeedForward(8, 16, bias=False))
    x = normal(1, 5, 8, seed=3)
    w = matrices(block)
    with torch.no_grad():
        right = block(x)[0]
    mistakes = Slips(
        lambda **switches: by_hand.encoder_block(x[0], w, 2, **switches),
        {**slips_of_blocks(), **ENCODER_SLIPS, **by_hand.PROJECTION_SLIPS},
        pairs=by_hand.OFTEN,
        others={
            "the norms come before the sublayers; in this block they come after the sum, and a "
            "last one alone is not enough": by_hand.norm(
                by_hand.encoder_block(x[0], w, 2, order="pre")
            ),
        },
    )
    yield Case((x[0], w, 2), right, mistakes, tolerance=1e-3)


ENCODER_SLIPS: dict[str, dict[str, Any]] = {
    **by_hand.place_slips(
        by_hand.ENCODER_PLACES,
        {
            "attention": "the first norm, after the self-attention,",
            "feed_forward": "the last norm, after the feed-forward network,",
        },
    ),
    "the order is exchanged: self-attention comes first, then the feed-forward network": {
        "swapped": True
    },
    "the feed-forward network reads the block's input; it reads what the attention left": {
        "feed_of_input": "inner"
    },
    "the feed-forward network reads the block's input, which is its residual too; it reads what "
    "the attention left": {"feed_of_input": "all"},
    "a causal mask hides later tokens; in an encoder every token sees all": {"sees_past": "last"},
}


def slips_of_blocks(usual: str = "relu", order: str = "post") -> dict[str, dict[str, Any]]:
    """Return the slips of every block: its attention, norms, activation and their order."""
    return {
        **by_hand.order_slips(order),
        **by_hand.activation_slips(usual),
        **by_hand.ATTENTION_SLIPS,
        **by_hand.NORM_SLIPS,
    }


@exercise("decoder_block(y, memory, w, heads)", "agrees with ts.layers.DecoderBlock")
def decoder_block() -> Cases:
    """Check decoder_block(y, memory, w, heads): masked self-attention, cross-attention, feed
    forward.
    """
    torch.manual_seed(2)
    masked = MultiHeadAttention(8, 2, bias=False, attention=Attention(mask=causal))
    block = DecoderBlock(
        8, masked, MultiHeadAttention(8, 2, bias=False), FeedForward(8, 16, bias=False)
    )
    y = normal(1, 4, 8, seed=4)
    memory = normal(1, 6, 8, seed=5)
    w = matrices(block)
    with torch.no_grad():
        right = block(y, memory)[0]
    norms = {
        "attention": "the norm after the self-attention",
        "cross": "the norm after the cross-attention",
        "feed_forward": "the last norm, after the feed-forward network,",
    }
    mistakes = Slips(
        lambda **switches: by_hand.decoder_block(y[0], memory[0], w, 2, **switches),
        {
            **by_hand.DECODER_SLIPS,
            **slips_of_blocks(),
            **by_hand.place_slips(by_hand.DECODER_PLACES, norms),
        },
        pairs=by_hand.OFTEN,
    )
    yield Case(
        (y[0], memory[0], w, 2),
        right,
        mistakes,
        tolerance=1e-3,
        causal="y",
        raises={
            r"\(4\) must match.*\(6\) at non-singleton dimension 2|"
            r"\(6\) must match.*\(4\) at non-singleton dimension 2": "the mask of the past is "
            "(4, 4), and the cross-attention has 6 keys: it has no mask, and sees the whole memory",
            r"\(4\) must match.*\(6\)|\(6\) must match.*\(4\)": "y has 4 tokens and the memory 6: "
            "queries come from y, keys and values of the cross-attention from the memory",
        },
    )
