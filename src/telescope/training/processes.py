"""The processes that share a run, by accelerate: several under torchrun or accelerate launch,
otherwise this one. And how they stop together: SIGTERM and SIGINT end a run after the current step,
with a checkpoint of that step.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from types import FrameType
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ..files import import_optional
from ..layers import DecoderBlock, DefinitionModule, EncoderBlock
from .settings import TrainingError

T = TypeVar("T")


def uses_gpu() -> bool:
    """Return whether training runs on GPUs: where torch finds one, unless the variable
    ACCELERATE_USE_CPU is set.
    """
    forbidden = os.environ.get("ACCELERATE_USE_CPU", "").lower()
    return torch.cuda.is_available() and forbidden not in ("1", "true", "yes", "on", "y", "t")


class Processes:
    """The processes of a run, and the place of this one among them.

    device, rank  of this process
    count         number of processes
    is_first      whether this is the process that reads, writes, validates and reports
    """

    def __init__(self) -> None:
        accelerate = import_optional("accelerate", "training", "train")
        _check_launch()
        # Without cpu=True, on a machine without a GPU, accelerate takes each process of torchrun
        # for a run of its own. mixed_precision="no": Learner applies bfloat16 itself.
        self.accelerator = accelerate.Accelerator(cpu=not uses_gpu(), mixed_precision="no")
        self.utils: Any = accelerate.utils
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
        # LOCAL_RANK is set by torchrun and by accelerate launch.
        launched = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
        if self.count != launched:
            raise ValueError(
                f"{launched} processes were started, but accelerate was set up for {self.count} "
                "before the training; leave that to the training, or call "
                "accelerate.PartialState(cpu=True) where there is no GPU"
            )

    def wrap(self, learner: nn.Module) -> nn.Module:
        """Return the learner on the device; with several processes in DDP, which averages their
        gradients.
        """
        return cast(nn.Module, self.accelerator.prepare_model(learner))

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
        # The first process raises its own error, the others one with the same sentence.
        if failure is not None:
            raise failure
        if problem is not None:
            raise TrainingError(problem)
        return cast(T, result)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in every process."""
        return cast(list[Any], self.utils.gather_object([value]))

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all processes' tensors in every process."""
        return cast(Tensor, self.accelerator.reduce(tensor, "sum"))


def _check_launch() -> None:
    """Raise a ValueError if this machine has more processes of the run than GPUs, unless the run is
    on the CPU.
    """
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if uses_gpu() and started > torch.cuda.device_count():
        raise ValueError(
            f"{started} processes were started on a machine with {torch.cuda.device_count()} GPU; "
            "start one for each GPU, or set ACCELERATE_USE_CPU=true to train on the CPU"
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
    # Blocks first: what is then left of the learner is sharded as one part.
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in list(learner.modules()):
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    return learner


# ----------------------------------------------------------------------- weights of a sharded model

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
    # AdamW makes its states in its first step; here they are made before, to be filled.
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
    sharded = isinstance(into, DTensor)
    full = torch.empty(into.shape, dtype=into.dtype, device=into.device) if sharded else into
    if tensor is not None:
        full.copy_(tensor)
    if is_distributed():
        distributed.broadcast(full, 0)
    if isinstance(into, DTensor):
        into.copy_(distribute_tensor(full, into.device_mesh, into.placements))


def is_distributed() -> bool:
    """Return whether the run has more than one process."""
    is_running = distributed.is_available() and distributed.is_initialized()
    return is_running and distributed.get_world_size() > 1


# ----------------------------------------------------------------------------------------- stopping

DOUBLED = 1.0  # seconds: torchrun passes Ctrl-C on to processes that the terminal has told already


class StopRequest:
    """Note the signals SIGTERM and SIGINT inside a `with` block, and let all processes agree on
    when to stop.

    A second SIGINT raises KeyboardInterrupt at once. Signals for which the program has a handler of
    its own are left to that handler, and so are all signals outside of the main thread.
    """

    def __init__(self) -> None:
        self.received = 0  # number of the signal; 0 is none
        self._first_time = 0.0
        self._before: dict[int, Any] = {}
        # Flags are exchanged on the CPU, by a group of their own: the steps' group may be one of
        # GPUs, and reading a flag from a GPU would wait for the step.
        self._group = distributed.new_group(backend="gloo") if is_distributed() else None
        # The flag that is being exchanged, and what waits for it.
        self._exchange: tuple[torch.Tensor, Any] | None = None

    def __enter__(self) -> Self:
        defaults: dict[int, Any] = {
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGINT: signal.default_int_handler,
        }
        if threading.current_thread() is threading.main_thread():
            for number, default in defaults.items():
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        is_second = number == signal.SIGINT and self.received == signal.SIGINT
        if is_second and now - self._first_time > DOUBLED:
            raise KeyboardInterrupt
        if not self.received:
            self.received = number
            self._first_time = now

    def agreed(self, *, last: bool = False) -> int:
        """Return the signal for which all processes stop after this step, or 0. Every process asks
        after each step.

        Several processes exchange their flags while the next step runs, so that no step waits: they
        stop one step after the signal. `last` waits for the flags of this step.
        """
        if self._group is None:
            return self.received
        found = self._finish_exchange()
        flag = torch.tensor(self.received)
        largest = distributed.ReduceOp.MAX
        self._exchange = flag, distributed.all_reduce(flag, largest, self._group, async_op=True)
        return max(found, self._finish_exchange()) if last or found else found

    def _finish_exchange(self) -> int:
        """Return the largest flag of all processes in the exchange that was begun last."""
        if self._exchange is None:
            return 0
        flag, work = self._exchange
        work.wait()
        self._exchange = None
        return int(flag)


def stop_error(number: int) -> BaseException:
    """Return what a stopped run raises: KeyboardInterrupt for SIGINT, SystemExit(128 + number) for
    others.
    """
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
