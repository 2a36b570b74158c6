"""A step: the gradient of the mean loss over all targets of its batches, clipped, and AdamW."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .batch import share
from .learner import Learner
from .objectives import count
from .settings import Training


class Step:
    """Nothing in it waits for a GPU: what is to be known later is added up there, in `total`, `targets` and `norm`."""

    def __init__(self, accelerator: Any, learner: Learner, settings: Training) -> None:
        self.accelerator, self.settings = accelerator, settings
        self.capture = settings.capture and accelerator.device.type == "cuda" and accelerator.num_processes == 1
        self.learner: nn.Module
        self.learner, self.optimiser = accelerator.prepare(learner, _adam(learner, settings))
        for group in self.optimiser.param_groups if self.capture else ():
            group["lr"] = torch.tensor(0.0, device=accelerator.device)  # a captured step reads it anew every time
        compiled = settings.compile and accelerator.device.type == "cuda"
        self.loss = torch.compile(self.learner) if compiled else self.learner
        self.total, self.norm = (torch.zeros((), device=accelerator.device) for _ in range(2))
        self.targets = torch.zeros((), dtype=torch.int64, device=accelerator.device)

    def __call__(self, batches: Sequence[Any], lr: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self.run(batches)

    def run(self, batches: Sequence[Any]) -> None:
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        targets = torch.stack([count(batch.targets) for batch in batches]).sum()
        over = targets / processes  # gradients of processes are averaged, not summed
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            with nullcontext() if last or processes == 1 else self.accelerator.no_sync(self.learner):
                loss = self.loss(share(batch, rank, processes), over)
                loss.backward()
            self.total += loss.detach() * over
        self.targets += targets
        if self.settings.clip:
            norm = self.accelerator.clip_grad_norm_(self.learner.parameters(), self.settings.clip)
            self.norm.copy_(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def running(self) -> dict[str, Tensor]:
        """What has been added up since it was last read."""
        return {"total": self.total, "targets": self.targets, "norm": self.norm}

    def read(self) -> tuple[float, int, float | None]:
        """The mean loss since the last time, over how many targets, and the last norm."""
        total = self.accelerator.reduce(self.total, "sum")
        loss, targets, norm = torch.stack([total.double(), self.targets.double(), self.norm.double()]).tolist()
        self.total.zero_()
        self.targets.zero_()
        return loss / max(1.0, targets), int(targets), norm if self.settings.clip else None


def _adam(learner: nn.Module, settings: Training) -> torch.optim.AdamW:
    matrices = [p for p in learner.parameters() if p.requires_grad and p.ndim > 1]
    vectors = [p for p in learner.parameters() if p.requires_grad and p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=settings.capture and torch.cuda.is_available(),
    )
