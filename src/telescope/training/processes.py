"""The processes that share a run, by accelerate: under torchrun or accelerate launch several, else this one."""

from typing import Any

import torch
from torch import Tensor, nn

from .extra import needed


class Processes:
    """`device` is this one's, `rank` its number; the `first` one reads, writes, validates and reports."""

    def __init__(self) -> None:
        self.accelerator = needed("accelerate").Accelerator(mixed_precision="no")  # Learner says where bfloat16 is used
        self.utils = needed("accelerate.utils")
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.count: int = self.accelerator.num_processes
        self.first = self.rank == 0
        kind = self.accelerator.distributed_type
        if kind not in ("NO", "MULTI_GPU", "MULTI_CPU"):
            raise ValueError(f"accelerate is set up for {kind}; launch it plainly, and say shard = true for FSDP")

    def together(self, learner: nn.Module) -> nn.Module:
        """On the device; of several processes the gradients become one, their mean: DDP."""
        prepared: nn.Module = self.accelerator.prepare_model(learner)
        return prepared

    def from_first(self, value: Any) -> Any:
        """What the first process has."""
        return self.utils.broadcast_object_list([value])[0]

    def from_all(self, value: Any) -> list[Any]:
        """What each has."""
        several: list[Any] = self.utils.gather_object([value])
        return several

    def total(self, tensor: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(tensor, "sum")
        return summed
