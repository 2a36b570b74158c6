"""`qk_clip`: keep the largest logit of every head at a limit, by scaling its query and key
projections.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, sqrt

from torch import nn

from ..anatomy import QueryKeyProjections, find_query_key, why_unknown
from ..interception import telescope_models
from ..recording.names import modules_by_path
from ..words import hint
from .eager import unwrapped

Logits = Mapping[str, Sequence[float]]


def qk_clip(model: nn.Module, tau: float, logits: Logits) -> dict[str, dict[int, float]]:
    """Scale the projections of every head whose largest logit exceeds `tau`, so that it becomes
    `tau`.

    As in Kimi K2 (arXiv:2507.20534, MuonClip): with γ = tau / largest logit, W_q and W_k of the
    head, and their biases, are multiplied by √γ, after the optimiser's step. Where several heads
    share one key head, that is multiplied by the √γ of the head that needs it least, and each W_q
    by the rest. Rotary positions are kept: the scores stay linear in both. With ALiBi, whose bias
    is not scaled and never above 0, the largest logit becomes `tau` or less. A layer that runs
    several times in a pass, as ALBERT's does, is scaled once, by the largest logit of its runs.
    Where one layer cannot be scaled, none is. The processes of DDP or FSDP must all call this, with
    the same logits: `Health(tau=...)` sees to that.

    Args:
        model: a model of Telescope, or one of transformers with q_proj and k_proj, query and key,
            T5's cross-attention, or the one projection of GPT-2, GPT-NeoX, Phi-3 or ModernBERT.
        tau: the limit of the logits, after scaling by 1/√d; Kimi K2 has 100. logits: the largest
        logit of each head, by layer, as `Health(model).measure(batch).logits` gives them.

    Returns:
        γ of every head that was scaled, by layer and number.

    Raises:
        ValueError: if a layer is not known, or if scaling its projections would not scale its
            scores; the model is then unchanged.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> ts.qk_clip(layer, 100.0, {"attention": (400.0, 3.0)})
        {'attention': {0: 0.25}}
    """
    if not tau > 0:
        raise ValueError(
            f"tau={tau} is the limit of the logits; it takes a number above 0, such as 100"
        )
    module = unwrapped(model)
    known = projections_of(module)
    # Find every projection first: an error leaves the model as it was.
    shares: dict[str, dict[int, float]] = {}
    for name, largest in _largest_of_passes(logits, known).items():
        above = {
            head: tau / logit
            for head, logit in enumerate(largest)
            if isfinite(logit) and logit > tau
        }
        if above:
            _check(module, name, len(largest), known)
            shares[name] = above
    for name, above in shares.items():
        own = known[name]
        _scale(own, [above.get(head, 1.0) for head in range(own.heads)])
    return shares


def projections_of(model: nn.Module) -> dict[str, QueryKeyProjections]:
    """Return the projections of every attention that is known, under the name that `ts.watch` gives
    the attention.
    """
    modules = modules_by_path(model)
    names = {id(attend): name for name, attend in telescope_models.attentions(modules).items()}
    found = {}
    for path, layer in modules.items():
        own = find_query_key(layer)
        if own is not None:
            found[names.get(id(getattr(layer, "attend", None)), path)] = own
    return found


def _largest_of_passes(
    logits: Logits, known: Mapping[str, QueryKeyProjections]
) -> dict[str, list[float]]:
    """Return the largest logits of each layer, over all passes of a layer that runs several times.

    The passes are named name, name.2, name.3, and share their projections.
    """
    found: dict[str, list[float]] = {}
    for name, largest in logits.items():
        first, _, number = name.rpartition(".")
        layer = first if name not in known and first in known and number.isdecimal() else name
        before = found.get(layer, [-inf] * len(largest))
        if len(before) != len(largest):
            raise ValueError(
                f'"{name}" has logits of {len(largest)} heads, and "{layer}" of {len(before)}'
            )
        found[layer] = [
            one if one > other or isnan(other) else other
            for one, other in zip(largest, before, strict=True)
        ]
    return found


def _check(
    model: nn.Module, name: str, heads: int, known: Mapping[str, QueryKeyProjections]
) -> None:
    """Raise a ValueError if the scores of a layer's heads cannot be scaled."""
    way_out = "leave this layer out of logits, or do without tau"
    if name not in known:
        module = modules_by_path(model).get(name)
        if module is None:
            listed = (
                hint(name, known)
                if known
                else "no attention of this model has projections that are known"
            )
            raise ValueError(
                f'the model has no layer "{name}" whose projections could be scaled; {listed}'
            )
        raise ValueError(
            f'the projections of "{name}" cannot be scaled: {why_unknown(module)}; {way_out}'
        )
    own = known[name]
    if own.cannot_scale:
        raise ValueError(
            f'scaling the projections of "{name}" would not scale its scores: {own.cannot_scale}; '
            f"{way_out}"
        )
    if heads != own.heads:
        raise ValueError(f'"{name}" has {own.heads} heads, and logits of {heads} were given')


def _scale(own: QueryKeyProjections, shares: Sequence[float]) -> None:
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
