"""Validation: the mean loss over data, the criterion for the best weights, and averages of
weights.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..models import Model
from .batch import Data
from .objectives import Objective, count_targets
from .settings import Training

Validate = Callable[[Model], Mapping[str, float]]


@torch.no_grad()
def mean_loss(model: Model, data: Data, objective: Objective, settings: Training) -> float:
    """Return the mean loss over every target of the data once, in nats, without label smoothing.

    model      evaluated in `eval` mode; its training mode is restored
    data       moved to the model's device
    objective  `language` or `translation`, as in training
    settings   only the sizes of batches are used

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> from telescope.training import Training, Windows, language, mean_loss
        >>> _ = torch.manual_seed(0)
        >>> model = GPT(GPTConfig(vocabulary=4, max_positions=8, d_model=8, blocks=1, heads=2))
        >>> 1.0 < mean_loss(model, Windows([0, 1, 2, 3] * 8, 8), language, Training(steps=1, rows=2)) < 2.0
        True
    """
    device = next(model.parameters()).device
    training = model.training
    data = data.to(device)
    model = model.eval()
    losses = []
    targets = []
    for spec in data.batches(settings, None):
        batch = data.take(spec)
        losses.append(objective(model, batch))
        targets.append(count_targets(batch.targets))
    model.train(training)
    return float(torch.stack(losses).cpu().double().sum() / torch.stack(targets).sum().cpu())


@dataclass(frozen=True)
class Criterion:
    """The metric that decides which validation is the best, and whether lower is better."""

    metric: str
    lower: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the criterion of a text such as "lowest loss" or "highest bleu"."""
        match text.split():
            case [("lowest" | "highest") as direction, metric]:
                return cls(metric, direction == "lowest")
        raise ValueError(
            f'better="{text}" names no direction and metric; "lowest loss" or "highest bleu" does'
        )

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return this criterion's metric."""
        if self.metric not in metrics:
            raise ValueError(
                f'validation returns {", ".join(metrics) or "nothing"}, and not "{self.metric}"'
            )
        return metrics[self.metric]

    def is_better(self, new: float, old: float | None) -> bool:
        """Return whether the new value is better than the old one; any value is better than
        None.
        """
        return old is None or (new < old if self.lower else new > old)


Weights = Mapping[str, Tensor]


class WeightAverage:
    """Keep the last `count` snapshots of weights, in `last`, and average them."""

    def __init__(self, count: int) -> None:
        self.last: deque[Weights] = deque(maxlen=count)

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of the snapshots, computed in float64: the mean of equal weights is then
        exactly equal.
        """
        first = self.last[0]
        return {name: _mean([weights[name] for weights in self.last]) for name in first}

    def tensors(self) -> dict[str, Tensor]:
        """Return all snapshots' tensors in one dict, with names like 0/blocks.0.norm.weight."""
        return {
            f"{i}/{name}": tensor
            for i, weights in enumerate(self.last)
            for name, tensor in weights.items()
        }

    def restore(self, tensors: Weights) -> None:
        """Append the snapshots that `tensors` returned."""
        snapshots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            i, _, name = key.partition("/")
            snapshots.setdefault(int(i), {})[name] = tensor
        self.last.extend(snapshots[i] for i in sorted(snapshots))


def _mean(tensors: Iterable[Tensor]) -> Tensor:
    """Return the mean of floating-point tensors, and the last of others, such as counters."""
    several = list(tensors)
    if not several[0].is_floating_point():
        return several[-1]
    total = torch.zeros_like(several[0], dtype=torch.float64)
    for tensor in several:
        total += tensor
    return (total / len(several)).to(several[0].dtype)
