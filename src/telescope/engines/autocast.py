"""Autocast says in which dtype an attention comes in; inside, each engine knows best."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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


def to_keep(device: torch.device) -> AbstractContextManager[object]:
    """A block in which numbers are made to be kept, however a model is run: without gradients, and nothing is cast."""
    in_the_way = torch.is_grad_enabled() or torch.is_inference_mode_enabled() or enabled(device)
    return _to_keep(device) if in_the_way else nullcontext()


@contextmanager
def _to_keep(device: torch.device) -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), off(device):
        yield
