"""A tensor that grows token by token, wherever it is kept."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Shaped
from torch import Tensor

from .stores import Device, Store, on_device


class Part(ABC):
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


class Growing(Part):
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
