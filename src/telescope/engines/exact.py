"""What engines in plain PyTorch share: halves in float32, grouped heads, and a NaN that stays with those who see it."""

from math import isfinite

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..attention import Score
from ..attention.scores import grouped
from ..attention.values import has_numbers


def precise(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def broken(*tensors: Tensor) -> bool:
    """Whether there may be a NaN or an infinity to look after; never where there are no numbers to look at."""
    return all(map(has_numbers, tensors)) and any(not isfinite(total(tensor)) for tensor in tensors)


def total(tensor: Tensor) -> float:
    """Return the sum of all numbers, in which one NaN or infinity shows, several times faster than by isfinite. Halves
    are summed in float32; finite numbers whose sum is infinite are taken for suspects too."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return (tensor.sum(dtype=torch.float32) if tensor.element_size() < 4 else tensor.sum()).item()


def share_heads(
    tensor: Shaped[Tensor, "batch key_heads key d"], queries: Float[Tensor, "batch heads query d_q"]
) -> Shaped[Tensor, "batch heads key d"]:
    """Grouped queries: each key head serves the same number of neighbouring query heads."""
    heads, key_heads = queries.shape[1], tensor.shape[1]
    return tensor if heads == key_heads else tensor.repeat_interleave(heads // key_heads, dim=1)


def score(
    score: Score, queries: Float[Tensor, "batch heads query d_q"], keys: Float[Tensor, "batch key_heads key d_k"]
) -> Float[Tensor, "batch heads query key"]:
    """score(queries, keys), in which a NaN or infinity stays out of the gradients of whoever may not see it."""
    if not broken(queries, keys):
        return score(queries, keys)
    lost_queries, lost_keys = (~tensor.isfinite().all(-1, keepdim=True) for tensor in (queries, keys))
    whole = score(queries.masked_fill(lost_queries, 0.0), keys.masked_fill(lost_keys, 0.0))
    return torch.where(lost_queries | share_heads(lost_keys, queries).mT, score(queries, keys).detach(), whole)


def weigh(
    weights: Float[Tensor, "batch heads query key"],
    values: Float[Tensor, "batch key_heads key d_v"],
    masked: Float[Tensor, "batch heads query key"],
) -> Float[Tensor, "batch heads query d_v"]:
    """weights @ values, in which a value that may not be seen does nothing, not even a NaN (0 · NaN = NaN)."""
    if not broken(values):
        return times(weights, values)
    values = share_heads(values, weights)
    lost = ~values.isfinite()
    context = times(weights, values.masked_fill(lost, 0.0))
    for key in lost.any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist():
        part = (weights[..., key, None] * values[..., None, key, :]).detach()
        context = context + part.masked_fill(part.isfinite() | (masked[..., key, None] == -torch.inf), 0.0)
    return context


def times(
    weights: Float[Tensor, "batch heads query key"], values: Float[Tensor, "batch key_heads key d_v"]
) -> Float[Tensor, "batch heads query d_v"]:
    """weights @ values, a key head for each group of query heads."""
    return grouped(weights, values)
