"""Launch Triton kernels in little time: compiled ahead, in parallel, and found again by their kinds
of arguments.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from .compiling import compile_in_parallel

_planned: ContextVar[list[tuple[Any, ...]] | None] = ContextVar("_planned", default=None)


def compile_ahead(device: torch.device, launch: Callable[[], object]) -> None:
    """Compile the kernels that launch() launches, in parallel, without running one of them.

    launch() may allocate tensors on this device, and read nothing from them.
    """
    planned: list[tuple[Any, ...]] = []
    token = _planned.set(planned)
    try:
        launch()
    finally:
        _planned.reset(token)
    compile_in_parallel([partial(_compile, device, *launched) for launched in planned])


def _compile(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    settings: dict[str, Any],
) -> None:
    with torch.cuda.device(device):  # of this thread
        kernel.warmup(*arguments, grid=grid, **settings)[
            grid
        ]  # an index loads the kernel onto the GPU


class LaunchCache:
    """Compiled kernels for launches whose arguments have the same kinds, as `launch_cache_for`
    compares them.

    Triton inspects every argument at every launch. A launch that finds its kernel here skips that.
    """

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any
    ) -> None:
        """Run kernel[grid](*arguments, **settings), where the kernel is compiled for each
        combination of settings.
        """
        key = (id(kernel), *settings.values())
        known = self._compiled.get(key)
        if known is not None:
            compiled, rest = known
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
            return
        compiled = kernel[grid](*arguments, **settings)
        if compiled is not None:  # None under Triton's interpreter
            self._compiled[key] = (
                compiled,
                [settings[name] for name in kernel.arg_names[len(arguments) :]],
            )


def launch_cache_for(*arguments: Any) -> Callable[..., None]:
    """Return the cache of launches with such arguments; within `compile_ahead`, what plans to
    compile the kernels.

    Numbers must be equal; tensors must have equal shapes, strides, dtypes and devices, and the same
    alignment to 16 bytes, for which Triton compiles.
    """
    planned = _planned.get()
    if planned is not None:
        return lambda kernel, grid, *given, **settings: planned.append(
            (kernel, grid, given, settings)
        )
    return _launch_cache(tuple(_kind(argument) for argument in arguments))


@lru_cache(maxsize=64)
def _launch_cache(kinds: tuple[Any, ...]) -> LaunchCache:
    return LaunchCache()


def _kind(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return (
        argument.shape,
        argument.stride(),
        argument.dtype,
        argument.device,
        argument.data_ptr() % 16,
    )
