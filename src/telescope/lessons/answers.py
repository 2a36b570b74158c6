"""Compare a reader's answer with the right one, and say what is wrong: a known mistake, a shape, a
place, a number.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-4
Solution = Callable[..., Any]  # what a reader wrote


class WrongAnswer(AssertionError):  # noqa: N818  a reader made no error
    """Say in one sentence what is wrong with a solution of an exercise.

    Example:
        >>> from telescope.lessons import WrongAnswer
        >>> issubclass(WrongAnswer, AssertionError)
        True
    """


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the reader's function returns; an exercise that was not begun, or an error, is
    one sentence.
    """
    if not callable(function):
        raise WrongAnswer(f"{name} should be a function, and is {_describe(function)}")
    try:
        found = function(*arguments)
    except NotImplementedError:
        raise WrongAnswer(
            f"{name} is not written yet: replace `raise NotImplementedError` by your code"
        ) from None
    except Exception as problem:
        sizes = ", ".join(_describe(argument) for argument in arguments)
        raise WrongAnswer(
            f"{name}({sizes}) raised {type(problem).__name__}: {problem}"
        ) from problem
    if found is None:
        raise WrongAnswer(f"{name} returned nothing: is there a `return` at its end?")
    return found


def given(name: str, value: Any) -> None:
    """Raise a WrongAnswer where the reader has not replaced the three dots of an exercise yet."""
    if value is ...:
        raise WrongAnswer(f"{name} is not given yet: replace the three dots by your answer")


def as_tensor(value: Any) -> Any:
    """Return a list of numbers as a tensor; anything else as it is."""
    try:
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float32)
    except (TypeError, ValueError):
        return value


def compare(
    name: str,
    found: Any,
    right: Tensor | float,
    mistakes: Mapping[str, Any] | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Raise a WrongAnswer unless `found` is close to `right`.

    mistakes  what usual mistakes would give, by the sentence that says what to change
    """
    right = torch.as_tensor(right)
    if not isinstance(found, Tensor):
        if not isinstance(found, int | float):
            raise WrongAnswer(
                f"{name} should return {_describe(right)}, and returned {_describe(found)}"
            )
        found = torch.as_tensor(float(found))
    if found.shape == right.shape and _near(found, right, tolerance):
        return
    for sentence, mistaken in (mistakes or {}).items():
        wrong = torch.as_tensor(mistaken)
        if found.shape == wrong.shape and _near(found, wrong, tolerance):
            raise WrongAnswer(f"{name}: {sentence}")
    if found.shape != right.shape:
        turned = found.ndim >= 2 and found.mT.shape == right.shape
        hint = "; it looks transposed" if turned else ""
        raise WrongAnswer(
            f"{name} has shape {tuple(found.shape)}, and should have {tuple(right.shape)}{hint}"
        )
    if not found.is_floating_point() and right.is_floating_point():
        found = found.double()
    if bool(found.double().isnan().any()):
        raise WrongAnswer(
            f"{name} has NaN at {_place(found.double().isnan())}: look for 0 / 0, or a softmax "
            "over nothing but -inf"
        )
    if found.ndim >= 2 and found.shape[-1] == found.shape[-2] and _near(found.mT, right, tolerance):
        raise WrongAnswer(f"{name} is transposed: queries are rows, keys are columns")
    ratio = _constant_ratio(found, right)
    if ratio is not None:
        raise WrongAnswer(
            f"{name} is {ratio:.4g} times too large everywhere: a factor is missing or too many"
        )
    difference = (found.double() - right.double()).abs()
    where = int(difference.argmax())
    raise WrongAnswer(
        f"{name} is {found.flatten()[where].item():.4f} at "
        f"{_place(difference == difference.max())}, and should be "
        f"{right.flatten()[where].item():.4f}"
    )


def passed(name: str, what: str) -> None:
    """Say that a solution is right."""
    print(f"✓ {name}: {what}")


def _near(found: Tensor, right: Tensor, tolerance: float) -> bool:
    one = found.detach().double()
    other = right.detach().double()
    return bool(torch.isclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True).all())


def _constant_ratio(found: Tensor, right: Tensor) -> float | None:
    """Return c where found = c · right everywhere, and c is not 1."""
    known = right.double().abs() > 1e-6
    if not bool(known.any()):
        return None
    ratios = found.double()[known] / right.double()[known]
    ratio = ratios.mean()
    constant = (
        bool((ratios - ratio).abs().max() <= 1e-3 * ratio.abs().clamp(min=1e-6))
        and abs(ratio.item()) > 1e-6
    )
    return ratio.item() if constant and known.sum() > 1 else None


def _place(chosen: Tensor) -> str:
    """Return the first place where `chosen` is True: "[1, 2]"."""
    place = chosen.nonzero()[0].tolist()
    return f"{place}" if place else "its only number"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else "a number"
    return (
        f"{type(value).__name__} {value!r}"
        if isinstance(value, int | float | str)
        else f"a {type(value).__name__}"
    )
