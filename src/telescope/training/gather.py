"""Tensors of a model that learns, whole and on the CPU, and back: of one process, of several, of FSDP's shards."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor

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
