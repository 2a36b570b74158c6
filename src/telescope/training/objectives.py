"""What is made small: the sum of a batch's losses. The mean is over all targets of a step, wherever they are."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..attention import padding
from .agreement import agreeing, twice
from .batch import IGNORE, Pair, Text

# objective(model, batch, label_smoothing=0.0, agreement=0.0): from a batch of the data to the summed loss of its
# targets, IGNORE aside
Objective = Callable[..., Tensor]


def language(model: Any, batch: Text, *, label_smoothing: float = 0.0, agreement: float = 0.0) -> Float[Tensor, ""]:
    """What comes next: for a GPT."""
    if agreement:
        both = twice(batch)
        return agreeing(model(both.ids), both.targets, label_smoothing=label_smoothing, weight=agreement)
    loss: Tensor = model.loss(batch.ids, batch.targets, ignore=IGNORE, label_smoothing=label_smoothing, reduction="sum")
    return loss


def translation(model: Any, batch: Pair, *, label_smoothing: float = 0.0, agreement: float = 0.0) -> Float[Tensor, ""]:
    """What comes next in the target, given the source: for a Transformer or a LuongTranslator."""
    if agreement:
        both = twice(batch)
        logits = model(both.source, both.target, padding(both.lengths))
        return agreeing(logits, both.targets, label_smoothing=label_smoothing, weight=agreement)
    loss: Tensor = model.loss(
        batch.source,
        batch.target,
        batch.targets,
        padding(batch.lengths),
        ignore=IGNORE,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return loss


def count(targets: Int[Tensor, "batch n"]) -> Int[Tensor, ""]:
    """How many targets there are."""
    return (targets != IGNORE).sum()
