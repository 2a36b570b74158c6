"""The buffers that compiled code writes the steps of a model to: allocated once for each attention,
at addresses that CUDA graphs hold.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...recording import ROOM
from .cache_layers import StaticKeys


class Buffers(NamedTuple):
    """What the compiled code of one attention reads and writes in each step."""

    queries: Tensor
    keys: Tensor | None
    """New keys and values, where a cache that slides does not keep them."""
    values: Tensor | None
    slot: Tensor
    """The row of this step."""
    place: Tensor | None
    """Where a cache that slides has the newest key."""


_buffers: "WeakKeyDictionary[nn.Module, dict[Any, Buffers]]" = WeakKeyDictionary()
"""The buffers of each attention, by the shapes that they fit. They live as long as the model: CUDA
graphs hold their addresses, and would be recorded again for others.
"""
_numbers: "WeakKeyDictionary[nn.Module, dict[Any, Tensor]]" = WeakKeyDictionary()
"""Of each model the slot, under 0, and places, under the sizes of windows; with the device."""


def _fixed(tensor: Tensor) -> Tensor:
    """Tell torch.compile that the tensor stays where it is, so that CUDA graphs do not copy it."""
    torch._dynamo.mark_static_address(tensor, guard=False)
    return tensor


def _number(model: nn.Module, window: int, device: torch.device) -> Tensor:
    known = _numbers.setdefault(model, {})
    if (window, device) not in known:
        known[window, device] = _fixed(torch.zeros(1, dtype=torch.long, device=device))
    return known[window, device]


def buffers_of(model: nn.Module, module: nn.Module, heads: int, cached: StaticKeys) -> Buffers:
    """Return the buffers of an attention for ROOM steps over this cache."""
    keys = cached.keys
    values = cached.values
    batch, key_heads, _, width = keys.shape
    shape = (batch, heads, key_heads, width, values.shape[-1])
    kind = (*shape, keys.dtype, keys.device, cached.window)
    known = _buffers.setdefault(module, {})
    if kind not in known:
        # Buffers of another batch would stay for nothing.
        known.clear()
        slides = bool(cached.window)
        known[kind] = Buffers(
            queries=_fixed(keys.new_zeros(batch, heads, ROOM, width)),
            keys=_fixed(keys.new_zeros(batch, key_heads, ROOM, width)) if slides else None,
            values=_fixed(values.new_zeros(batch, key_heads, ROOM, shape[-1])) if slides else None,
            slot=_number(model, 0, keys.device),
            place=_number(model, cached.window, keys.device) if slides else None,
        )
    return known[kind]
