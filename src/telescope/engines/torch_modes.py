"""Autocast says in which dtype an attention comes in; inside, each engine knows best."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad


def autocast_enabled(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)  # which meta does not know


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What torch's own fused attention takes under autocast: its dtype, except for float64."""
    device = tensors[0].device
    if not autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which nothing is cast behind the back."""
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()


def recording_mode(device: torch.device) -> AbstractContextManager[object]:
    """A block in which numbers are made to be kept, however a model is run: without gradients, and nothing is cast."""
    in_the_way = torch.is_grad_enabled() or torch.is_inference_mode_enabled() or autocast_enabled(device)
    return _to_keep(device) if in_the_way else nullcontext()


@contextmanager
def _to_keep(device: torch.device) -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), without_autocast(device):
        yield


def transform_obstacle() -> str | None:
    """Return what keeps a fused kernel from running here, or None. torch.compile traces it all; then nothing does."""
    if torch.compiler.is_compiling():
        return None
    if forward_ad._current_level >= 0:
        return "it has no forward-mode gradient"
    levels = _levels()
    if not levels or levels == ["Grad"]:
        return None
    return "torch.func has no batching rule and no second derivative for it"


def can_checkpoint() -> bool:
    """Whether a block may be computed again for its gradient, which takes hooks that torch.func does not know."""
    return torch.compiler.is_compiling() or not _levels()


def exporting() -> bool:
    """Whether torch.export runs. torch.compiler.is_exporting() is also true in every torch.compile by torch 2.11."""
    return torch.compiler._is_exporting_flag


def sizes_are_open(*tensors: Tensor) -> bool:
    """Whether sizes are not known yet, so that nothing can be cut into blocks: torch.export leaves them open."""
    if exporting():
        return True
    if type(tensors[0]) is Tensor:  # while tracing, tensors are of a subclass
        return False
    return not all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def _levels() -> list[str]:
    """The transforms of torch.func around this call, the outermost first."""
    stack = torch._C._functorch.get_interpreter_stack()
    return [level.key().name for level in stack] if stack else []
