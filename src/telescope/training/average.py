"""The mean of a model's weights at its last few stops: less noise than any of them has."""

from collections import deque
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

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
