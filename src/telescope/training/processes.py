"""The processes that share a run, by accelerate: several under torchrun or accelerate launch,
otherwise this one.
"""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ..layers import DecoderBlock, DefinitionModule, EncoderBlock
from .settings import TrainingError

T = TypeVar("T")


def import_required(module: str) -> Any:
    """Import a module of the train extra; raise a ValueError that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0].replace("_", "-")
        raise ValueError(
            f"training needs {name}, which is not installed: pip install "
            "'telescope-attention[train]'"
        ) from None


def uses_gpu() -> bool:
    """Return whether training runs on GPUs: where torch finds one, unless the variable
    ACCELERATE_USE_CPU is set.
    """
    forbidden = os.environ.get("ACCELERATE_USE_CPU", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
        "y",
        "t",
    )
    return torch.cuda.is_available() and not forbidden


class Processes:
    """The processes of a run, and the place of this one among them.

    device, rank  of this process
    count         number of processes
    is_first      whether this is the process that reads, writes, validates and reports
    """

    def __init__(self) -> None:
        accelerate = import_required("accelerate")
        _check_launch()
        # Without cpu=True, on a machine without a GPU, accelerate takes each process of torchrun
        # for a run of its own. mixed_precision="no": Learner applies bfloat16 itself.
        self.accelerator = accelerate.Accelerator(cpu=not uses_gpu(), mixed_precision="no")
        self.utils = import_required("accelerate.utils")
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.count: int = self.accelerator.num_processes
        self.is_first = self.rank == 0
        kind = self.accelerator.distributed_type
        if kind not in ("NO", "MULTI_GPU", "MULTI_CPU"):
            raise ValueError(
                f"accelerate is set up for {kind}; launch it without, and set shard = true in the "
                "recipe for FSDP"
            )
        launched = _launched_processes()
        if self.count != launched:
            raise ValueError(
                f"{launched} processes were started, but accelerate was set up for {self.count} "
                "before the training; "
                "leave that to the training, or call accelerate.PartialState(cpu=True) where there "
                "is no GPU"
            )

    def wrap(self, learner: nn.Module) -> nn.Module:
        """Return the learner on the device; with several processes in DDP, which averages their
        gradients.
        """
        prepared: nn.Module = self.accelerator.prepare_model(learner)
        return prepared

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value in every process."""
        return self.utils.broadcast_object_list([value])[0]

    def in_first(self, function: Callable[[], T]) -> T:
        """Call the function in the first process, and return its result in every process.

        Where the function fails, every process fails: none waits for a process that has ended.
        """
        result = None
        problem = None
        failure = None
        if self.is_first:
            try:
                result = function()
            except Exception as error:
                failure = error
                problem = str(error) or type(error).__name__
        result, problem = self.broadcast((result, problem))
        if failure is not None:
            raise failure
        if problem is not None:
            raise TrainingError(problem)
        answer: T = result
        return answer

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in every process."""
        values: list[Any] = self.utils.gather_object([value])
        return values

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all processes' tensors in every process."""
        total: Tensor = self.accelerator.reduce(tensor, "sum")
        return total


def _launched_processes() -> int:
    """Return how many processes torchrun or accelerate launch has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def _check_launch() -> None:
    """Raise a ValueError if this machine has more processes of the run than GPUs, unless the run is
    on the CPU.
    """
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if uses_gpu() and started > torch.cuda.device_count():
        raise ValueError(
            f"{started} processes were started on a machine with {torch.cuda.device_count()} GPU; "
            "start one for each "
            "GPU, or set ACCELERATE_USE_CPU=true to train on the CPU"
        )


def shard(learner: nn.Module, device: torch.device) -> nn.Module:
    """Shard the learner's weights among the processes by FSDP, in place, and return the learner.

    Each block is gathered only while it runs; weights outside of blocks are gathered for the whole
    step.
    """
    for module in learner.modules():
        if isinstance(module, nn.RNNBase):
            raise ValueError(
                f"shard=True does not fit a model with a {type(module).__name__}; leave it out"
            )
        if isinstance(module, DefinitionModule) and next(module.parameters(), None) is not None:
            # Blocks share the definition's tensors, and FSDP shards each block by itself.
            raise ValueError(
                "shard=True does not fit a definition of attention with learned tensors; leave it "
                "out"
            )
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in list(learner.modules()):
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    return learner


Tensors = dict[str, Tensor]


def gather_weights(model: nn.Module) -> Tensors:
    """Return the unsharded weights on the CPU. All processes must call this together."""
    return {name: _gather_tensor(tensor) for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the first process's weights into the model of every process. The other processes may
    pass none.
    """
    for name, tensor in model.state_dict(keep_vars=True).items():
        broadcast_into(weights.get(name), tensor)


def gather_optimiser_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensors:
    """Return AdamW's unsharded states on the CPU, by the parameter's name:
    blocks.0.norm.weight/exp_avg.
    """
    states = {name: optimiser.state[parameter] for name, parameter in model.named_parameters()}
    return {
        f"{name}/{key}": _gather_tensor(tensor)
        for name, state in states.items()
        for key, tensor in state.items()
    }


def load_optimiser_state(model: nn.Module, optimiser: Any, states: Mapping[str, Tensor]) -> None:
    """Load the first process's AdamW states into the optimiser of every process. The others may
    pass none.
    """
    for name, parameter in model.named_parameters():
        state = {key: torch.zeros_like(parameter.detach()) for key in ("exp_avg", "exp_avg_sq")}
        state["step"] = torch.zeros((), device=parameter.device)
        for key, tensor in state.items():
            broadcast_into(states.get(f"{name}/{key}"), tensor)
        optimiser.state[parameter] = state


def _gather_tensor(tensor: Tensor) -> Tensor:
    """Return an unsharded copy on the CPU."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to("cpu", copy=True)


@torch.no_grad()
def broadcast_into(tensor: Tensor | None, into: Tensor) -> None:
    """Copy the first process's tensor to `into` of every process, sharded as `into` is. The others
    pass None.
    """
    if isinstance(into, DTensor):
        full = torch.empty(into.shape, dtype=into.dtype, device=into.device)
        into.copy_(
            distribute_tensor(_broadcast_plain(tensor, full), into.device_mesh, into.placements)
        )
    else:
        _broadcast_plain(tensor, into)


def _broadcast_plain(tensor: Tensor | None, into: Tensor) -> Tensor:
    if tensor is not None:
        into.copy_(tensor)
    if is_distributed():
        distributed.broadcast(into, 0)
    return into


def is_distributed() -> bool:
    """Return whether the run has more than one process."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
