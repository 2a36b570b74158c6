"""The queries and keys of several calls, stacked along the batch axis for one survey."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..surveys import StreamEvent

MAX_CALLS = {"cpu": 8, "cuda": 32}  # surveyed in one launch
# Bytes of one staging buffer: a larger call takes longer than its launch.
STAGING_BYTES = {"cpu": 2**24, "cuda": 2**28}


class SurveyInputs(NamedTuple):
    """The tensors that a survey reads."""

    queries: Tensor
    keys: Tensor

    def apply(self, change: Callable[[Tensor], Tensor]) -> "SurveyInputs":
        """Return the inputs with `change` applied to each tensor."""
        return SurveyInputs(change(self.queries), change(self.keys))

    @property
    def layout(self) -> tuple[Any, ...]:
        """Shape, dtype and device of each tensor."""
        return tuple((part.shape, part.dtype, part.device) for part in self)


class StagingBuffer:
    """Memory in which the queries and keys of several calls lie one after the other, reused for
    each launch.
    """

    def __init__(self) -> None:
        self.allocated: Any = None  # (capacity, layout) of `inputs`
        self.last_read: StreamEvent | None = None

    def allocate(self, capacity: int, like: SurveyInputs) -> None:
        """Make room for so many calls with inputs like these, once earlier contents have been
        read.
        """
        # A survey on the second stream may still read this memory.
        if self.last_read is not None:
            self.last_read.wait()
        # Calls of one layout reuse the memory.
        if self.allocated != (capacity, like.layout):
            self.allocated = (capacity, like.layout)
            self.inputs = like.apply(lambda part: _empty(capacity, part))
            self.each_slot: list[SurveyInputs] = []

    def slots(self, first: int, stop: int) -> SurveyInputs:
        """Return views of the inputs of the calls from `first` to `stop`."""
        if stop - first == self.allocated[0]:
            return self.inputs
        batch = len(self.inputs.queries) // self.allocated[0]
        return self.inputs.apply(lambda part: part[first * batch : stop * batch])

    def put(self, slot: int, inputs: SurveyInputs) -> None:
        """Copy the inputs of a call into a slot."""
        # Views that are made once, and not for each launch.
        if not self.each_slot:
            self.each_slot = [self.slots(i, i + 1) for i in range(self.allocated[0])]
        for memory, part in zip(self.each_slot[slot], inputs, strict=True):
            memory.copy_(part)

    def put_all(self, every: Sequence[SurveyInputs]) -> SurveyInputs:
        """Copy the inputs of calls into the first slots, all queries in one launch and all keys;
        return views of these slots.
        """
        found = self.slots(0, len(every))
        for memory, *parts in zip(found, *every, strict=True):
            # In the order in which the memory has heads and tokens.
            if memory.is_contiguous():
                torch.cat(parts, out=memory)
            else:
                torch.cat([part.transpose(1, 2) for part in parts], out=memory.transpose(1, 2))
        return found


def most_at_once(device: torch.device, size: int) -> int:
    """Return how many calls of this many bytes are surveyed in one launch; 0 if they are too large
    to be copied.
    """
    return min(MAX_CALLS.get(device.type, 0), STAGING_BYTES.get(device.type, 0) // max(1, size))


def _empty(capacity: int, like: Tensor) -> Tensor:
    """Allocate memory for so many tensors, in the memory order of `like`, heads or tokens first:
    copies are faster.
    """
    batch, heads, tokens, width = like.shape
    # Heads have the smaller stride: tokens come first in memory.
    if like.stride(1) < like.stride(2):
        return like.new_empty(capacity * batch, tokens, heads, width).transpose(1, 2)
    return like.new_empty(capacity * batch, heads, tokens, width)
