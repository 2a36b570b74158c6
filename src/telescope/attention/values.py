"""Check the numbers and tensors of a definition: return them, or raise one sentence that says what
came.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from math import isfinite
from numbers import Number, Real
from operator import index
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class Value:
    """A frozen dataclass that is compared and hashed by its fields, tensors included."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return self is other or all(
            _equal(left, right)
            for left, right in zip(field_values(self), field_values(other), strict=True)
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash_part, field_values(self))))


def field_values(value: Any) -> list[Any]:
    """Return what the fields of a dataclass hold, in order."""
    if torch.compiler.is_compiling():  # which traces `fields` of instances only, and needs no cache
        return [getattr(value, field.name) for field in fields(value)]
    kind: Any = type(value)
    return [getattr(value, name) for name in _field_names(kind)]


@cache
def _field_names(kind: Any) -> tuple[Any, ...]:
    return tuple(field.name for field in fields(kind))


def _equal(left: Any, right: Any) -> bool:
    """Return whether two fields are equal; tensors also need the same dtype and device."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (
            left.dtype == right.dtype and left.device == right.device and torch.equal(left, right)
        )
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return False
    return bool(left == right)


def _hash_part(content: Any) -> Any:
    """Return what a field adds to the hash: of a tensor shape and dtype, since its numbers would
    wait for the GPU.
    """
    return (content.shape, content.dtype) if isinstance(content, Tensor) else content


def has_data(tensor: Tensor) -> bool:
    """Return whether the numbers of `tensor` can be read: not while compiling, on meta, in
    FakeTensorMode or vmap.

    Nor in torch.jit.trace, whose graph would keep the decision for every other input.
    """
    if (
        torch.compiler.is_compiling()
        or tensor.is_meta
        or torch._C._get_dispatch_mode(_FAKE) is not None
    ):
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    if type(tensor) in _PLAIN and torch._C._functorch.peek_interpreter_stack() is None:
        return True
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    fake = sys.modules.get(
        "torch._subclasses.fake_tensor"
    )  # not imported, so there is no fake tensor
    return fake is None or not isinstance(tensor, fake.FakeTensor)


def is_cheap_to_read(tensor: Tensor) -> bool:
    """Return whether the numbers can be read without waiting for a GPU."""
    return tensor.device.type == "cpu" and has_data(tensor)


def format_shape(tensor: Tensor) -> str:
    """Return the shape for printing: "2x8x64"."""
    return "x".join(map(str, tensor.shape))


def leaves(value: Any) -> Iterator[Any]:
    """Yield what a value holds at any depth, without the values and tuples in between."""
    if not isinstance(value, Value | tuple):
        yield value
        return
    for content in value if isinstance(value, tuple) else field_values(value):
        yield from leaves(content)


def named_leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves in the order of `leaves`, each with its path of field names: ("bias",
    "table").
    """
    if not isinstance(value, Value | tuple):
        yield path, value
        return
    kind: Any = type(value)
    names = map(str, range(len(value))) if isinstance(value, tuple) else _field_names(kind)
    for name, content in zip(
        names, value if isinstance(value, tuple) else field_values(value), strict=True
    ):
        yield from named_leaves(content, (*path, name))


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor that a value holds."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))


def identity_key(value: Any) -> Any:
    """Return a hashable key for a value that reads no numbers: each tensor counts by its id and
    version counter.

    Writing to a tensor changes the key. An id is unique only while its tensor lives: keep the value
    with the key.
    """
    if isinstance(value, Tensor):
        return object() if value.is_inference() else (id(value), value._version)
    if isinstance(value, tuple):
        return tuple(map(identity_key, value))
    return (
        (type(value), *map(identity_key, field_values(value)))
        if isinstance(value, Value)
        else value
    )


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on `device`; the same object if they are there already."""
    return (
        value
        if all(tensor.device == device for tensor in tensors(value))
        else map_tensors(value, lambda t: t.to(device))
    )


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of `value` with `change` applied to each tensor; the same object if it holds
    none.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(content, change) for content in value)
    if not isinstance(value, Value) or next(tensors(value), None) is None:
        return value
    return type(value)(*(map_tensors(content, change) for content in field_values(value)))


MAX_POSITIONS = 2**62  # a position plus a size is still a whole number of 64 bits


def require_int(what: str, given: Any) -> int:
    """Return `given` as an int. Accept anything with `__index__`, such as numpy's integers, but no
    bool or tensor.
    """
    if type(given) is int:
        return given
    if isinstance(given, Tensor | bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is a whole number, not {_describe(given)}{_item_hint(given)}")
    return index(given)


def require_positions(what: str, given: Any) -> int:
    """Return `given` as `require_int` does; raise a ValueError if no text has so many positions."""
    number = require_int(what, given)
    if number > MAX_POSITIONS:
        raise ValueError(
            f"{what} is a whole number of {number.bit_length()} bits; at most 2**62 positions can "
            "be told"
        )
    return number


def require_dense(what: str, tensor: Tensor) -> Tensor:
    """Return `tensor`; raise a TypeError if it is sparse or nested."""
    if tensor.is_nested:
        raise TypeError(
            f"{what} is a nested tensor, and attention takes dense ones; pad it by "
            "torch.nested.to_padded_tensor, and "
            "hide the padding by mask=ts.padding(lengths)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{what} is a tensor of layout {tensor.layout}; attention takes dense ones: call "
            ".to_dense()"
        )
    return tensor


def require_real(what: str, given: Any) -> float:
    """Return `given` as an int or a float. Accept numpy's numbers and fractions, but no bool,
    tensor or text.
    """
    if type(given) is float:
        return given
    if isinstance(given, Tensor | bool) or not isinstance(given, Real):
        raise TypeError(f"{what} is a number, not {_describe(given)}{_item_hint(given)}")
    try:
        number = float(given)
    except OverflowError:
        raise ValueError(f"{what} is too large for a floating-point number") from None
    return given if isinstance(given, int) else number


def require_positive(what: str, given: Any) -> float:
    """Return `given` as `require_real` does; raise a ValueError unless it is finite and above
    zero.
    """
    number = require_real(what, given)
    if not (isfinite(number) and number > 0):
        raise ValueError(f"{what}={number} must be a finite number above zero")
    return number


def _describe(given: Any) -> str:
    """Return `given` as an error shows it."""
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    return repr(given) if isinstance(given, Number | str) else type(given).__name__


def _item_hint(given: Any) -> str:
    """Return the fix for a tensor with one number, else nothing."""
    return (
        "; get its number with .item()" if isinstance(given, Tensor) and given.numel() == 1 else ""
    )
