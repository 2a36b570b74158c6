"""`qk_clip`: keep the largest logit of every head at a limit, by scaling its query and key projections."""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt

from torch import nn

from ..words import hint
from .eager import unwrapped
from .projections import Projections, projections_of


def qk_clip(model: nn.Module, tau: float, logits: Mapping[str, Sequence[float]]) -> dict[str, dict[int, float]]:
    """Scale the projections of every head whose largest logit exceeds `tau`, so that it becomes `tau`.

    As in Kimi K2 (arXiv:2507.20534, MuonClip): with γ = tau / largest logit, W_q and W_k of the head, and their biases,
    are multiplied by √γ, after the optimiser's step. Where several heads share one key head, that is multiplied by the
    √γ of the head that needs it least, and each W_q by the rest. Rotary positions are kept: the scores stay linear in
    both. The processes of DDP or FSDP must all call this, with the same logits: `Health(tau=...)` sees to that.

    Args:
        model: a model of Telescope, or one of transformers with q_proj and k_proj, query and key, or GPT-2's c_attn.
        tau: the limit of the logits, after scaling by 1/√d; Kimi K2 has 100.
        logits: the largest logit of each head, by layer, as `Health(model).measure(batch).logits` gives them.

    Returns:
        γ of every head that was scaled, by layer and number.

    Raises:
        ValueError: if a layer is not known, or if scaling its projections would not scale its scores.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> ts.qk_clip(layer, 100.0, {"attention": (400.0, 3.0)})
        {'attention': {0: 0.25}}
    """
    if not tau > 0:
        raise ValueError(f"tau={tau} is the limit of the logits; it takes a number above 0, such as 100")
    known = projections_of(unwrapped(model))
    clipped: dict[str, dict[int, float]] = {}
    for name, largest in logits.items():
        shares = {head: tau / logit for head, logit in enumerate(largest) if isfinite(logit) and logit > tau}
        if not shares:
            continue
        if name not in known:
            raise ValueError(
                f'the projections of "{name}" are not known, so they cannot be scaled; {hint(name, known)}'
            )
        own = known[name]
        if own.cannot_scale:
            raise ValueError(f'scaling the projections of "{name}" would not scale its scores: {own.cannot_scale}')
        if len(largest) != own.heads:
            raise ValueError(f'"{name}" has {own.heads} heads, and logits of {len(largest)} were given')
        _scale(own, [shares.get(head, 1.0) for head in range(own.heads)])
        clipped[name] = shares
    return clipped


def _scale(own: Projections, shares: Sequence[float]) -> None:
    """Multiply the scores of each head by its share."""
    group = own.heads // own.key_heads
    of_keys = [sqrt(max(shares[i * group : (i + 1) * group])) for i in range(own.key_heads)]
    of_queries = [share / of_keys[head // group] for head, share in enumerate(shares)]
    for rows in (own.query, own.query_bias):
        if rows is not None:
            rows.scale(of_queries)
    for rows in (own.key, own.key_bias):
        if rows is not None:
            rows.scale(of_keys)
