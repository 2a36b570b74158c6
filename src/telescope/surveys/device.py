"""Use of a GPU besides kernels: a second CUDA stream, events between streams, and less work where
memory runs out.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..attention import has_data


def side_stream(
    tensor: Tensor, *, urgent: bool = False, copies: bool = False
) -> AbstractContextManager[object]:
    """Return a context that queues work on a second CUDA stream of the tensor's device; elsewhere
    one without effect.

    The second stream waits for what is queued on the current one by now, not for what is queued
    later. `urgent` gives it a higher priority; `copies` to the host have a stream to themselves, so
    that no kernel waits for them.
    """
    if not tensor.is_cuda or not has_data(tensor):
        return nullcontext()
    stream = _side_stream(tensor.device, urgent, copies)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    return torch.cuda.stream(stream)


@cache
def _side_stream(device: torch.device, urgent: bool, copies: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]


def record_use(*tensors: Tensor) -> None:
    """Record that the current CUDA stream uses these tensors.

    When they are freed, their memory is not used again before what is queued on this stream by then
    has run.
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


class StreamEvent(NamedTuple):
    """A CUDA event and the stream that it was recorded on."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    def wait(self, *tensors: Tensor) -> None:
        """Make the current stream wait for the event, and record that it uses these tensors, made
        before the event.
        """
        current = torch.cuda.current_stream(self.stream.device)
        if current != self.stream:
            current.wait_event(self.event)
            record_use(*tensors)


def record_event(device: torch.device) -> StreamEvent | None:
    """Record an event on the current CUDA stream; None on a device without streams."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    return StreamEvent(stream, stream.record_event())


Result = TypeVar("Result")


def run_within_memory(
    run: Callable[[int], Result], most: int, least: int, queries: Tensor, keys: Tensor
) -> Result:
    """Return run(most); each time memory runs out, try half as much, down to `least`.

    Raises torch.OutOfMemoryError, one sentence with the sizes of queries and keys, where `least`
    does not fit.
    """
    while True:
        try:
            return run(most)
        except torch.OutOfMemoryError:
            if most <= least:
                break
        most //= 2  # not within `except`, where the exception still holds on to its tensors
    raise torch.OutOfMemoryError(
        f"survey of {queries.shape[-2]:,} queries and {keys.shape[-2]:,} keys: {queries.device} "
        "has no memory left for "
        "one row at a time; survey fewer heads or sequences at once, or free what else is held "
        "there"
    )
