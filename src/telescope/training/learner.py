"""A model and its objective as one module, whose forward is the loss: what DDP and FSDP wrap."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..models import Model
from .objectives import Objective
from .settings import Training


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
