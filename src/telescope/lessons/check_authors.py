"""Checks of the lesson on reasons: a score split by who wrote what its query and key read, a norm
that is held, and what the keys of a head add to a logit.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

from .comparing import Case, Cases, exercise
from .material import normal
from .slips import Slips


@exercise(
    "split_score(query_parts, key_parts, W_q, W_k, scale)",
    "the terms of a table add up to q · k · scale",
)
def split_score() -> Cases:
    """Check split_score(query_parts, key_parts, W_q, W_k, scale): what each pair of authors adds to
    one score.
    """
    # Three authors wrote what the query reads, four what the key reads.
    query_parts = normal(3, 6)
    key_parts = normal(4, 6, seed=1)
    matrices = {"W_q": normal(6, 5, seed=2), "W_k": normal(6, 5, seed=3), "none": torch.eye(6)}
    scale = 0.3  # not 1 / √d_k: the one that is given has to be used

    def compute(
        factor: float = scale,
        of_queries: str = "W_q",
        of_keys: str = "W_k",
        centred: str = "no",
        end: str = "table",
    ) -> Tensor:
        of = query_parts - query_parts.mean(0) if centred == "queries" else query_parts
        over = key_parts - key_parts.mean(0) if centred == "keys" else key_parts
        table = (of @ matrices[of_queries]) @ (over @ matrices[of_keys]).mT * factor
        ends: dict[str, Tensor] = {
            "table": table,
            "sum": table.sum(),
            "no keys": table.sum(1),
            "no queries": table.sum(0),
            "softmax": table.softmax(-1),
            "shares": table / table.sum(),
            "shares of rows": table / table.sum(-1, keepdim=True),
            "absolute": table.abs(),
        }
        return ends[end]

    yield Case(
        (query_parts, key_parts, matrices["W_q"], matrices["W_k"], scale),
        compute(),
        Slips(
            compute,
            {
                "the terms are not multiplied by the scale": {"factor": 1.0},
                "the scale stands twice; a score has it once": {"factor": scale**2},
                "each term is divided by √d_k; multiply by the scale that is given": {
                    "factor": 1 / sqrt(5)
                },
                "each term is divided by the scale; multiply": {"factor": 1 / scale},
                "the root of the scale is used; multiply by the scale itself": {
                    "factor": sqrt(scale)
                },
                "this is the score, the sum of the table; return its terms": {"end": "sum"},
                "the parts are not projected: the query's go through W_q, the key's through W_k": {
                    "of_queries": "none",
                    "of_keys": "none",
                },
                "W_q and W_k are exchanged: the query's parts go through W_q": {
                    "of_queries": "W_k",
                    "of_keys": "W_q",
                },
                "both go through W_q; the key's parts go through W_k": {"of_keys": "W_q"},
                "both go through W_k; the query's parts go through W_q": {"of_queries": "W_k"},
                "the mean of the query's parts is subtracted; nothing is centred here": {
                    "centred": "queries"
                },
                "the mean of the key's parts is subtracted; nothing is centred here": {
                    "centred": "keys"
                },
                "this is summed over the key's authors; keep a column for each": {"end": "no keys"},
                "this is summed over the query's authors; keep a row for each": {
                    "end": "no queries"
                },
                "softmax was taken; a term is a product, and may be negative": {"end": "softmax"},
                "these are shares of the sum; return the terms themselves": {"end": "shares"},
                "these are shares of each row's sum; return the terms themselves": {
                    "end": "shares of rows"
                },
                "the signs are lost: these are absolute values": {"end": "absolute"},
            },
        ),
    )


@exercise("held_norm(x, parts, gain)", "the parts and the bias add up to LayerNorm(x)")
def held_norm() -> Cases:
    """Check held_norm(x, parts, gain): what each part of x is behind a LayerNorm whose σ is that of
    x.
    """
    # Means far from 0, so that a mean that is left in is seen.
    parts = normal(4, 8) + torch.tensor([[1.0], [-0.5], [2.0], [0.0]])
    x = parts.sum(0)
    gain = 1 + 0.5 * normal(8, seed=1)
    variance = x.var(correction=0) + 1e-5
    means = {
        "own": parts.mean(-1, keepdim=True),
        "none": torch.tensor(0.0),
        "of x": x.mean(),
        "of x, shared": x.mean() / 4,
        "over authors": parts.mean(0),
    }
    sigmas = {
        "of x": variance.sqrt(),
        "own": (parts.var(-1, correction=0, keepdim=True) + 1e-5).sqrt(),
        "variance": variance,
        "n - 1": (x.var() + 1e-5).sqrt(),
        "root mean square": (x.square().mean() + 1e-5).sqrt(),
        "length": (x - x.mean()).norm(),
        "of all parts": (parts.var(correction=0) + 1e-5).sqrt(),
        "none": torch.tensor(1.0),
        "multiplied": 1 / variance.sqrt(),
    }
    gains = {
        "times": gain,
        "none": torch.ones(8),
        "divided": 1 / gain,
        "1 +": 1 + gain,
        "squared": gain**2,
    }

    def compute(
        mean: str = "own", sigma: str = "of x", factor: str = "times", end: str = "parts"
    ) -> Tensor:
        result = (parts - means[mean]) / sigmas[sigma] * gains[factor]
        ends: dict[str, Tensor] = {
            "parts": result,
            "sum": result.sum(0),
            "plus": result + gain,
        }
        return ends[end]

    yield Case(
        (x, parts, gain),
        compute(),
        Slips(
            compute,
            {
                "each part is normalised by itself, with a σ of its own; hold the σ of x, or the "
                "parts do not add up": {"sigma": "own"},
                "the mean is forgotten: each part loses the mean of its own features": {
                    "mean": "none"
                },
                "the gain is forgotten: it multiplies each feature": {"factor": "none"},
                "the mean of x is taken off every part, as often as there are parts; each loses "
                "its own": {"mean": "of x"},
                "the mean of x is shared evenly; each part loses its own, so that it is changed "
                "by nothing that others wrote": {"mean": "of x, shared"},
                "the mean is taken over the authors; take it over the features of each part": {
                    "mean": "over authors"
                },
                "divided by the variance; σ is its root": {"sigma": "variance"},
                "the variance of LayerNorm divides by d, not by d - 1: correction=0": {
                    "sigma": "n - 1"
                },
                "divided by the root mean square of x, as in RMSNorm; σ is that of x less its "
                "mean": {"sigma": "root mean square"},
                "divided by the length of x less its mean; σ is smaller, by √d": {
                    "sigma": "length"
                },
                "divided by the σ of all parts together; hold the σ of x": {
                    "sigma": "of all parts"
                },
                "nothing is divided: each part is divided by the σ of x": {"sigma": "none"},
                "multiplied by σ; divide by it": {"sigma": "multiplied"},
                "divided by the gain; it multiplies": {"factor": "divided"},
                "1 is added to the gain; it multiplies as it is": {"factor": "1 +"},
                "the gain multiplies twice": {"factor": "squared"},
                "the gain is added too, as a bias; the bias is left out": {"end": "plus"},
                "this is LayerNorm(x), the sum; return a row for each part": {"end": "sum"},
            },
            {
                "the mean and the gain are forgotten": compute(mean="none", factor="none"),
                "each part is divided by a σ of its own, and the gain is missing; hold the σ of "
                "x": functional.layer_norm(parts, (8,)),
            },
        ),
    )


@exercise(
    "attributed(weights, values, W_o, factor, row)",
    "the numbers of the keys add up to what the head adds to the logit",
)
def attributed() -> Cases:
    """Check attributed(weights, values, W_o, factor, row): what each key that a head read adds to a
    logit.
    """
    weights = normal(5).softmax(-1)
    values = normal(5, 3, seed=1)
    W_o = normal(3, 6, seed=2)
    factor = 1 + 0.5 * normal(6, seed=3)
    row = normal(6, seed=4) + 0.5
    own_weights = {
        "weights": weights,
        "none": torch.ones(5),
        "softmax": weights.softmax(-1),
    }
    factors = {
        "once": factor,
        "none": torch.ones(6),
        "twice": factor**2,
        "divided": 1 / factor,
    }

    def compute(
        weigh: str = "weights",
        mean: str = "features",
        by: str = "once",
        first: str = "mean",
        end: str = "logits",
    ) -> Tensor:
        # What each key writes to the residual stream.
        written = own_weights[weigh][:, None] * (values @ W_o)
        if first != "mean":
            written = written * factors[by]
        means = {
            "features": written.mean(-1, keepdim=True),
            "none": torch.tensor(0.0),
            "keys": written.mean(0),
            "all": written.mean(),
        }
        centred = written - means[mean]
        if first == "both" or first == "mean":
            centred = centred * factors[by]
        each = centred @ row
        ends: dict[str, Tensor] = {
            "logits": each,
            "sum": each.sum(),
            "products": centred * row,
            "length": centred.norm(dim=-1),
            "shares": each / each.sum(),
            "features": centred.sum(-1),
            "absolute": each.abs(),
            "softmax": each.softmax(-1),
        }
        return ends[end]

    yield Case(
        (weights, values, W_o, factor, row),
        compute(),
        Slips(
            compute,
            {
                "the weights are missing: a key writes its weight times its value": {
                    "weigh": "none"
                },
                "softmax is taken of the weights; they are weights already": {"weigh": "softmax"},
                "the mean is left in: the norm takes it off each part": {"mean": "none"},
                "the mean is taken over the keys; the norm takes it over the features": {
                    "mean": "keys"
                },
                "one mean is taken of all; the norm takes it over the features of each key": {
                    "mean": "all"
                },
                "the norm's factor is missing": {"by": "none"},
                "the norm's factor divides; it multiplies": {"by": "divided"},
                "the factor multiplies twice, before the mean is taken off and after": {
                    "first": "both"
                },
                "the factor multiplies twice": {"by": "twice"},
                "the factor comes first, and the mean after; the norm takes the mean off before "
                "its factor": {"first": "factor"},
                "this is what the whole head adds; return a number for each key": {"end": "sum"},
                "the products with the unembedding's row are not summed": {"end": "products"},
                "this is a length; a logit is a dot product with the unembedding's row": {
                    "end": "length"
                },
                "these are shares; the numbers themselves add up to a part of the logit": {
                    "end": "shares"
                },
                "the features are summed, without the unembedding's row; a logit is a dot product "
                "with that row": {"end": "features"},
                "the signs are lost: a key may lower the logit": {"end": "absolute"},
                "softmax is taken of the result; the numbers add up to a part of the logit": {
                    "end": "softmax"
                },
            },
            {"the norm is missing: its mean and its factor": compute(mean="none", by="none")},
        ),
        raises={
            r"\(5\) must match.*\(6\)|\(6\) must match.*\(5\)": "weights have a number for each "
            "key: weights[:, None] makes a column of them; and a mean needs keepdim=True",
        },
    )
