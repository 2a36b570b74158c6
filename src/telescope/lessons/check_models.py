"""Checks of whole models: the Transformer, GPT, and the text that a model is trained to recall."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..models import GPT, GPTConfig, Transformer, TransformerConfig
from . import by_hand
from .calling import Solution, WrongAnswer, call, passed
from .check_blocks import positions_by_hand, slips_of_blocks
from .comparing import Case, Cases, exercise
from .material import causal_matrix, matrices, normal
from .slips import Slips

# --------------------------------------------------------------------------------- the Transformer


def _transformer(
    source: Tensor, target: Tensor, w: dict[str, Any], heads: int, **switches: Any
) -> Tensor:
    """Return the logits of a Transformer, with usual mistakes."""
    get = switches.get
    d = w["embedding"].shape[1]

    def embed(ids: Tensor, name: str) -> Tensor:
        vectors: Tensor = w["embedding"][ids]
        scale = {"√d": sqrt(d), "none": 1.0, "d": float(d)}[get("embedding_scale", "√d")]
        places = positions_by_hand(len(ids), d, **get("positions", {}))
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
            **slips_of_blocks(),
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
        "sinusoidal": positions_by_hand(n, d),
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
        without = (*switches.get("missing", ()), "cross")
        own = {**switches, "missing": without, "cross_weights": "self"}
        return by_hand.decoder_block(x, x, w, heads, **own)
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

    def compute(**switches: Any) -> Tensor:
        return _gpt(ids[0], w, 2, **switches)

    without = {
        f"{sentence}; and the last norm is missing": compute(no_last_norm=True, **changes)
        for sentence, changes in by_hand.order_slips("pre").items()
    }
    without["the norms are missing, all of them"] = compute(
        no_last_norm=True, no_norm=("attention", "feed_forward")
    )
    mistakes = Slips(
        compute,
        {**GPT_SLIPS, **slips_of_blocks("gelu", "pre")},
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
        if not isinstance(found, list) or found != right:
            hint = _about_words(found, words, start, stop)
            shown = " ".join(str(found).split())
            raise WrongAnswer(
                f"corrupt(words, {start}, {stop}) is {shown[:120]}, and should be {right}{hint}"
            )
    passed("corrupt", "agrees with the pretraining of recipes/recall-*.toml")


def _about_words(found: Any, words: list[str], start: int, stop: int) -> str:
    """Return what is wrong with a corrupted line."""
    if not isinstance(found, list):
        return f"; return a list of words, not a {type(found).__name__}"
    if any(isinstance(word, list | tuple) for word in found):
        return "; one element is a list itself: unpack it with *, or add the lists"
    prefix = words[:start]
    span = words[start:stop]
    suffix = words[stop:]
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
