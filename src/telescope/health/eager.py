"""Run the module inside the wrappers of a training: without torch.compile, DDP, dropout or
gradients.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

WRAPPERS = ("_orig_mod", "module")  # of torch.compile; of DDP, DataParallel and other libraries


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, DDP and the like; a model that is sharded by FSDP2 is
    itself.
    """
    while True:
        names = [name for name in WRAPPERS if name in model._modules and len(model._modules) == 1]
        inner = model._modules[names[0]] if names else None
        if inner is None:
            return model
        model = inner


@contextmanager
def eager_modules(model: nn.Module) -> Iterator[None]:
    """Put back, while the block runs, every part of a model as it was before torch.compile."""
    with ExitStack() as undo:
        for module in [*model.modules()]:
            if module._compiled_call_impl is not None:
                undo.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = None
            for name, child in [*module._modules.items()]:
                if child is not None and "_orig_mod" in child._modules:
                    undo.callback(module._modules.__setitem__, name, child)
                    module._modules[name] = child._modules["_orig_mod"]
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off while the block runs; no random number is drawn, so that the training goes
    on unchanged.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def first_sequences(inputs: Any, count: int) -> Any:
    """Return the first sequences of a batch: of a tensor, or of all tensors in a dict, list or
    tuple.

    Tensors whose first axis is not the batch's, and everything else, are left as they are.
    """
    size = next((len(tensor) for tensor in _tensors(inputs) if tensor.ndim), 0)

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[:count] if value.ndim and len(value) == size else value
        if isinstance(value, dict) or hasattr(value, "items"):
            return {name: cut(part) for name, part in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(cut(part) for part in value)
        return value

    return cut(inputs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "values") and callable(value.values):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
