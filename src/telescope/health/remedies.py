"""Two remedies for logits that grow while a model trains: `qk_clip` scales projections,
`remove_key_bias` sets key biases without influence to zero.

Without rotary positions, the bias of a key projection has no influence on softmax attention. A
query's score with key j is q·(W_k x_j + b) = q·W_k x_j + q·b, and q·b is the same for all keys of
the row, so that softmax takes it out again. The gradient of b is therefore rounding noise alone,
which Adam divides by its own size: b makes a random walk of full steps. The scores grow, and with
them the rounding errors of the softmax.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, sqrt

import torch
from torch import nn

from ..anatomy import Modules, QueryKeyProjections, find_query_key, why_unknown
from ..interception import telescope_models
from ..words import hint

WRAPPERS = ("_orig_mod", "module")  # of torch.compile; of DDP, DataParallel and other libraries
DRIFT = 4.0  # how many times the query biases' standard deviation
LEAST = 0.5  # a smaller standard deviation of the key biases is no drift worth a word
Logits = Mapping[str, Sequence[float]]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DDP and the like; a model that is sharded by FSDP2 is
    itself.
    """
    while True:
        # Wrappers may nest; a submodule that is only named like one has siblings, mostly.
        names = [name for name in WRAPPERS if name in model._modules and len(model._modules) == 1]
        inner = model._modules[names[0]] if names else None
        if inner is None:
            return model
        model = inner


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
        tau: the limit of the logits, after scaling by 1/√d; Kimi K2 has 100.
        logits: the largest logit of each head, by layer, as `Health(model).measure(batch).logits`
            gives them.

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
        # A logit of infinity would give γ = 0, and erase the head's projections.
        above = {
            head: tau / logit
            for head, logit in enumerate(largest)
            if isfinite(logit) and logit > tau
        }
        if above:
            _check(module, name, len(largest), known)
            shares[name] = above

    # Scale only now that every layer has passed its check.
    for name, above in shares.items():
        own = known[name]
        _scale(own, [above.get(head, 1.0) for head in range(own.heads)])
    return shares


def projections_of(model: nn.Module) -> dict[str, QueryKeyProjections]:
    """Return the projections of every attention that is known, under the name that `ts.watch` gives
    the attention.
    """
    modules = Modules.of(model)
    # A model of Telescope names an attention after its `attend` module, others after the layer.
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
        # A later pass, "name.2", belongs to the layer "name", unless a layer has that name itself.
        first, _, number = name.rpartition(".")
        layer = first if name not in known and first in known and number.isdecimal() else name
        before = found.get(layer, [-inf] * len(largest))
        if len(before) != len(largest):
            raise ValueError(
                f'"{name}" has logits of {len(largest)} heads, and "{layer}" of {len(before)}'
            )
        # Take the larger logit of two passes; a known one replaces NaN.
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
        module = Modules.of(model).get(name)
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

    # The layer is known: its scores must follow its projections, head by head.
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
    # Query heads that share a key head: the one that needs least scaling decides for the keys.
    group = own.heads // own.key_heads
    of_keys = [sqrt(max(shares[i * group : (i + 1) * group])) for i in range(own.key_heads)]
    # The queries take the rest, so that both factors multiply to the head's share.
    of_queries = [share / of_keys[head // group] for head, share in enumerate(shares)]
    for rows in (own.query, own.query_bias):
        if rows is not None:
            rows.scale(of_queries)
    for rows in (own.key, own.key_bias):
        if rows is not None:
            rows.scale(of_keys)


# -------------------------------------------------------------------------------- key biases


def drifted_key_biases(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return the standard deviations of key and query biases of each attention whose key bias has
    drifted.

    That is: a key bias without influence, whose standard deviation is at least 0.5 and 4 times that
    of the query bias.

    Args:
        model: any model whose attentions `ts.watch` finds.

    Returns:
        For each such attention, the standard deviation of its key bias and of its query bias.

    Example:
        >>> import telescope as ts
        >>> len(ts.health.drifted_key_biases(ts.load("summarizer")))
        9
    """
    measured = {
        name: [rows.values().float().std(correction=0) for rows in (own.key_bias, own.query_bias)]
        for name, own in projections_of(unwrapped(model)).items()
        # Without a query bias there is nothing to compare the key bias with.
        if own.key_bias is not None and own.query_bias is not None and not own.key_bias_matters
    }
    if not measured:
        return {}

    # Copy all deviations to the host at once: a GPU is waited for once.
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

    Args:
        model: any model whose attentions `ts.watch` finds.

    Returns:
        The names of the attentions that had one.

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
        # A bias that is zero already is not reported as removed.
        if (
            own.key_bias is not None
            and not own.key_bias_matters
            and bool(own.key_bias.values().any())
        ):
            own.key_bias.scale([0.0])
            removed.append(name)
    return removed
