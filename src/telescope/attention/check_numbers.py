"""The numbers of a definition: plain Python numbers, or one sentence that says what came instead."""

from math import isfinite
from numbers import Number, Real
from operator import index
from typing import Any

from torch import Tensor


def whole(what: str, given: Any) -> int:
    """Return `given` as an int. Accept what Python takes for an index, such as numpy's integers; no bool, no tensor."""
    if type(given) is int:
        return given
    if isinstance(given, Tensor | bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is a whole number, not {_kind(given)}{_way_out(given)}")
    return index(given)


def real(what: str, given: Any) -> float:
    """Return `given` as an int or a float. Accept numpy's numbers and fractions; no bool, no tensor, no text."""
    if type(given) is float:
        return given
    if isinstance(given, Tensor | bool) or not isinstance(given, Real):
        raise TypeError(f"{what} is a number, not {_kind(given)}{_way_out(given)}")
    try:
        number = float(given)
    except OverflowError:
        raise ValueError(f"{what} is too large for a floating-point number") from None
    return given if isinstance(given, int) else number


def positive(what: str, given: Any) -> float:
    """Return `given` as `real` does; raise a ValueError unless it is finite and above zero."""
    number = real(what, given)
    if not (isfinite(number) and number > 0):
        raise ValueError(f"{what}={number} must be a finite number above zero")
    return number


def _kind(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    return repr(given) if isinstance(given, Number | str) else type(given).__name__


def _way_out(given: Any) -> str:
    return "; its number is .item()" if isinstance(given, Tensor) and given.numel() == 1 else ""
