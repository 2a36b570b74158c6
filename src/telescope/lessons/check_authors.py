"""Checks of lesson 20: a score split by who wrote what its query and key read, a norm that is held,
and what the keys of a head add to a logit.
"""

import torch
from torch.nn.functional import layer_norm

from .material import Case, Cases, exercise, normal

# ----------------------------------------------------------------------- 19  why a head looks there


@exercise("split_score", "the terms of a table add up to q · k · scale")
def split_score() -> Cases:
    """Check split_score(query_parts, key_parts, W_q, W_k, scale): what each pair of authors adds to
    one score.
    """
    # Three authors wrote what the query reads, four what the key reads.
    query_parts = normal(3, 6)
    key_parts = normal(4, 6, seed=1)
    W_q = normal(6, 5, seed=2)
    W_k = normal(6, 5, seed=3)
    scale = 0.3  # not 1 / √d_k: the one that is given has to be used
    queries = query_parts @ W_q
    keys = key_parts @ W_k
    table = queries @ keys.mT
    exchanged = (query_parts @ W_k) @ (key_parts @ W_q).mT
    yield Case(
        (query_parts, key_parts, W_q, W_k, scale),
        table * scale,
        {
            "the terms are not multiplied by the scale": table,
            "the scale stands twice; a score has it once": table * scale**2,
            "each term is divided by √d_k; multiply by the scale that is given": table / 5**0.5,
            "each term is divided by the scale; multiply": table / scale,
            "this is the score, the sum of the table; return its terms": (table * scale).sum(),
            "the parts are not projected: the query's go through W_q, the key's through W_k": (
                query_parts @ key_parts.mT * scale
            ),
            "W_q and W_k are exchanged: the query's parts go through W_q": exchanged * scale,
            "this is summed over the key's authors; keep a column for each": (
                (table * scale).sum(1)
            ),
            "this is summed over the query's authors; keep a row for each": (table * scale).sum(0),
            "softmax was taken; a term is a product, and may be negative": (
                (table * scale).softmax(-1)
            ),
        },
    )


@exercise("held_norm", "the parts and the bias add up to LayerNorm(x)")
def held_norm() -> Cases:
    """Check held_norm(x, parts, gain): what each part of x is behind a LayerNorm whose σ is that of
    x.
    """
    # Means far from 0, so that a mean that is left in is seen.
    parts = normal(4, 8) + torch.tensor([[1.0], [-0.5], [2.0], [0.0]])
    x = parts.sum(0)
    gain = 1 + 0.5 * normal(8, seed=1)
    variance = x.var(correction=0)
    sigma = (variance + 1e-5).sqrt()
    centred = parts - parts.mean(-1, keepdim=True)
    right = centred / sigma * gain
    yield Case(
        (x, parts, gain),
        right,
        {
            "each part is normalised by itself, with a σ of its own; hold the σ of x, or the parts "
            "do not add up": layer_norm(parts, (8,), gain),
            "each part is divided by a σ of its own, and the gain is missing; hold the σ of x": (
                layer_norm(parts, (8,))
            ),
            "the mean is forgotten: each part loses the mean of its own features": (
                parts / sigma * gain
            ),
            "the mean and the gain are forgotten": parts / sigma,
            "the gain is forgotten: it multiplies each feature": centred / sigma,
            "the mean of x is taken off every part, as often as there are parts; each loses its "
            "own": (parts - x.mean()) / sigma * gain,
            "the mean of x is shared evenly; each part loses its own, so that it is changed by "
            "nothing that others wrote": (parts - x.mean() / 4) / sigma * gain,
            "the mean is taken over the authors; take it over the features of each part": (
                (parts - parts.mean(0)) / sigma * gain
            ),
            "divided by the variance; σ is its root": centred / (variance + 1e-5) * gain,
            "the variance of LayerNorm divides by d, not by d - 1: correction=0": (
                centred / (x.var() + 1e-5).sqrt() * gain
            ),
            "divided by the root mean square of x, as in RMSNorm; σ is that of x less its mean": (
                centred / (x.square().mean() + 1e-5).sqrt() * gain
            ),
            "this is LayerNorm(x), the sum; return a row for each part": right.sum(0),
        },
    )


@exercise("attributed", "the numbers of the keys add up to what the head adds to the logit")
def attributed() -> Cases:
    """Check attributed(weights, values, W_o, factor, row): what each key that a head read adds to a
    logit.
    """
    weights = normal(5).softmax(-1)
    values = normal(5, 3, seed=1)
    W_o = normal(3, 6, seed=2)
    factor = 1 + 0.5 * normal(6, seed=3)
    row = normal(6, seed=4) + 0.5
    # What each key writes to the residual stream.
    written = weights[:, None] * (values @ W_o)
    centred = written - written.mean(-1, keepdim=True)
    right = (centred * factor) @ row
    unweighted = values @ W_o
    unweighted = unweighted - unweighted.mean(-1, keepdim=True)
    over_keys = written - written.mean(0)
    yield Case(
        (weights, values, W_o, factor, row),
        right,
        {
            "the weights are missing: a key writes its weight times its value": (
                (unweighted * factor) @ row
            ),
            "the mean is left in: the norm takes it off each part": (written * factor) @ row,
            "the mean is taken over the keys; the norm takes it over the features": (
                (over_keys * factor) @ row
            ),
            "the norm's factor is missing": centred @ row,
            "the norm is missing: its mean and its factor": written @ row,
            "this is what the whole head adds; return a number for each key": right.sum(),
            "the products with the unembedding's row are not summed": centred * factor * row,
            "this is a length; a logit is a dot product with the unembedding's row": (
                (centred * factor).norm(dim=-1)
            ),
            "these are shares; the numbers themselves add up to a part of the logit": (
                right / right.sum()
            ),
        },
    )
