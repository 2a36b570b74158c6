"""The law: every step formed, in plain PyTorch. All other engines mean this, and are tested against it in float64."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout as drop

from ..attention import Attention, Pairs, Score
from ..attention.values import has_numbers


@dataclass(frozen=True, eq=False)
class Steps:
    """Everything an attention computes on its way, in order."""

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    scores: Float[Tensor, "batch heads query key"]
    scaled: Float[Tensor, "batch heads query key"]
    capped: Float[Tensor, "batch heads query key"]
    biased: Float[Tensor, "batch heads query key"]
    masked: Float[Tensor, "batch heads query key"]
    weights: Float[Tensor, "batch heads query key"]
    context: Float[Tensor, "batch heads query d_v"]


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    return steps(queries, keys, values, attention, dropout).context.to(queries.dtype)


def steps(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Steps:
    """normalise(mask(softcap(score(q, k) · scale) + bias)) v. Half-precision inputs are computed in float32."""
    q, k, v = _precise(queries), _precise(keys), _precise(values)
    k, v = share_heads(k, q), share_heads(v, q)
    scores = score(attention.score, q, k)
    scaled = attention.scaled(scores, k)
    capped = attention.capped(scaled)
    at = Pairs.all(scores)
    biased = attention.biased(capped, at)
    masked = attention.masked(biased, at)
    weights = attention.weights(masked)
    context = weigh(drop(weights, dropout), v, masked)
    return Steps(queries, keys, values, scores, scaled, capped, biased, masked, weights, context)


def score(
    score: Score, queries: Float[Tensor, "batch heads query d_q"], keys: Float[Tensor, "batch heads key d_k"]
) -> Float[Tensor, "batch heads query key"]:
    """score(queries, keys), in which a NaN or infinity stays out of the gradients of whoever may not see it."""
    lost_queries, lost_keys = _broken(queries).any(-1, keepdim=True), _broken(keys).any(-1, keepdim=True)
    if not has_numbers(queries) or not bool(lost_queries.any() or lost_keys.any()):
        return score(queries, keys)
    whole = score(queries.masked_fill(lost_queries, 0.0), keys.masked_fill(lost_keys, 0.0))
    return torch.where(lost_queries | lost_keys.mT, score(queries, keys).detach(), whole)


def share_heads(
    tensor: Float[Tensor, "batch key_heads key d"], queries: Float[Tensor, "batch heads query d_q"]
) -> Float[Tensor, "batch heads key d"]:
    """Grouped queries: each key head serves the same number of neighbouring query heads."""
    heads, key_heads = queries.shape[1], tensor.shape[1]
    return tensor if heads == key_heads else tensor.repeat_interleave(heads // key_heads, dim=1)


def weigh(
    weights: Float[Tensor, "batch heads query key"],
    values: Float[Tensor, "batch heads key d_v"],
    masked: Float[Tensor, "batch heads query key"],
) -> Float[Tensor, "batch heads query d_v"]:
    """weights @ values, in which a value that may not be seen does nothing, not even a NaN (0 · NaN = NaN)."""
    broken = _broken(values)
    if not has_numbers(values) or not bool(broken.any()):
        return weights @ values
    context = weights @ values.masked_fill(broken, 0.0)
    for key in broken.any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist():
        part = (weights[..., key, None] * values[..., None, key, :]).detach()
        context = context + part.masked_fill(part.isfinite() | (masked[..., key, None] == -torch.inf), 0.0)
    return context


def _broken(tensor: Tensor) -> Tensor:
    return ~tensor.isfinite()


def _precise(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
