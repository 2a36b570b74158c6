"""Where a recording keeps its numbers: where the model runs, in this machine's memory, or on its disk."""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar
from weakref import finalize

import torch
from jaxtyping import Shaped
from torch import Tensor

from ..words import hint


class Store(ABC):
    name: ClassVar[str]

    @abstractmethod
    def room(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        """Memory for numbers that are made on that device."""

    @abstractmethod
    def free(self, device: torch.device) -> tuple[int, str]:
        """How many bytes there is room for, and of what, if the model runs on that device."""


class Device(Store):
    name = "device"

    def room(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    def free(self, device: torch.device) -> tuple[int, str]:
        if device.type != "cuda":
            return Ram().free(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused, f"memory of {device}"


class Ram(Store):
    name = "ram"

    def room(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")

    def free(self, device: torch.device) -> tuple[int, str]:
        return _available(), "RAM"


class Disk(Store):
    """Files in a temporary folder, mapped into memory; the folder goes when the recording does."""

    name = "disk"

    def __init__(self) -> None:
        self.folder, self.numbers = mkdtemp(prefix="telescope-"), count()
        finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def room(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        size = torch.Size(shape)
        if not size.numel():
            return torch.empty(size, dtype=dtype)
        file = Path(self.folder) / str(next(self.numbers))
        mapped = torch.from_file(str(file), shared=True, size=size.numel(), dtype=dtype)
        return mapped.view(size)

    def free(self, device: torch.device) -> tuple[int, str]:
        return shutil.disk_usage(self.folder).free, "disk"


STORES: dict[str, type[Store]] = {kind.name: kind for kind in (Device, Ram, Disk)}
on_device = Device()


def store_of(name: str) -> Store:
    if name not in STORES:
        raise ValueError(f'there is no store="{name}"; {hint(str(name), STORES)}')
    return STORES[name]()


def _available() -> int:
    """What is free, and what the system would give back if it were asked."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # no Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class StoredTensor(ABC):
    """Numbers that are kept, in memory or in a file."""

    @property
    @abstractmethod
    def tensor(self) -> Shaped[Tensor, "..."]: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Known without reading a file."""
        return tuple(self.tensor.shape)

    @property
    @abstractmethod
    def nbytes(self) -> int: ...


class GrowingTensor(StoredTensor):
    """`first`, to which more is put along one axis. Its memory doubles, so that a token costs a token.

    It is copied, since it may be a view of memory that is written again; unless it was made to be kept, and here.
    """

    def __init__(
        self, first: Shaped[Tensor, "..."], axis: int, store: Store = on_device, *, made_for_it: bool = False
    ) -> None:
        self.axis, self.size, self.store = axis, first.shape[axis], store
        self.dtype, self.device = first.dtype, first.device
        self.copied: torch.cuda.Event | None = None
        first = first.detach() if first.requires_grad else first
        if made_for_it and isinstance(store, Device):
            self.memory = first
        else:
            self.memory = store.room(self.dtype, self.device, first.shape)
            self._copy(self.memory, first)

    @property
    def tensor(self) -> Shaped[Tensor, "..."]:
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None
        return self.memory.narrow(self.axis, 0, self.size)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def append(self, more: Shaped[Tensor, "..."]) -> None:
        size = self.size + more.shape[self.axis]
        if size > self.memory.shape[self.axis]:
            shape = list(self.memory.shape)
            shape[self.axis] = 2 * size
            larger = self.store.room(self.dtype, self.device, shape)
            larger.narrow(self.axis, 0, self.size).copy_(self.tensor)
            self.memory = larger
        self._copy(self.memory.narrow(self.axis, self.size, size - self.size), more)
        self.size = size

    def _copy(self, place: Tensor, what: Tensor) -> None:
        """From a GPU to memory that it can write by itself, nobody waits; whoever reads does."""
        place.copy_(what, non_blocking=True)
        if what.is_cuda and not place.is_cuda:
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record()
