"""Copy tensors between CPU and GPU with few waits: a batch is read while the GPU still measures the
one before.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device. From the CPU to a GPU it goes by pinned memory, and the host
    does not wait.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one axis and dtype on the CPU; each GPU is waited for once, not for every
    tensor.
    """
    found: dict[int, Tensor] = {}
    for device in {tensor.device for tensor in tensors}:
        which = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        sizes = [len(tensors[i]) for i in which]
        together = torch.cat([tensors[i] for i in which]).cpu()
        found |= dict(zip(which, torch.split(together, sizes), strict=True))
    return [found[i] for i in range(len(tensors))]


def whole_numbers(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return a tensor of these numbers, kept for the next call: it must not be written to."""
    return _whole_numbers(tuple(numbers), device)


@lru_cache(maxsize=64)
def _whole_numbers(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
