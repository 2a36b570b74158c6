"""A GPU's second queue: what is put there runs beside what stands in the first."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple

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


class Moment(NamedTuple):
    """A place in a queue: what stands before it has been done when somebody waited for it."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    def wait(self, *tensors: Tensor) -> None:
        """What is queued here from now on comes after it. These were made before it, and are read here."""
        here = torch.cuda.current_stream(self.stream.device)
        if here != self.stream:
            here.wait_event(self.event)
            read_here(*tensors)


def moment(device: torch.device) -> Moment | None:
    """Now, in the queue that is current; None where nothing is queued."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    return Moment(stream, stream.record_event())
