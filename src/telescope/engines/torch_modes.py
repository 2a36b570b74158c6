"""Query and set torch's modes: autocast, inference mode, torch.func transforms, torch.export."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint


def autocast_enabled(device: torch.device) -> bool:
    """Return whether autocast is on for this device; torch has no autocast on meta."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors as torch's own fused attention takes them: in autocast's dtype if it is
    on, except float64.
    """
    device = tensors[0].device
    if not autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(
        tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors
    )


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off."""
    return torch.autocast(device.type, enabled=False) if autocast_enabled(device) else nullcontext()


def recording_mode(device: torch.device) -> AbstractContextManager[object]:
    """Return a context for results that outlive the model's run: no gradients, no inference
    tensors, no autocast.
    """
    # Entering no context is faster than entering three.
    needed = (
        torch.is_grad_enabled() or torch.is_inference_mode_enabled() or autocast_enabled(device)
    )
    return _recording_mode(device) if needed else nullcontext()


@contextmanager
def _recording_mode(device: torch.device) -> Iterator[None]:
    # Inference tensors could not be used in a later training step.
    with torch.inference_mode(False), torch.no_grad(), without_autocast(device):
        yield


def transform_obstacle() -> str | None:
    """Return why a fused kernel cannot run under the current transform, or None; torch.compile
    traces all of them.
    """
    if torch.compiler.is_compiling():
        return None
    # torch has no public way to ask.
    if forward_ad._current_level >= 0:
        return "it has no forward-mode gradient"
    levels = _transform_levels()
    # One level of grad is what kernels are made for.
    if not levels or levels == ["Grad"]:
        return None
    return "torch.func has no batching rule and no second derivative for it"


def is_transformed() -> bool:
    """Return whether a transform of torch.func runs, in which tensors stand for others."""
    return bool(_transform_levels())


def can_checkpoint() -> bool:
    """Return whether torch.utils.checkpoint works here: it needs hooks that torch.func does not
    have.
    """
    return torch.compiler.is_compiling() or not _transform_levels()


def run_block(
    run: Callable[..., Tensor], inputs: tuple[Any, ...], recompute: bool, dropout: float
) -> Tensor:
    """Return run(*inputs); with `recompute` the backward pass runs it again and keeps nothing."""
    if not recompute:
        return run(*inputs)
    result: Tensor = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=dropout > 0.0)
    return result


def is_exporting() -> bool:
    """Return whether torch.export runs. In torch 2.11, torch.compiler.is_exporting() is True in
    torch.compile too.
    """
    return torch.compiler._is_exporting_flag


def sizes_are_open(*tensors: Tensor) -> bool:
    """Return whether sizes may be symbolic, as in torch.export, so that tensors cannot be cut into
    blocks.
    """
    if is_exporting():
        return True
    if type(tensors[0]) is Tensor:  # while tracing, tensors are of a subclass
        return False
    return not all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def _transform_levels() -> list[str]:
    """Return the names of the torch.func transforms around this call, the outermost first."""
    # None where no transform runs.
    stack = torch._C._functorch.get_interpreter_stack()
    return [level.key().name for level in stack] if stack else []


def constant(condition: bool) -> bool:
    """Return the condition as a constant: torch's kernels need one inside torch.compile, where
    sizes may be symbols.
    """
    if condition:  # noqa: SIM103, bool(condition) would stay a symbol
        return True
    return False
