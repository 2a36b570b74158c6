"""One optimiser step: the gradient of the mean loss over all targets of its batches, clipped, then
AdamW.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ..layers import MultiHeadAttention
from .batch import process_share
from .objectives import Learner, count_targets
from .processes import Processes, shard
from .settings import Training, TrainingError

MAX_COMPILED_SHAPES = 256  # batches of further shapes run uncompiled


class TrainingStep:
    """Run optimiser steps without synchronising with the GPU.

    The summed loss, the number of targets and the gradient norm are accumulated in tensors on the
    device (`total`, `targets`, `norm`); `read_and_reset` waits for them.
    """

    def __init__(self, processes: Processes, learner: Learner, settings: Training) -> None:
        self.processes = processes
        self.settings = settings
        device = processes.device
        sharded = settings.shard and processes.count > 1
        self.learner = shard(learner, device) if sharded else processes.wrap(learner)
        self.parameters = [
            parameter for parameter in learner.parameters() if parameter.requires_grad
        ]
        # Parts of biases whose gradient is rounding noise around zero; FSDP has no whole ones.
        layers = [] if sharded else learner.modules()
        biases = (
            layer._ignored_bias() for layer in layers if isinstance(layer, MultiHeadAttention)
        )
        self.ignored = [bias for bias in biases if bias is not None]
        # A graph of several GPUs would have to hold their communication.
        capture = settings.capture and device.type == "cuda" and processes.count == 1
        self.captured = CapturedStep(lambda batch: self._run([batch])) if capture else None
        self.optimiser = _make_optimiser(self.parameters, settings, capture)
        for group in self.optimiser.param_groups if capture else ():
            # A captured step reads the rate from memory at each replay.
            group["lr"] = torch.tensor(0.0, device=device)
        compiled = settings.compile and device.type == "cuda"
        self.loss: Callable[..., Tensor] = _compile(self.learner) if compiled else self.learner
        self.total = torch.zeros((), device=device)
        self.norm = torch.zeros((), device=device)
        self.targets = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(self, batches: Sequence[Any], lr: float) -> None:
        """Update the weights once, by the mean loss over the targets of all these batches."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        with _matmul_precision(self.settings.precision):
            if self.captured is None:
                self._run(batches)
            else:
                self.captured(batches[0])

    def _run(self, batches: Sequence[Any]) -> None:
        rank = self.processes.rank
        processes = self.processes.count
        targets = torch.stack([count_targets(batch.targets) for batch in batches]).sum()
        # DDP and FSDP average the gradients of processes, they do not sum them.
        divisor = targets / processes

        # Gradients of the mean over the targets of all batches.
        for i, batch in enumerate(batches):
            with self._gradient_sync(i == len(batches) - 1):
                loss = self.loss(process_share(batch, rank, processes), divisor)
                loss.backward()  # type: ignore[no-untyped-call]
            self.total += loss.detach() * divisor
        self.targets += targets
        for bias, part in self.ignored:
            if bias.grad is not None:
                bias.grad[part].zero_()

        if self.settings.clip:
            norm = clip_grad_norm_(self.parameters, self.settings.clip)
            self.norm.copy_(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _gradient_sync(self, enabled: bool) -> AbstractContextManager[None]:
        """Return a context in which `backward` exchanges gradients or not: once a step, with its
        last batch.
        """
        if isinstance(self.learner, FSDPModule):
            self.learner.set_requires_gradient_sync(enabled)
        elif isinstance(self.learner, DistributedDataParallel) and not enabled:
            return self.learner.no_sync()
        return nullcontext()

    def read_and_reset(self) -> tuple[float, int, float | None]:
        """Return the mean loss and the number of targets since the last call, and the last gradient
        norm if clipping.

        Waits for the GPU.
        """
        # Targets are counted before the rows are shared: each process has the number of all.
        total = self.processes.sum(self.total).item()
        targets = int(self.targets)
        norm = self.norm.item() if self.settings.clip else None
        self.set_sums(0.0, 0)
        return total / max(1, targets), targets, norm

    def sums(self) -> tuple[float, int]:
        """Return the summed loss of this process and the number of all processes' targets since the
        last reset.
        """
        return self.total.item(), int(self.targets)

    def set_sums(self, total: float, targets: int) -> None:
        """Set the summed loss of this process and the number of targets, for a reset or a resumed
        run.
        """
        self.total.fill_(total)
        self.targets.fill_(targets)


def _compile(learner: nn.Module) -> Callable[..., Tensor]:
    """Compile the learner for each shape separately, and raise torch's limit, beyond which it
    silently stops.
    """
    from torch._dynamo import config  # late: importing it takes a second

    config.recompile_limit = max(config.recompile_limit, MAX_COMPILED_SHAPES)
    return torch.compile(learner, dynamic=False)


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 in float32 products on a GPU, unless the precision is "fp32"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _make_optimiser(
    parameters: Sequence[nn.Parameter], settings: Training, capture: bool
) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only: vectors are biases and the weights of
    norms.
    """
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=capture,
    )


# Of each shape before its capture: the first calls allocate optimiser states and compile kernels.
EAGER_STEPS = 2


class Graph(NamedTuple):
    """A captured step, and the input tensors that the step reads at each replay."""

    graph: torch.cuda.CUDAGraph
    batch: Any


class CapturedStep:
    """Run `step(batch)` as one CUDA graph for each shape of a batch.

    The step may touch only tensors that outlive it: weights, gradients that it releases itself,
    optimiser states. The first steps of each shape run eagerly and count as ordinary steps, so no
    warm-up has to be undone. They run on the stream of the capture, as autograd requires.
    """

    def __init__(self, step: Callable[[Any], None]) -> None:
        self.step = step
        self.eager_runs: Counter[tuple[torch.Size, ...]] = Counter()
        self.graphs: dict[tuple[torch.Size, ...], Graph] = {}
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any) -> None:
        shape = tuple(tensor.shape for tensor in batch)
        if shape not in self.graphs and self.eager_runs[shape] < EAGER_STEPS:
            self.eager_runs[shape] += 1
            self._run_eagerly(batch)
            return
        if shape not in self.graphs:
            self.graphs[shape] = self._capture(batch)
        # Capturing computes nothing: also a step that was captured just now is replayed.
        graph, inputs = self.graphs[shape]
        torch._foreach_copy_(list(inputs), list(batch))
        graph.replay()

    def _run_eagerly(self, batch: Any) -> None:
        # Each stream waits for the other: the batch is made on one, the step runs on the other.
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.step(batch)
        current.wait_stream(self.stream)

    def _capture(self, batch: Any) -> Graph:
        """Capture a step on copies of the batch's tensors."""
        graph = torch.cuda.CUDAGraph()
        inputs = type(batch)(*(tensor.clone() for tensor in batch))
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.step(inputs)
        except RuntimeError as problem:
            reason = str(problem).strip().split("\n")[0]
            raise TrainingError(
                f"a step cannot be captured: {reason}; capture = false trains without"
            ) from None
        return Graph(graph, inputs)
