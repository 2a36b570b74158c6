"""Starting triton's kernels. At every start triton looks at every argument, to find what it compiled for such ones; for
calls that are alike in all that it looks at, once is enough."""

from functools import lru_cache
from typing import Any

from torch import Tensor


class Starts:
    """Of calls that are alike: a kernel is given arguments of the same kind each time."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
        """kernel[grid](*arguments, **settings), where the settings are those that it is compiled for."""
        key = (id(kernel), *settings.values())
        compiled = self._compiled.get(key)
        if compiled is None:  # at first, and always where kernels are interpreted
            self._compiled[key] = kernel[grid](*arguments, **settings)
        else:
            rest = (settings[name] for name in kernel.arg_names[len(arguments) :])
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)


def alike(*arguments: Any) -> Starts:
    """For calls with such arguments: numbers are the same, tensors have the same shape, and the same place in memory as
    far as triton makes use of it."""
    return _starts(tuple(_told(argument) for argument in arguments))


@lru_cache(maxsize=64)
def _starts(told: tuple[Any, ...]) -> Starts:
    return Starts()


def _told(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.shape, argument.stride(), argument.dtype, argument.device, argument.data_ptr() % 16
