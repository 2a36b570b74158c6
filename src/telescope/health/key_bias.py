"""Key biases that drift: without rotary positions, the bias of a key projection has no influence on
softmax attention.

A query's score with key j is q·(W_k x_j + b) = q·W_k x_j + q·b, and q·b is the same for all keys of
the row, so that softmax takes it out again. The gradient of b is therefore rounding noise alone,
which Adam divides by its own size: b makes a random walk of full steps. The scores grow, and with
them the rounding errors of the softmax.
"""

import torch
from torch import nn

from .eager import unwrapped
from .qk_clip import projections_of

DRIFT = 4.0  # how many times the query biases' standard deviation
LEAST = 0.5  # a smaller standard deviation of the key biases is no drift worth a word


def drifted_key_biases(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return the standard deviations of key and query biases of each attention whose key bias has
    drifted.

    That is: a key bias without influence, whose standard deviation is at least 0.5 and 4 times that
    of the query bias.

    Example:
        >>> import telescope as ts
        >>> len(ts.health.drifted_key_biases(ts.load("summarizer")))
        9
    """
    measured = {
        name: [rows.values().float().std(correction=0) for rows in (own.key_bias, own.query_bias)]
        for name, own in projections_of(unwrapped(model)).items()
        if own.key_bias is not None and own.query_bias is not None and not own.key_bias_matters
    }
    if not measured:
        return {}
    device = next(iter(measured.values()))[0].device
    deviations = (
        torch.stack([part.to(device) for pair in measured.values() for part in pair])
        .view(-1, 2)
        .tolist()
    )
    pairs = zip(measured, deviations, strict=True)
    return {
        name: (keys, queries)
        for name, (keys, queries) in pairs
        if keys >= LEAST and keys > DRIFT * queries
    }


@torch.no_grad()
def remove_key_bias(model: nn.Module) -> list[str]:
    """Set every key bias without influence to zero, in place, and return the names of the
    attentions that had one.

    The model computes what it computed before, up to rounding: in exact arithmetic, softmax
    attention without rotary positions, softcap or sink does not depend on the bias of its keys.
    Other key biases are left as they are.

    Example:
        >>> import torch, telescope as ts
        >>> layer, x = ts.layers.MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
        >>> _ = layer.projections()["W_k"].bias.data.fill_(3.0)
        >>> before = layer(x)
        >>> ts.health.remove_key_bias(layer)
        ['attention']
        >>> torch.allclose(before, layer(x), atol=1e-5)
        True
    """
    removed = []
    for name, own in projections_of(unwrapped(model)).items():
        if (
            own.key_bias is not None
            and not own.key_bias_matters
            and bool(own.key_bias.values().any())
        ):
            own.key_bias.scale([0.0])
            removed.append(name)
    return removed
