"""Checks of the lessons that write whole models: positions, norms, blocks, the Transformer, GPT, and
recall.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..attention import Attention, causal, sinusoidal
from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..models import GPT, GPTConfig, Transformer, TransformerConfig
from . import by_hand
from .calling import Solution, WrongAnswer, call, passed
from .comparing import Case, Cases, exercise
from .material import causal_matrix, matrices, normal
from .slips import Slips

# --------------------------------------------------------------------------------------- positions


def _positions(
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
    sines, cosines = angle.sin(), angle.cos()
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
        compute = lambda n=n, d=d, **changes: _positions(n, d, **changes)  # noqa: E731
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
        means = {"each": x.mean(axis, keepdim=True), "all": x.mean(), "none": 0.0}
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
    switches = {
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
        {**_slips_of_blocks(), **ENCODER_SLIPS, **by_hand.PROJECTION_SLIPS},
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
    "the feed-forward network reads the block's input, which is its residual too; it reads what the "
    "attention left": {"feed_of_input": "all"},
    "a causal mask hides later tokens; in an encoder every token sees all": {"sees_past": "last"},
}


def _slips_of_blocks(usual: str = "relu", order: str = "post") -> dict[str, dict[str, Any]]:
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
            **_slips_of_blocks(),
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
            r"\(6\) must match.*\(4\) at non-singleton dimension 2": "the mask of the past is (4, 4), "
            "and the cross-attention has 6 keys: it has no mask, and sees the whole memory",
            r"\(4\) must match.*\(6\)|\(6\) must match.*\(4\)": "y has 4 tokens and the memory 6: "
            "queries come from y, keys and values of the cross-attention from the memory",
        },
    )


# --------------------------------------------------------------------------------- the Transformer


def _transformer(
    source: Tensor, target: Tensor, w: dict[str, Any], heads: int, **switches: Any
) -> Tensor:
    """Return the logits of a Transformer, with usual mistakes."""
    get = switches.get
    d = w["embedding"].shape[1]

    def embed(ids: Tensor, name: str) -> Tensor:
        vectors = w["embedding"][ids]
        scale = {"√d": sqrt(d), "none": 1.0, "d": float(d)}[get("embedding_scale", "√d")]
        places = _positions(len(ids), d, **get("positions", {}))
        if name in get("no_positions", ()):
            places = torch.zeros_like(places)
        if get("positions_multiplied"):
            return vectors * scale * places
        return (vectors + places) * scale if get("scaled_after") else vectors * scale + places

    if get("exchanged"):
        source, target = target, source
    inner = {**switches, **get("encoder_only", {})}
    memory = start = embed(source, "source")
    for block in _chosen(w["encoder"], get("encoder", "all")):
        before = start if get("encoder_restarts") else memory
        memory = by_hand.encoder_block(before, block, heads, **inner)
    inner = {**switches, **get("decoder_only", {})}
    y = embed(target, "target")
    for block in _chosen(w["decoder"], get("decoder", "all")):
        y = by_hand.decoder_block(y, memory, block, heads, **inner)
    return _logits(y, w["embedding"], switches)


def _chosen(blocks: list[Any], which: str) -> list[Any]:
    return {"all": blocks, "first": blocks[:1], "last": blocks[-1:], "none": []}.get(
        which, blocks[::-1]
    )


def _logits(y: Tensor, embedding: Tensor, switches: by_hand.Switches) -> Tensor:
    """Return the products of the last vectors with all embeddings, with usual mistakes."""
    end = switches.get("end", "logits")
    logits = y @ embedding.mT
    d = embedding.shape[1]
    ends = {
        "logits": logits,
        "hidden": y,
        "probabilities": logits.softmax(-1),
        "log": logits.log_softmax(-1),
        "ids": logits.argmax(-1).float(),
        "divided": logits / sqrt(d),
        "multiplied": logits * sqrt(d),
        "last": logits[-1],
        "shorter": logits[:-1],
    }
    return ends[end]


END_SLIPS: dict[str, dict[str, Any]] = {
    "these are the hidden states; multiply them by the transposed embedding": {"end": "hidden"},
    "these are probabilities; return the logits": {"end": "probabilities"},
    "these are logarithms of probabilities; return the logits": {"end": "log"},
    "these are ids, the argmax of the logits; return the logits": {"end": "ids"},
    "the logits are divided by √d_model; they are plain products with the embeddings": {
        "end": "divided"
    },
    "the logits are multiplied by √d_model; they are plain products with the embeddings": {
        "end": "multiplied"
    },
    "these are the logits of the last token only; return those of every token": {"end": "last"},
}
TRANSFORMER_SLIPS: dict[str, dict[str, Any]] = {
    "the embeddings are not multiplied by √d_model before the positions are added": {
        "embedding_scale": "none"
    },
    "the embeddings are multiplied by d_model; take its root, √d_model": {"embedding_scale": "d"},
    "√d_model multiplies the positions too; multiply the embeddings before the positions are "
    "added": {"scaled_after": True},
    "the positions are missing: add them to the embeddings": {"no_positions": ("source", "target")},
    "the positions are added to the source alone, and missing in the target": {
        "no_positions": ("target",)
    },
    "the positions are added to the target alone, and missing in the source": {
        "no_positions": ("source",)
    },
    "the positions multiply the embeddings; add them": {"positions_multiplied": True},
    "the positions have sines first and cosines after; they alternate": {
        "positions": {"order": "halves"}
    },
    "the positions should count from 0": {"positions": {"first": 1}},
    "the positions have sines and cosines exchanged": {"positions": {"order": "exchanged"}},
    **END_SLIPS,
    "source and target are exchanged: the encoder reads the source": {"exchanged": True},
    "only the first block of the encoder is used": {"encoder": "first"},
    "only the first block of the decoder is used": {"decoder": "first"},
    "only the last block of the encoder counts: each begins with the embeddings again": {
        "encoder_restarts": True
    },
    "the encoder is missing: the decoder reads the embeddings of the source": {"encoder": "none"},
    "the decoder is missing": {"decoder": "none"},
    "the blocks of the encoder come in reversed order": {"encoder": "reversed"},
    "the blocks of the decoder come in reversed order": {"decoder": "reversed"},
    "the encoder is masked; each of its tokens sees the whole source": {
        "encoder_only": {"sees_past": "last"}
    },
    "in the encoder the norms come before the sublayers; they come after the sum": {
        "encoder_only": {"order": "pre"}
    },
    "the norms of the encoder are missing": {
        "encoder_only": {"no_norm": ("attention", "feed_forward")}
    },
    "in the decoder the norms come before the sublayers; they come after the sum": {
        "decoder_only": {"order": "pre"}
    },
    "the norms of the decoder are missing": {
        "decoder_only": {"no_norm": ("attention", "cross", "feed_forward")}
    },
}


@exercise(
    "transformer(source, target, w, heads)",
    "agrees with ts.models.Transformer: you have written one",
)
def transformer() -> Cases:
    """Check transformer(source, target, w, heads): ids in, logits of the next target token out."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocabulary=11,
        d_model=8,
        heads=2,
        encoder_blocks=2,
        decoder_blocks=2,
        d_hidden=16,
        bias=False,
        dropout=0.0,
    )
    model = Transformer(config).eval()
    source = torch.tensor([[5, 2, 9, 1]])
    target = torch.tensor([[3, 7, 4]])
    w = matrices(model)
    with torch.no_grad():
        right = model(source, target)[0]
    own = {
        "attention": "the norm after the self-attention",
        "cross": "the norm after the cross-attention",
        "feed_forward": "the last norm of each block, after the feed-forward network,",
    }
    mistakes = Slips(
        lambda **switches: _transformer(source[0], target[0], w, 2, **switches),
        {
            **TRANSFORMER_SLIPS,
            **by_hand.DECODER_SLIPS,
            **_slips_of_blocks(),
            **by_hand.place_slips(by_hand.DECODER_PLACES, own),
        },
        _shortened(source[0], target[0], w),
        pairs=by_hand.OFTEN,
    )
    yield Case(
        (source[0], target[0], w, 2),
        right,
        mistakes,
        tolerance=1e-3,
        causal="target",
        asked=_is_tied((source[0], target[0]), w),
    )


def _is_tied(texts: tuple[Tensor, ...], w: dict[str, Any]) -> Callable[[Solution], str]:
    """Return a question whether the logits are products with the embeddings."""
    # A token that no text has: its embedding counts in the head alone.
    token = next(i for i in range(len(w["embedding"])) if all(i not in text for text in texts))
    other = {**w, "embedding": w["embedding"].clone()}
    other["embedding"][token] += normal(w["embedding"].shape[1], seed=9)

    def asked(function: Solution) -> str:
        before, after = (function(*texts, weights, 2) for weights in (w, other))
        if torch.allclose(before[..., token], after[..., token], atol=1e-5):
            return (
                "a logit does not change with the embedding of its token; the head is tied: "
                'multiply by w["embedding"].mT, and by no other matrix'
            )
        return ""

    return asked


def _shortened(source: Tensor, target: Tensor, w: dict[str, Any]) -> dict[str, Tensor]:
    return {
        "the last token of the target is left out; return a row for each token": (
            _transformer(source, target[:-1], w, 2)
        ),
        "the first token of the target is left out; return a row for each token": (
            _transformer(source, target[1:], w, 2)
        ),
    }


# --------------------------------------------------------------------------------------------- GPT


def _gpt(ids: Tensor, w: dict[str, Any], heads: int, **switches: Any) -> Tensor:
    """Return the logits of a GPT, with usual mistakes."""
    get = switches.get
    n = len(ids)
    d = w["embedding"].shape[1]
    tables = {
        "learned": w["positions"][:n],
        "none": torch.zeros(n, d),
        "from 1": w["positions"][1 : n + 1],
        "last": w["positions"][-n:],
        "same": w["positions"][:1].expand(n, d),
        "sinusoidal": _positions(n, d),
    }
    places = tables[get("places", "learned")]
    x = w["embedding"][ids] * (sqrt(d) if get("scaled") else 1.0) + places
    inner = {"usual": "gelu", "usual_order": "pre", **switches}
    for block in _chosen(w["blocks"], get("blocks", "all")):
        x = x + places if get("places_again") else x
        x = _gpt_block(x, block, heads, inner)
    return _logits(
        x if get("no_last_norm") else by_hand.norm(x, **switches), w["embedding"], switches
    )


def _gpt_block(x: Tensor, w: by_hand.Weights, heads: int, switches: by_hand.Switches) -> Tensor:
    """Return a block of a GPT: a decoder block without cross-attention."""
    if switches.get("parallel") is None and not switches.get("keys_raw"):
        return by_hand.decoder_block(x, x, w, heads, **{**switches, "missing": (*switches.get("missing", ()), "cross"), "cross_weights": "self"})  # fmt: skip
    n = len(x)
    normed = by_hand.norm(x)
    memory = x if switches.get("keys_raw") else normed
    attended = by_hand.attention(normed, memory, w["self"], heads, causal_matrix(n, n))
    if switches.get("parallel") == "both":
        return x + attended + by_hand.feed_forward(normed, w["feed_forward"], **switches)
    if switches.get("parallel") == "input":
        inner = by_hand.feed_forward(by_hand.norm(x + attended), w["feed_forward"], **switches)
        return x + inner
    of = by_hand.norm(x + attended)
    return x + attended + by_hand.feed_forward(of, w["feed_forward"], **switches)


GPT_SLIPS: dict[str, dict[str, Any]] = {
    "the last norm, before the head, is missing": {"no_last_norm": True},
    **END_SLIPS,
    "the positions are missing: add their rows to the embeddings": {"places": "none"},
    "the positions count from 0: the first token has row 0": {"places": "from 1"},
    "the last rows of the positions are added; take the first n": {"places": "last"},
    "all tokens have the same position, row 0; add a row for each place": {"places": "same"},
    'the positions are sinusoidal; here they are learned, w["positions"]': {"places": "sinusoidal"},
    "the positions are added in each block again; add them once, to the embeddings": {
        "places_again": True
    },
    "the embeddings are scaled by √d_model; here they are not": {"scaled": True},
    "only the first block is used": {"blocks": "first"},
    "the blocks come in reversed order": {"blocks": "reversed"},
    "no block is used": {"blocks": "none"},
    **by_hand.MASK_SLIPS,
    "the keys and values are not normed: the attention reads norm(x) for queries and keys": {
        "keys_raw": True
    },
    "attention and feed-forward network read the same x in parallel; the feed-forward network "
    "reads what the attention left": {"parallel": "both"},
    **by_hand.place_slips(
        by_hand.ENCODER_PLACES,
        {
            "attention": "the norm before the attention",
            "feed_forward": "the norm before the feed-forward network",
        },
    ),
}


@exercise("gpt(ids, w, heads)", "agrees with ts.models.GPT")
def gpt() -> Cases:
    """Check gpt(ids, w, heads): a pre-norm GPT with GELU and learned positions; logits of every
    next token.
    """
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(vocabulary=11, max_positions=16, d_model=8, blocks=2, heads=2, bias=False)
    ).eval()
    with torch.no_grad():
        # Larger weights than a new model has: with small ones every mistake gives nearly the same.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.4)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    w = matrices(model)
    with torch.no_grad():
        right = model(ids)[0]
    compute = lambda **switches: _gpt(ids[0], w, 2, **switches)  # noqa: E731
    without = {
        f"{sentence}; and the last norm is missing": compute(no_last_norm=True, **changes)
        for sentence, changes in by_hand.order_slips("pre").items()
    }
    without["the norms are missing, all of them"] = compute(
        no_last_norm=True, no_norm=("attention", "feed_forward")
    )
    mistakes = Slips(
        compute,
        {**GPT_SLIPS, **_slips_of_blocks("gelu", "pre")},
        without,
        pairs=by_hand.OFTEN,
    )
    yield Case(
        (ids[0], w, 2),
        right,
        mistakes,
        tolerance=1e-3,
        causal="ids",
        raises={
            r"\(5\) must match.*\(16\)|\(16\) must match.*\(5\)": "there are 16 positions and 5 "
            'tokens: take the first n rows, w["positions"][:n]',
        },
        asked=_is_tied((ids[0],), w),
    )


# ------------------------------------------------------------------------------------------ recall


def corrupt(function: Solution) -> None:
    """Check corrupt(words, start, stop): prefix ⁇ suffix ⁇ cut-out."""
    words = ["Ada", "was", "born", "in", "London"]
    for start, stop in ((4, 5), (1, 3)):
        right = [*words[:start], "⁇", *words[stop:], "⁇", *words[start:stop]]
        found = call("corrupt(words, start, stop)", function, words, start, stop)
        if found != right:
            hint = _about_words(found, words, start, stop)
            raise WrongAnswer(
                f"corrupt(words, {start}, {stop}) is {str(found)[:120]}, and should be "
                f"{right}{hint}"
            )
    passed("corrupt", "agrees with the pretraining of recipes/recall-*.toml")


def _about_words(found: Any, words: list[str], start: int, stop: int) -> str:
    """Return what is wrong with a corrupted line."""
    if not isinstance(found, list):
        return f"; return a list of words, not a {type(found).__name__}"
    if any(isinstance(word, list | tuple) for word in found):
        return "; one element is a list itself: unpack it with *, or add the lists"
    prefix, span, suffix = words[:start], words[start:stop], words[stop:]
    known = {
        "; these are the words, unchanged": words,
        "; the words of the second example are those of the first: numbers are written into it": [
            *words[:4], "⁇", "⁇", "London",
        ],
        "; the words that were cut out are not removed from their place": [*words, "⁇", *span],
        "; the words that were cut out come at the end, after the suffix": [
            *prefix, "⁇", *span, "⁇", *suffix,
        ],
        "; one ⁇ stands for all the words that were cut out, not one for each word": [
            *prefix, *["⁇"] * len(span), *suffix, "⁇", *span,
        ],
        "; the words that were cut out are missing at the end": [*prefix, "⁇", *suffix, "⁇"],
        "; the words that were cut out are missing at the end, and there are two ⁇": [
            *prefix, "⁇", *suffix,
        ],
        "; the words that were cut out stand in reversed order": [
            *prefix, "⁇", *suffix, "⁇", *span[::-1],
        ],
        "; the word at stop is not cut out: words[start:stop] ends before it": [
            *prefix, "⁇", *words[stop + 1 :], "⁇", *words[start : stop + 1],
        ],
        "; the word at start is cut out too: words[:start] ends before it": [
            *words[: start + 1], "⁇", *suffix, "⁇", *words[start + 1 : stop],
        ],
        "; start and stop count from 0": [
            *words[: start - 1], "⁇", *words[stop - 1 :], "⁇", *words[start - 1 : stop - 1],
        ],
        "; stop is a place, not a length: words[start:stop]": [
            *prefix, "⁇", *words[start + stop :], "⁇", *words[start : start + stop],
        ],
    }  # fmt: skip
    for hint, wrong in known.items():
        if found == wrong:
            return hint
    if found.count("⁇") == 0:
        return '; the sign is "⁇", one character'
    if found.count("⁇") != 2:
        return "; there are two ⁇: where the words were, and before the words that were cut out"
    return ""
