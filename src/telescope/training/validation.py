"""Validation: the mean loss of data, and which of two figures is the better one."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..models import Model
from .batch import Data
from .objectives import Objective, count
from .settings import Training

Validate = Callable[[Model], Mapping[str, float]]


@torch.no_grad()
def mean_loss(model: Model, data: Data, objective: Objective, settings: Training) -> float:
    """Of every target once, without label smoothing. The model is as it was when it is left: training or not."""
    device, training = next(model.parameters()).device, model.training
    data, model = data.to(device), model.eval()
    losses, targets = [], []
    for spec in data.batches(settings, None):
        batch = data.take(spec)
        losses.append(objective(model, batch))
        targets.append(count(batch.targets))
    model.train(training)
    return float(torch.stack(losses).cpu().double().sum() / torch.stack(targets).sum().cpu())


@dataclass(frozen=True)
class Better:
    """What makes one validation better than another: Better.of("highest bleu")."""

    metric: str
    lower: bool

    @classmethod
    def of(cls, words: str) -> Self:
        match words.split():
            case [("lowest" | "highest") as which, metric]:
                return cls(metric, which == "lowest")
        raise ValueError(f'better="{words}" does not say which is better; "lowest loss" or "highest bleu" does')

    def figure(self, metrics: Mapping[str, float]) -> float:
        if self.metric not in metrics:
            raise ValueError(f'validation says {", ".join(metrics) or "nothing"}, and not "{self.metric}"')
        return metrics[self.metric]

    def __call__(self, new: float, old: float | None) -> bool:
        return old is None or (new < old if self.lower else new > old)


Weights = Mapping[str, Tensor]


class Average:
    """Keeps the last `count` weights it is given."""

    def __init__(self, count: int) -> None:
        self.last: deque[Weights] = deque(maxlen=count)

    def mean(self) -> dict[str, Tensor]:
        """In float64, so that equal weights have themselves as their mean."""
        first = self.last[0]
        return {name: _mean([weights[name] for weights in self.last]) for name in first}

    def tensors(self) -> dict[str, Tensor]:
        """All of them, under names of their own."""
        return {f"{i}/{name}": tensor for i, weights in enumerate(self.last) for name, tensor in weights.items()}

    def restore(self, tensors: Weights) -> None:
        kept: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            i, _, name = key.partition("/")
            kept.setdefault(int(i), {})[name] = tensor
        self.last.extend(kept[i] for i in sorted(kept))


def _mean(tensors: Iterable[Tensor]) -> Tensor:
    several = list(tensors)
    if not several[0].is_floating_point():
        return several[-1]
    total = torch.zeros_like(several[0], dtype=torch.float64)
    for tensor in several:
        total += tensor
    return (total / len(several)).to(several[0].dtype)
