"""Check the numbers and tensors of a definition: return them, or raise one sentence that says what
came.
"""

from math import isfinite
from numbers import Number, Real
from operator import index
from typing import Any

import torch
from torch import Tensor

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
