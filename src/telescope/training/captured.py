"""A whole step as one CUDA graph for each shape of a batch: a small model's GPU else waits for Python's launches."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import TrainingError

PLAIN = 2  # steps of a shape before it is captured: what is made or compiled at the first call is then there


class Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Any  # the tensors that it reads


class Captured:
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
