"""Hooks of one model: they do nothing in a copy of the model, and torch.compile does not trace them."""

import sys
from collections.abc import Callable
from typing import Any

import torch

COMPILED = "watch sees nothing of what torch.compile makes; inside the block, call what is not compiled"


class ModuleHook:
    """A module hook of one model. In a copy of the model, made or pickled inside the block, the hook does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *args: Any, **options: Any) -> Any:
        return None if self.call is None else self.call(*args, **options)

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        return ModuleHook, ()


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped so that torch.compile does not trace it: compiled code calls it as it is written.

    Return the function unchanged if torch._dynamo is not imported: importing it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    return torch.compiler.disable(function, reason=COMPILED)  # type: ignore[no-any-return, no-untyped-call]
