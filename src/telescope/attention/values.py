"""Frozen things that are what their fields are: equal by content, tensors included."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class Value:
    """Base of masks, scores, biases and definitions: compared and hashed by content."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return self is other or all(
            _same(mine, theirs) for mine, theirs in zip(contents(self), contents(other), strict=True)
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(_label, contents(self))))


def contents(value: Any) -> list[Any]:
    if torch.compiler.is_compiling():  # it asks objects alone, and remembers by itself
        return [getattr(value, field.name) for field in fields(value)]
    kind: Any = type(value)
    return [getattr(value, name) for name in _names(kind)]


@cache
def _names(kind: Any) -> tuple[Any, ...]:
    return tuple(field.name for field in fields(kind))


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return mine.dtype == theirs.dtype and mine.device == theirs.device and torch.equal(mine, theirs)
    if isinstance(mine, Tensor) or isinstance(theirs, Tensor):
        return False
    return bool(mine == theirs)


def _label(content: Any) -> Any:
    """A tensor is hashed by its shape: reading its numbers would wait for the GPU."""
    return (content.shape, content.dtype) if isinstance(content, Tensor) else content


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers to look at: not while compiling, on the meta device, in FakeTensorMode or vmap."""
    if torch.compiler.is_compiling() or tensor.is_meta or torch._C._get_dispatch_mode(_FAKE) is not None:
        return False
    if type(tensor) in _PLAIN and torch._C._functorch.peek_interpreter_stack() is None:
        return True
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    fake = sys.modules.get("torch._subclasses.fake_tensor")  # not imported: there can be no fake tensor
    return fake is None or not isinstance(tensor, fake.FakeTensor)


def readable(tensor: Tensor) -> bool:
    """Whether looking at the numbers is free: on a GPU it would wait."""
    return tensor.device.type == "cpu" and has_numbers(tensor)


def size(tensor: Tensor) -> str:
    """2x8x64, for printing."""
    return "x".join(map(str, tensor.shape))


def leaves(value: Any) -> Iterator[Any]:
    """Everything a value is made of that is no value or tuple itself."""
    if not isinstance(value, Value | tuple):
        yield value
        return
    for content in value if isinstance(value, tuple) else contents(value):
        yield from leaves(content)


def named_leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves in the same order, each with its path: ("bias", "table")."""
    if not isinstance(value, Value | tuple):
        yield path, value
        return
    kind: Any = type(value)
    names = map(str, range(len(value))) if isinstance(value, tuple) else _names(kind)
    for name, content in zip(names, value if isinstance(value, tuple) else contents(value), strict=True):
        yield from named_leaves(content, (*path, name))


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor a value is made of."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))


def identity(value: Any) -> Any:
    """What a value is known by without looking at numbers; a tensor that was written to is another one."""
    if isinstance(value, Tensor):
        return object() if value.is_inference() else (id(value), value._version)
    if isinstance(value, tuple):
        return tuple(map(identity, value))
    return (type(value), *map(identity, contents(value))) if isinstance(value, Value) else value


def moved(value: Any, device: torch.device) -> Any:
    """The same value with its tensors on this device."""
    return value if all(tensor.device == device for tensor in tensors(value)) else mapped(value, lambda t: t.to(device))


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value, each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(mapped(content, change) for content in value)
    if not isinstance(value, Value) or next(tensors(value), None) is None:
        return value
    return type(value)(*(mapped(content, change) for content in contents(value)))
