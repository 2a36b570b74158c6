"""Autocast says in which dtype an attention comes in; inside, each engine knows best."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def enabled(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)  # which meta does not know


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What torch's own fused attention takes under autocast: its dtype, except for float64."""
    device = tensors[0].device
    if not enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def off(device: torch.device) -> AbstractContextManager[object]:
    """A block in which nothing is cast behind the back."""
    return torch.autocast(device.type, enabled=False) if enabled(device) else nullcontext()
