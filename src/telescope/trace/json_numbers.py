"""Numbers for JSON, with all their digits. What JSON has no number for is a string: "-inf", "inf" or "nan"."""

from typing import Any

from torch import Tensor


def plain(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    exact = tensor.detach().double().cpu()
    return exact.tolist() if bool(exact.isfinite().all()) else _said(exact.tolist())


def number(value: float | None) -> float | str | None:
    return None if value is None else _said(value)


def _said(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_said(one) for one in numbers]
    return numbers if abs(numbers) < float("inf") else str(numbers)
