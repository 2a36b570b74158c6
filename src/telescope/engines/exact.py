"""Arithmetic of the engines in plain PyTorch: half precision in float32, grouped heads, and NaN
that stays contained.

A NaN or infinity in a hidden key or value must change no output and no gradient, though 0 · NaN =
NaN.
"""

from math import isfinite

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..attention import Score
from ..attention.scores import grouped_matmul
from ..attention.values import has_data


def upcast_half(tensor: Tensor) -> Tensor:
    """Return float16 and bfloat16 tensors as float32, and others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def may_be_nonfinite(*tensors: Tensor) -> bool:
    """Return whether some tensor may hold a NaN or infinity; False for tensors without data, as
    when compiling.
    """
    return all(map(has_data, tensors)) and sums_are_nonfinite(*tensors)


def sums_are_nonfinite(*tensors: Tensor) -> bool:
    """Return whether some tensor, all of which have data, may hold a NaN or infinity."""
    return any(not isfinite(sum_to_float(tensor)) for tensor in tensors)


def sum_to_float(tensor: Tensor) -> float:
    """Return the sum of all numbers, which one NaN or infinity makes non-finite, several times
    faster than isfinite().

    Half precision is summed in float32. Finite numbers may overflow in the sum, so this is a test
    without misses, but with false alarms.
    """
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return (tensor.sum(dtype=torch.float32) if tensor.element_size() < 4 else tensor.sum()).item()


def repeat_key_heads(
    tensor: Shaped[Tensor, "batch key_heads key d"], queries: Float[Tensor, "batch heads query d_q"]
) -> Shaped[Tensor, "batch heads key d"]:
    """Return `tensor` with each key head repeated for its group of neighbouring query heads."""
    heads = queries.shape[1]
    key_heads = tensor.shape[1]
    return tensor if heads == key_heads else tensor.repeat_interleave(heads // key_heads, dim=1)


def nan_safe_score(
    score: Score,
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
) -> Float[Tensor, "batch heads query key"]:
    """Return score(queries, keys), where a NaN or infinity stays out of the gradients of all other
    pairs.
    """
    if not may_be_nonfinite(queries, keys):
        return score(queries, keys)
    bad_queries, bad_keys = (~tensor.isfinite().all(-1, keepdim=True) for tensor in (queries, keys))
    clean = score(queries.masked_fill(bad_queries, 0.0), keys.masked_fill(bad_keys, 0.0))
    return torch.where(
        bad_queries | repeat_key_heads(bad_keys, queries).mT, score(queries, keys).detach(), clean
    )


def nan_safe_weigh(
    weights: Float[Tensor, "batch heads query key"],
    values: Float[Tensor, "batch key_heads key d_v"],
    masked: Float[Tensor, "batch heads query key"],
) -> Float[Tensor, "batch heads query d_v"]:
    """Return weights @ values, where a hidden value adds nothing, not even a NaN (0 · NaN =
    NaN).
    """
    if not may_be_nonfinite(values):
        return grouped_matmul(weights, values)
    values = repeat_key_heads(values, weights)
    bad = ~values.isfinite()
    context = grouped_matmul(weights, values.masked_fill(bad, 0.0))
    for key in bad.any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist():
        part = (weights[..., key, None] * values[..., None, key, :]).detach()
        context = context + part.masked_fill(
            part.isfinite() | (masked[..., key, None] == -torch.inf), 0.0
        )
    return context
