"""A GPU's second queue: what is put there runs beside what stands in the first."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..attention.values import has_numbers


def beside(tensor: Tensor, *, urgent: bool = False) -> AbstractContextManager[object]:
    """In which a GPU works beside what is queued between this call and entering it, and after leaving it."""
    if not tensor.is_cuda or not has_numbers(tensor):
        return nullcontext()
    stream = _second(tensor.device, urgent)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    return torch.cuda.stream(stream)


@cache
def _second(device: torch.device, urgent: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]


def read_here(*tensors: Tensor) -> None:
    """Where they were made, their memory is not used again before what is queued here by the time they are gone."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


class StreamEvent(NamedTuple):
    """A place in a queue: what stands before it has been done when somebody waited for it."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    def wait(self, *tensors: Tensor) -> None:
        """What is queued here from now on comes after it. These were made before it, and are read here."""
        here = torch.cuda.current_stream(self.stream.device)
        if here != self.stream:
            here.wait_event(self.event)
            read_here(*tensors)


def moment(device: torch.device) -> StreamEvent | None:
    """Now, in the queue that is current; None where nothing is queued."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    return StreamEvent(stream, stream.record_event())


Result = TypeVar("Result")


def as_it_fits(run: Callable[[int], Result], most: int, least: int, queries: Tensor, keys: Tensor) -> Result:
    """run(most), or with half as much, and half of that, down to `least`; then one clear error."""
    while True:
        try:
            return run(most)
        except torch.OutOfMemoryError:
            if most <= least:
                break
        most //= 2  # not within `except`, where the problem still holds on to its tensors
    raise torch.OutOfMemoryError(
        f"survey of {queries.shape[-2]:,} queries and {keys.shape[-2]:,} keys: {queries.device} has no memory left for "
        "one row at a time; survey fewer heads or sequences at once, or free what else is held there"
    )
