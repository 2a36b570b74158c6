"""What is made small: the sum of a batch's losses. The mean is over all targets of a step, wherever they are."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..attention import padding
from ..models import Model
from .batch import IGNORE, Batch, PairBatch, TextBatch
from .settings import Training

# objective(model, batch, label_smoothing=0.0, agreement=0.0): from a batch of the data to the summed loss of its
# targets, IGNORE aside
Objective = Callable[..., Tensor]


def language(
    model: Any, batch: TextBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
    """What comes next: for a GPT."""
    if agreement:
        both = twice(batch)
        return agreeing(model(both.ids), both.targets, label_smoothing=label_smoothing, weight=agreement)
    loss: Tensor = model.loss(batch.ids, batch.targets, ignore=IGNORE, label_smoothing=label_smoothing, reduction="sum")
    return loss


def translation(
    model: Any, batch: PairBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
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


def twice(batch: Batch) -> Batch:
    """Each row, and then each row again."""
    both: Batch = type(batch)(*(torch.cat([tensor, tensor]) for tensor in batch))
    return both


def agreeing(
    logits: Float[Tensor, "twice n vocabulary"],
    targets: Int[Tensor, "twice n"],
    *,
    label_smoothing: float,
    weight: float,
) -> Float[Tensor, ""]:
    """½ (L₁ + L₂ + weight · D), summed over the targets of a batch that is there twice.

    D = ½ KL(p₁‖p₂) + ½ KL(p₂‖p₁) = ½ Σ (p₁ - p₂)(z₁ - z₂): what turns logits z into ln p cancels.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    losses = cross_entropy(
        z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, label_smoothing=label_smoothing, reduction="sum"
    )
    (z_1, z_2), (p_1, p_2) = z.chunk(2), z.softmax(-1).chunk(2)
    apart = 0.5 * ((p_1 - p_2) * (z_1 - z_2)).sum(-1)
    return 0.5 * (losses + weight * apart.masked_fill(targets.chunk(2)[0] == IGNORE, 0.0).sum())


class Learner(nn.Module):
    def __init__(self, model: Model, objective: Objective, settings: Training) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.how = {"label_smoothing": settings.label_smoothing, "agreement": settings.agreement}
        self.bf16 = settings.precision == "bf16"

    def forward(self, batch: Any, over: Int[Tensor, ""] | Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The sum of the batch's losses, divided by the targets of the whole step: its part of the mean."""
        device = batch.targets.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.bf16 and device != "cpu"):
            total = self.objective(self.model, batch, **self.how)
        return total.float() / over if total.dtype != torch.float64 else total / over
