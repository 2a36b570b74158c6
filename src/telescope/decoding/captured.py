"""A step as one CUDA graph: a GPU then does not wait for Python to launch its hundreds of kernels one by one."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

STEPS = 16  # capturing takes as long as a few plain steps, so a few more must follow


class Captured:
    """The same function, captured when it is first called, with tensors of the same shapes ever after.

    `state` is what it writes into beside its cache: a first run, which CUDA wants, must leave no trace there. What it
    returns is overwritten by the next call. Where capturing fails it runs as it is; `why` then says the reason, and so
    does the log.
    """

    def __init__(self, function: Callable[..., Tensor], state: Sequence[Tensor]) -> None:
        self.function, self.state = function, state
        self.graph: torch.cuda.CUDAGraph | None = None
        self.why: str | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.graph is None and self.why is None:
            self._capture(inputs)
        if self.graph is None:
            return self.function(*inputs)
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        self.graph.replay()
        return self.output

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        before = [tensor.clone() for tensor in self.state]
        self.inputs = [tensor.clone() for tensor in inputs]
        graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                self.function(*self.inputs)
            here.wait_stream(aside)
            with torch.cuda.graph(graph):
                self.output = self.function(*self.inputs)
            self.graph = graph
        except RuntimeError as problem:
            self.why = str(problem).strip().split("\n")[0]
            logger.info("a decoding step could not be captured and runs plainly: %s", self.why)
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)


def worthwhile(model: nn.Module, device: torch.device, steps: int) -> bool:
    """Whether there is a GPU and enough to do. Hooks, which look at every step, run in Python: so must the step."""
    if device.type != "cuda" or steps < STEPS:
        return False
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
