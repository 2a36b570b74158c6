"""A step: the gradient of the mean loss over all targets of its batches, clipped, and AdamW."""

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

from .batch import share
from .objectives import Learner, count
from .processes import Processes, shard
from .settings import Training, TrainingError

SHAPES = 256  # of batches; more are not compiled


class TrainingStep:
    """Nothing in it waits for a GPU: what is to be known later is added up there, in `total`, `targets` and `norm`."""

    def __init__(self, processes: Processes, learner: Learner, settings: Training) -> None:
        self.processes, self.settings, device = processes, settings, processes.device
        sharded = settings.shard and processes.count > 1
        self.learner = shard(learner, device) if sharded else processes.together(learner)
        self.parameters = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        capture = settings.capture and device.type == "cuda" and processes.count == 1
        self.captured = CapturedStep(lambda batch: self._run([batch])) if capture else None
        self.optimiser = _adam(self.parameters, settings, capture)
        for group in self.optimiser.param_groups if capture else ():
            group["lr"] = torch.tensor(0.0, device=device)  # a captured step reads it anew every time
        compiled = settings.compile and device.type == "cuda"
        self.loss: Callable[..., Tensor] = _compiled(self.learner) if compiled else self.learner
        self.total, self.norm = (torch.zeros((), device=device) for _ in range(2))
        self.targets = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(self, batches: Sequence[Any], lr: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        with _products(self.settings.precision):
            if self.captured is None:
                self._run(batches)
            else:
                self.captured(batches[0])

    def _run(self, batches: Sequence[Any]) -> None:
        rank, processes = self.processes.rank, self.processes.count
        targets = torch.stack([count(batch.targets) for batch in batches]).sum()
        over = targets / processes  # gradients of processes are averaged, not summed
        for i, batch in enumerate(batches):
            with self._sent(only_if=i == len(batches) - 1):
                loss = self.loss(share(batch, rank, processes), over)
                loss.backward()  # type: ignore[no-untyped-call]
            self.total += loss.detach() * over
        self.targets += targets
        if self.settings.clip:
            norm = clip_grad_norm_(self.parameters, self.settings.clip)
            self.norm.copy_(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _sent(self, only_if: bool) -> AbstractContextManager[None]:
        """Gradients go to the other processes once a step, with its last batch."""
        if isinstance(self.learner, FSDPModule):
            self.learner.set_requires_gradient_sync(only_if)
        elif isinstance(self.learner, DistributedDataParallel) and not only_if:
            return self.learner.no_sync()
        return nullcontext()

    def read(self) -> tuple[float, int, float | None]:
        """The mean loss since the last time, over how many targets, and the last norm."""
        (total, targets), norm = self.added_up(), self.norm.item()
        self.add_up(0.0, 0)
        return total / max(1, targets), targets, norm if self.settings.clip else None

    def added_up(self) -> tuple[float, int]:
        """The losses of all processes and their targets, since they were last read."""
        return self.processes.total(self.total).item(), int(self.targets)

    def add_up(self, total: float, targets: int) -> None:
        """From here on."""
        self.total.fill_(total if self.processes.first else 0.0)
        self.targets.fill_(targets)


def _compiled(learner: nn.Module) -> Callable[..., Tensor]:
    """For every shape anew. Beyond its limit torch would quietly stop compiling."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    return torch.compile(learner, dynamic=False)


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Whether a GPU may round what it multiplies to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _adam(parameters: Sequence[nn.Parameter], settings: Training, capture: bool) -> torch.optim.AdamW:
    matrices, vectors = ([p for p in parameters if (p.ndim > 1) == several] for several in (True, False))
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


PLAIN = 2  # steps of a shape before it is captured: what is made or compiled at the first call is then there


class Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Any  # the tensors that it reads


class CapturedStep:
    """`step(batch)` must touch nothing but tensors that stay: weights, gradients that it lets go, the optimiser's.

    The first steps of a shape run plainly, and are steps like all others; so nothing has to be undone. Their stream is
    the one on which it is captured, as autograd wants it.
    """

    def __init__(self, step: Callable[[Any], None]) -> None:
        self.step = step
        self.seen: Counter[tuple[torch.Size, ...]] = Counter()
        self.graphs: dict[tuple[torch.Size, ...], Graph] = {}
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]

    def __call__(self, batch: Any) -> None:
        shape = tuple(tensor.shape for tensor in batch)
        if shape not in self.graphs and self.seen[shape] < PLAIN:
            self.seen[shape] += 1
            self._plainly(batch)
            return
        if shape not in self.graphs:
            self.graphs[shape] = self._captured(batch)
        graph, kept = self.graphs[shape]
        tensors: list[Tensor] = list(kept)
        torch._foreach_copy_(tensors, list(batch))
        graph.replay()

    def _plainly(self, batch: Any) -> None:
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            self.step(batch)
        here.wait_stream(self.stream)

    def _captured(self, batch: Any) -> Graph:
        """Capturing computes nothing: it is replayed for that."""
        graph = torch.cuda.CUDAGraph()
        kept = type(batch)(*(tensor.clone() for tensor in batch))
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.step(kept)
        except RuntimeError as problem:
            reason = str(problem).strip().split("\n")[0]
            raise TrainingError(f"a step cannot be captured: {reason}; capture = false trains without") from None
        return Graph(graph, kept)
