"""Whether a call of an attention goes on where the one before it ended, as decoding token by token does."""

from functools import cache

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention, softmax
from ..survey.extend import Size, holds
from .attention_call import AttentionCall

KEYS = 2**14  # how many are marked at once: it takes 64 bits for each of their features


def follows(before: Attention, old: Size, ran: AttentionCall) -> bool:
    """Whether one attention of all the queries means the same as the two calls, if the keys are the same so far.

    Either every query brought a key and no old query sees the new ones (a decoder's own tokens), or it is one more
    query to the same keys, from wherever (a decoder that looks at an encoder).
    """
    queries, keys = ran.size
    now, whole = ran.attention, (old[0] + queries, keys)
    if keys == old[1] + queries:
        return ran.fits(*whole) and holds(before, now, old, whole, ran.queries, ran.keys)
    return (
        (queries, keys) == (1, old[1])
        and now == before
        and now.normalize is softmax
        and now.bias is None
        and now.mask.keys_alone
    )


def same(one: Shaped[Tensor, "..."], other: Shaped[Tensor, "..."]) -> bool:
    """Bit by bit: a NaN is itself, which it does not say of itself."""
    return torch.equal(_bits(one), _bits(other))


def marks(tensor: Float[Tensor, "batch key_heads key d"]) -> Int[Tensor, "batch key_heads key"]:
    """A number for each key by which it is known again when it is gone: of 64 bits, made of all of its bits.

    Every feature's bits count by an odd factor of its own, so that one that changes always shows.
    """
    bits = _bits(tensor)
    factors = _factors(bits.shape[-1], bits.device)
    if bits.shape[-2] <= KEYS:
        return (bits * factors).sum(-1)
    return torch.cat([(part * factors).sum(-1) for part in torch.split(bits, KEYS, dim=-2)], -1)


@cache
def _factors(count: int, device: torch.device) -> Int[Tensor, " count"]:
    odd = torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(0)) * 2 + 1
    return odd.to(device)


def _bits(tensor: Tensor) -> Tensor:
    """Whole numbers of 32 bits, or of 16 where those do not come to an even number: of 64, the factors would leave
    little where only the first few bits differ. The width alone says which, so that a key is the same wherever it lies.
    """
    size = tensor.element_size()
    if tensor.shape[-1] * size % 4:
        return tensor.view(torch.int16)
    steps = (tensor.storage_offset(), *tensor.stride()[:-1])
    fits = size == 4 or (tensor.stride(-1) == 1 and all(step * size % 4 == 0 for step in steps))
    return (tensor if fits else tensor.clone(memory_format=torch.contiguous_format)).view(torch.int32)
