"""Store the numbers of a recording on the model's device, in RAM or on disk, in tensors that grow
along one axis.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar
from weakref import finalize

import torch
from jaxtyping import Shaped
from torch import Tensor

from ..files import WriteError
from ..surveys import record_use, side_stream
from ..words import hint

LARGE = 2**20  # bytes of a copy from a GPU to RAM that is worth a stream of its own
SMALL = 2**26  # bytes: to ask how much memory is free takes longer than to fill as much
SPARE = 16  # tokens for which a tensor that grows makes room ahead, at least


class Store(ABC):
    """A kind of memory that a recording may use: `ts.watch(store=...)`."""

    name: ClassVar[str]

    @abstractmethod
    def allocate(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        """Return uninitialised memory for numbers that are computed on `device`."""

    @abstractmethod
    def free_bytes(self, device: torch.device) -> tuple[int, str]:
        """Return how many bytes are free for a model on `device`, and the name of that memory."""

    def has_room(self, needed: int, device: torch.device) -> bool:
        """Return whether so many bytes are free; of a few, that is taken for granted."""
        return needed <= SMALL or needed <= self.free_bytes(device)[0]


class Device(Store):
    """The memory of the device on which the model runs."""

    name = "device"

    def allocate(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    def free_bytes(self, device: torch.device) -> tuple[int, str]:
        if device.type != "cuda":
            return Ram().free_bytes(device)
        # What PyTorch has reserved and does not use is free, too.
        # Both numbers at once: torch takes a tenth of a millisecond to sort all that it counts.
        bytes_of = torch.cuda.memory_stats_as_nested_dict(device)
        reserved = bytes_of["reserved_bytes"]["all"]["current"]
        unused = reserved - bytes_of["allocated_bytes"]["all"]["current"]
        return torch.cuda.mem_get_info(device)[0] + unused, f"memory of {device}"


class Ram(Store):
    """The host's memory, pinned if the model runs on a GPU."""

    name = "ram"

    def allocate(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        # Only to pinned memory can a GPU copy while the host goes on.
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")

    def free_bytes(self, device: torch.device) -> tuple[int, str]:
        return _available(), "RAM"


class Disk(Store):
    """Files in a temporary folder, mapped into memory. The folder is deleted with this object."""

    name = "disk"

    def __init__(self) -> None:
        self.folder = mkdtemp(prefix="telescope-")
        self.numbers = count()
        # Delete the files with this object, or when Python ends.
        finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def allocate(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> Tensor:
        size = torch.Size(shape)
        # An empty file cannot be mapped.
        if not size.numel():
            return torch.empty(size, dtype=dtype)
        file = Path(self.folder) / str(next(self.numbers))
        try:
            # Set the size of the file before it is mapped.
            with file.open("wb") as opened:
                opened.truncate(size.numel() * dtype.itemsize)
        except OSError as problem:
            raise WriteError(self.folder, problem) from None
        mapped = torch.from_file(str(file), shared=True, size=size.numel(), dtype=dtype)
        return mapped.view(size)

    def free_bytes(self, device: torch.device) -> tuple[int, str]:
        return shutil.disk_usage(self.folder).free, "disk"


STORES: dict[str, type[Store]] = {kind.name: kind for kind in (Device, Ram, Disk)}
on_device = Device()


def store_named(name: str) -> Store:
    """Return a new store of this name; raise a ValueError that lists the names if none has it."""
    if name not in STORES:
        raise ValueError(f'there is no store="{name}"; {hint(str(name), STORES)}')
    return STORES[name]()


def _available() -> int:
    """Return the bytes of RAM that are free or that the system would reclaim."""
    try:
        # MemAvailable is in units of 1024 bytes.
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        # Free memory is not known here: take all RAM.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class StoredTensor(ABC):
    """A tensor that a recording keeps, in memory or in a file."""

    @property
    @abstractmethod
    def tensor(self) -> Shaped[Tensor, "..."]:
        """The numbers, read from the file if they lie in one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, without reading a file."""
        return tuple(self.tensor.shape)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The size of the memory or of the file's part, in bytes."""


class GrowingTensor(StoredTensor):
    """A tensor that grows along one axis. Full memory grows by a quarter, so that appending a token
    costs O(1).

    `first` is copied, since it may be a view of memory that the model writes to again. With `owned`
    the caller hands over the memory of `first`, which a `Device` store keeps without a copy.
    """

    def __init__(
        self,
        first: Shaped[Tensor, "..."],
        axis: int,
        store: Store = on_device,
        *,
        owned: bool = False,
    ) -> None:
        self.axis = axis
        self.size = first.shape[axis]
        self.store = store
        self.dtype = first.dtype
        self.device = first.device
        self.copied: torch.cuda.Event | None = None
        # A recording is no part of the graph of autograd.
        first = first.detach() if first.requires_grad else first

        # Take over the caller's memory, or copy into memory of the store.
        if owned and isinstance(store, Device):
            self.memory = first
        else:
            self.memory = store.allocate(self.dtype, self.device, first.shape)
            self._copy(self.memory, first)

    @property
    def tensor(self) -> Shaped[Tensor, "..."]:
        """A view of the numbers so far; waits for a copy from a GPU that is under way."""
        if self.copied is not None:
            self.copied.synchronize()
            self.copied = None
        # Without spare room no view is needed: a recording reads hundreds of these.
        if self.memory.shape[self.axis] == self.size:
            return self.memory
        return self.memory.narrow(self.axis, 0, self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = tuple(self.memory.shape)
        if shape[self.axis] == self.size:
            return shape
        return (*shape[: self.axis], self.size, *shape[self.axis + 1 :])

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def append(self, more: Shaped[Tensor, "..."]) -> None:
        """Copy `more` behind the numbers so far."""
        size = self.size + more.shape[self.axis]
        # Move to larger memory, with room for tokens to come.
        if size > self.memory.shape[self.axis]:
            larger = self.store.allocate(self.dtype, self.device, self.shape_for(size))
            larger.narrow(self.axis, 0, self.size).copy_(self.tensor)
            self.memory = larger
        self._copy(self.memory.narrow(self.axis, self.size, size - self.size), more)
        self.size = size

    def shape_for(self, size: int) -> list[int]:
        """Return the shape of memory for this size, with room for tokens to come."""
        shape = list(self.memory.shape)
        shape[self.axis] = size + max(size // 4, SPARE)
        return shape

    def _copy(self, target: Tensor, source: Tensor) -> None:
        """Copy without blocking: from a GPU into pinned memory, `tensor` waits for the copy when it
        is read.

        A large copy runs while the model goes on, from a second copy that the model does not write
        to.
        """
        # Without a copy from a GPU to the host there is nothing to wait for.
        if not source.is_cuda or target.is_cuda:
            target.copy_(source, non_blocking=True)
            return

        # A second stream pays off for large copies, and only to pinned memory.
        large = source.nbytes >= LARGE and target.is_pinned()
        source = source.clone() if large else source
        with side_stream(source, copies=True) if large else nullcontext():
            # The next event is to stand for both copies, which may be on two streams.
            if self.copied is not None:
                torch.cuda.current_stream(source.device).wait_event(self.copied)
            target.copy_(source, non_blocking=True)
            # The source may be freed now: its memory is not reused before the copy has run.
            record_use(source)
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record()


class StoredParts(dict[str, StoredTensor]):
    """The tensors of one recorded call, by name, all in one store."""

    def __init__(self, store: Store, parts: Mapping[str, StoredTensor] | None = None) -> None:
        super().__init__(parts or {})
        self.store = store

    def grow(
        self, name: str, more: Shaped[Tensor, "..."], axis: int = 2, *, owned: bool = False
    ) -> None:
        """Append `more` to the tensor of this name, or begin the tensor with `more`; `owned` as in
        GrowingTensor.
        """
        part = self.get(name)
        if part is None:
            self[name] = GrowingTensor(more, axis, self.store, owned=owned)
        else:
            assert isinstance(part, GrowingTensor)
            part.append(more)


def as_one(tensors: Sequence[Shaped[Tensor, "..."]]) -> Shaped[Tensor, "count ..."] | None:
    """Return one view of tensors that are alike and lie one after the other in one piece of memory,
    as the parts of a larger tensor do; None for others.
    """
    first = tensors[0]
    last = tensors[-1]
    layout = (first.shape, first.stride(), first.dtype, first.device)
    if any((one.shape, one.stride(), one.dtype, one.device) != layout for one in tensors):
        return None
    # What lies between two parts of one piece of memory is a part of it, too.
    if first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():
        return None
    begin = first.data_ptr()
    step = 0 if len(tensors) == 1 else tensors[1].data_ptr() - begin
    places = range(begin, begin + len(tensors) * step, step) if step > 0 else [begin]
    if [one.data_ptr() for one in tensors] != [*places]:
        return None
    steps = (step // first.element_size(), *first.stride())
    return first.as_strided((len(tensors), *first.shape), steps)


def append_each(stored: Sequence[GrowingTensor], more: Shaped[Tensor, "..."]) -> None:
    """Append to each tensor its part of `more`, which has these one after the other along the first
    axis: of tensors that are alike, in as few operations as to one of them.
    """
    count = len(stored)
    first = stored[0]
    kind = (first.memory.shape, first.size, first.axis, first.dtype, first.device)
    are_alike = isinstance(first.store, Device) and all(
        one.store is first.store
        and (one.memory.shape, one.size, one.axis, one.dtype, one.device) == kind
        for one in stored
    )
    if count == 1 or not are_alike or more.device != first.device:
        for one, own in zip(stored, more.chunk(count), strict=True):
            one.append(own)
        return

    # Move all of them to one piece of memory, if there is no room behind each.
    axis = first.axis + 1
    own_size = more.shape[first.axis]
    size = first.size + own_size
    memory = as_one([one.memory for one in stored])
    if memory is None or size > memory.shape[axis]:
        shape = (count, *first.shape_for(size))
        memory = first.store.allocate(first.dtype, first.device, shape)
        parts = [one.tensor for one in stored]
        known = as_one(parts)
        memory.narrow(axis, 0, first.size).copy_(torch.stack(parts) if known is None else known)
        for one, own in zip(stored, memory.unbind(), strict=True):
            one.memory = own
    memory.narrow(axis, first.size, own_size).copy_(
        more.view(count, len(more) // count, *more.shape[1:])
    )
    for one in stored:
        one.size = size
