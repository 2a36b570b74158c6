"""Whether a call of an attention goes on where the one before it ended, as decoding token by token does."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention, softmax
from .ran import Ran
from .survey.extend import Size, holds

KEYS = 2**14  # how many are marked at once


def follows(before: Attention, old: Size, ran: Ran) -> bool:
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
    """Bit by bit: what nobody wrote yet may be NaN."""
    return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def marks(keys: Float[Tensor, "batch key_heads key d_k"]) -> Int[Tensor, "batch key_heads key"]:
    """A number for each key by which it is known again when the key itself is gone: 64 bits, of all its bits."""
    odd = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (keys.shape[-1],), generator=odd).to(keys.device) * 2 + 1
    parts = [(_bits(part).long() * factors).sum(-1) for part in torch.split(keys, KEYS, dim=-2)]
    return torch.cat(parts, -1)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
