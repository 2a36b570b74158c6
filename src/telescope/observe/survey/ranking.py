"""Which scores are the largest, and in which order, where some are equal."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def first(scores: Float[Tensor, "*rows key"], count: int) -> Int[Tensor, "*rows found"]:
    """Where the largest stand, the lower index first where they are equal, which topk by itself leaves to chance; of
    what is -inf any."""
    best, where = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    equal = (best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -torch.inf)
    return _by_index(scores, count) if equal.any() else where[..., :count]


def _by_index(scores: Float[Tensor, "*rows key"], count: int) -> Int[Tensor, "*rows found"]:
    """A float32 and its index make one whole number of 64 bits: bits of floats are in the order of the floats, once
    those of negative ones are turned round."""
    if scores.dtype == torch.float64:
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, since -0.0 equals 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = scores.shape[-1] - 1
    packed = order.long() << 32 | last - torch.arange(last + 1, device=scores.device)
    return last - (packed.topk(count, dim=-1).values & 0xFFFFFFFF)
