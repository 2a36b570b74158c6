"""`Value`, the base of masks, biases, scores and definitions: a frozen dataclass compared by
content; and the checks of the numbers and tensors that values are made of.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from math import isfinite
from numbers import Number, Real
from operator import index
from threading import Lock
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

# The tensors of an attention. With fewer key heads than heads, neighbouring heads share one.
Queries = Float[Tensor, "batch heads query d_q"]
Keys = Float[Tensor, "batch key_heads key d_k"]
Values = Float[Tensor, "batch key_heads key d_v"]
Scores = Float[Tensor, "batch heads query key"]
Context = Float[Tensor, "batch heads query d_v"]

# Types whose data can always be read, outside of torch.func: the common case of `has_data`.
_PLAIN = (Tensor, torch.nn.Parameter)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class Value:
    """A frozen dataclass that is compared and hashed by its fields, tensors included."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        # Layers share one object, so that identity answers most comparisons.
        return self is other or all(
            _equal(left, right)
            for left, right in zip(field_values(self), field_values(other), strict=True)
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash_part, field_values(self))))


# What a caller of `and`, `or` or `not` probably intended, by the kind of part.
COMBINED = {
    "mask": "masks; a & b, a | b and ~a do",
    "score": "scores; a definition has one score",
    "bias": "biases; attention.with_extra_bias(bias) adds one more",
}


class Part(Value):
    """A part of a definition: a mask, a score or a bias. It has no truth value."""

    def __bool__(self) -> NoReturn:
        """Raise a TypeError: `a and b` would silently return one of the two."""
        kind = next(one for one in type(self).__mro__ if Part in one.__bases__)
        noun = kind.__name__.lower()
        raise TypeError(
            f"a {noun}, {type(self).__name__}, has no truth value, so that `and`, `or` and `not` "
            f"do not combine {COMBINED[noun]}, and `{noun} is None` asks if there is one"
        )


def field_values(value: Any) -> list[Any]:
    """Return what the fields of a dataclass hold, in order."""
    if torch.compiler.is_compiling():  # which traces `fields` of instances only, and needs no cache
        return [getattr(value, field.name) for field in fields(value)]
    kind: Any = type(value)
    return [getattr(value, name) for name in _field_names(kind)]


@cache
# Cached by class: `fields` is slow, and every comparison needs the names.
def _field_names(kind: Any) -> tuple[Any, ...]:
    return tuple(field.name for field in fields(kind))


def _equal(left: Any, right: Any) -> bool:
    """Return whether two fields are equal; tensors also need the same dtype and device."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (
            # Dtype and device first: they cost nothing, the numbers may wait for a GPU.
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
        or torch._C._get_tracing_state() is not None
    ):
        return False
    # Without torch.func around the call, a plain tensor has its numbers.
    if type(tensor) in _PLAIN and torch._C._functorch.peek_interpreter_stack() is None:
        return True
    # Unwrap the levels of torch.func; a batch of vmap has no numbers that Python could read.
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    # Where the module of fake tensors was never imported, there is none.
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is None or not isinstance(tensor, fake.FakeTensor)


def is_cheap_to_read(tensor: Tensor) -> bool:
    """Return whether the numbers can be read without waiting for a GPU."""
    return tensor.device.type == "cpu" and has_data(tensor)


def kind_of(given: Any) -> str:
    """Return what an error calls an argument: the dtype of a tensor, else the type's name."""
    return str(given.dtype) if isinstance(given, Tensor) else type(given).__name__


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
    names = _field_names(kind) if isinstance(value, Value) else map(str, range(len(value)))
    parts = field_values(value) if isinstance(value, Value) else value
    for name, content in zip(names, parts, strict=True):
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
        # An inference tensor has no version counter: a new object makes a key that is never found.
        return object() if value.is_inference() else (id(value), value._version)
    if isinstance(value, tuple):
        return tuple(map(identity_key, value))
    if isinstance(value, Value):
        return (type(value), *map(identity_key, field_values(value)))
    return value


class IdentityCache(dict[Any, tuple[Any, Any]]):
    """The latest results computed from values, found by the identity of their tensors, since
    comparing numbers would wait for a GPU. The module that makes the cache owns it.

    Each value is kept with its result: the ids of its tensors are unique while they live. Safe to
    use from several threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.lock = Lock()  # held while entries change

    def get_or_make(self, value: "Value", sizes: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the result for this value and these sizes; `make()` computes a new one."""
        key = (identity_key(value), sizes)
        found = self.get(key)
        if found is None:
            found = value, make()
            with self.lock:
                while len(self) >= self.most:
                    del self[next(iter(self))]
                self[key] = found
        return found[1]


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on `device`; the same object if they are there already."""
    if all(tensor.device == device for tensor in tensors(value)):
        return value
    return map_tensors(value, lambda tensor: tensor.to(device))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of `value` with `change` applied to each tensor; the same object if it holds
    none.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(content, change) for content in value)
    # Keep the object where nothing changes: identity is a cache key elsewhere.
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
    # True has an `__index__`, and a tensor may wait for a GPU: neither is meant as a size.
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
            "torch.nested.to_padded_tensor, and hide the padding by mask=ts.padding(lengths)"
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
        # Fractions and whole numbers may be larger than any float.
        number = float(given)
    except OverflowError:
        raise ValueError(f"{what} is too large for a floating-point number") from None
    # Whole numbers stay whole, so that messages and formulas print 2, not 2.0.
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


def is_tracing() -> bool:
    """Return whether tensors made now belong to FakeTensorMode, make_fx, torch.func or
    torch.jit.trace.

    Such tensors must not be cached.
    """
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def pick(table: Tensor, *at: Tensor) -> Tensor:
    """Return table[at], where a table axis of size 1 holds for every index, as in broadcasting."""
    table = table.to(at[0].device)
    return table[
        tuple(
            # An axis of size 1 holds for every index.
            index if size > 1 else torch.zeros_like(index)
            for index, size in zip(at, table.shape, strict=True)
        )
    ]


def check_shape(what: str, tensor: Tensor, axes: str, sizes: tuple[int, ...]) -> None:
    """Raise a ValueError unless each axis of `tensor` has the size in `sizes`, or size 1."""
    if any(have not in (1, need) for have, need in zip(tensor.shape, sizes, strict=True)):
        raise ValueError(
            f"{what} has shape {tuple(tensor.shape)}; "
            f"this attention needs {axes} = {sizes}, or 1 in place of any of them"
        )


def grouped_matmul(
    left: Float[Tensor, "batch heads row inner"],
    right: Float[Tensor, "batch key_heads inner column"],
) -> Float[Tensor, "batch heads row column"]:
    """Return left @ right; each head of `right` serves a group of heads of `left`."""
    batch, heads, rows, inner = left.shape
    key_heads = right.shape[1]
    columns = right.shape[-1]
    if heads == key_heads:
        return left @ right
    # With the symbolic sizes of torch.export, a batched product; else the rows of a group are put
    # under each other, for one larger product.
    if not all(isinstance(size, int) for size in (batch, rows, inner, columns)):
        groups = left.view(batch, key_heads, heads // key_heads, rows, inner)
        return (groups @ right.unsqueeze(2)).flatten(1, 2)
    stacked = left.reshape(batch, key_heads, heads // key_heads * rows, inner)
    return (stacked @ right).reshape(batch, heads, rows, columns)
