"""The processes that share a run, by accelerate: under torchrun or accelerate launch several, else this one."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ..layers import DecoderBlock, EncoderBlock
from ..layers.attend import Definition


def needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0].replace("_", "-")
        raise ValueError(
            f"training needs {name}, which is not installed: pip install telescope-attention[train]"
        ) from None


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


def shard(learner: nn.Module, device: torch.device) -> nn.Module:
    """In place, block by block: each is put together while it runs, and what belongs to no block for the whole step."""
    for module in learner.modules():
        if isinstance(module, nn.RNNBase):
            raise ValueError(f"shard=True does not fit a model with a {type(module).__name__}; leave it out")
        if isinstance(module, Definition) and next(module.parameters(), None) is not None:
            raise ValueError(  # blocks share one tensor, and a block is what is sharded
                "shard=True does not fit a definition of attention with learned tensors; leave it out"
            )
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in list(learner.modules()):
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    return learner


Tensors = dict[str, Tensor]


def whole(tensor: Tensor) -> Tensor:
    """All processes have to ask for it, and get it."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to("cpu", copy=True)


@torch.no_grad()
def spread(tensor: Tensor | None, into: Tensor) -> None:
    """Into `into` of every process; the first one has the tensor."""
    if isinstance(into, DTensor):
        full = torch.empty(into.shape, dtype=into.dtype, device=into.device)
        into.copy_(distribute_tensor(_sent(tensor, full), into.device_mesh, into.placements))
    else:
        _sent(tensor, into)


def weights(model: nn.Module) -> Tensors:
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def give_weights(model: nn.Module, given: Mapping[str, Tensor]) -> None:
    for name, tensor in model.state_dict(keep_vars=True).items():
        spread(given.get(name), tensor)


def optimiser_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensors:
    """What AdamW keeps of each parameter, by the parameter's name: blocks.0.norm.weight/exp_avg."""
    states = {name: optimiser.state[parameter] for name, parameter in model.named_parameters()}
    return {f"{name}/{what}": whole(tensor) for name, state in states.items() for what, tensor in state.items()}


def give_optimiser_state(model: nn.Module, optimiser: Any, given: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        state = {what: torch.zeros_like(parameter.detach()) for what in ("exp_avg", "exp_avg_sq")}
        state["step"] = torch.zeros((), device=parameter.device)
        for what, tensor in state.items():
            spread(given.get(f"{name}/{what}"), tensor)
        optimiser.state[parameter] = state


def _sent(tensor: Tensor | None, into: Tensor) -> Tensor:
    if tensor is not None:
        into.copy_(tensor)
    if several():
        distributed.broadcast(into, 0)
    return into


def several() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
