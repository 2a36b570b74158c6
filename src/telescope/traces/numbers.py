"""Format numbers for people: at most four decimal places, long rows shortened, weights as colours;
and for JSON.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Significant digits of float32, in which models compute; float16 and bfloat16 are computed in
# float32.
DIGITS = 7
DIGITS_OF_FLOAT64 = 15


def decimal_places(numbers: Tensor) -> int:
    """Return how many decimal places these numbers need: 0 for whole numbers, 2 for numbers like
    0.43, otherwise 4.
    """
    finite = numbers[numbers.isfinite()].double()
    for places in (0, 2):
        if bool(((finite * 10**places).round() - finite * 10**places).abs().le(1e-4).all()):
            return places
    return 4


def format_number(number: float, places: int) -> str:
    """Return the number with this many decimal places; in scientific notation from a million on."""
    if number != number or number in (float("inf"), float("-inf")):
        return str(number)
    return f"{number:.4g}" if abs(number) >= 1e6 else f"{number:.{places}f}"


def visible_indices(count: int, most: int) -> list[int | None]:
    """Return which of `count` items to show where `most` fit: the first and the last items, None
    for the gap.
    """
    if count <= most:
        return list(range(count))
    last = max(1, most // 4)
    return [*range(most - last - 1), None, *range(count - last, count)]


def format_vector(numbers: Tensor, most: int = 8) -> str:
    """Return a vector as text, such as "[0.43 0.15 0.89]", with at most `most` numbers."""
    places = decimal_places(numbers)
    values = numbers.tolist()
    cells = (
        "…" if i is None else format_number(values[i], places)
        for i in visible_indices(len(values), most)
    )
    return f"[{' '.join(cells)}]"


def format_factor(number: float, places: int) -> str:
    """Return a number to be written after a multiplication sign: a negative number stands in
    brackets.
    """
    return f"({format_number(number, places)})" if number < 0 else format_number(number, places)


def format_sum(terms: Sequence[str], most: int = 8) -> str:
    """Return the sum of the terms as text, such as "a + b - c + … + z", with at most `most`
    terms.
    """
    summed = " + ".join("…" if i is None else terms[i] for i in visible_indices(len(terms), most))
    return summed.replace("+ -", "- ")


# viridis (van der Walt & Smith 2015, CC0), at 0, 1/8, … 1
_VIRIDIS = (
    (68, 1, 84),
    (71, 45, 123),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
    (253, 231, 37),
)


def background(weight: float) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of a weight from 0 to 1; weights outside take the colour
    of the nearest end.

    NaN takes the colour of 0.
    """
    position = min(max(weight, 0.0), 1.0) * (len(_VIRIDIS) - 1) if weight == weight else 0.0
    low = min(int(position), len(_VIRIDIS) - 2)
    return tuple(  # type: ignore[return-value]
        round(a + (b - a) * (position - low))
        for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )


def text_colour(colour: tuple[int, int, int]) -> str:
    """Return "black" or "white", whichever reads better on this background: the contrast is at
    least 4.5 : 1.
    """
    return "black" if luminance(colour) > 0.179 else "white"


def luminance(colour: tuple[int, int, int]) -> float:
    """Return the perceived brightness of a colour, from 0 to 1 (WCAG's relative luminance)."""
    channels = (channel / 255 for channel in colour)
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def significant_digits(dtype: torch.dtype) -> int:
    """Return how many significant digits of a number of this dtype are true."""
    return DIGITS_OF_FLOAT64 if dtype == torch.float64 else DIGITS


def round_numbers(contents: Any, digits: int = DIGITS) -> Any:
    """Return what JSON would hold with every float rounded to significant digits, for people: 0.7,
    not 0.69999998807.

    Whole numbers and texts stay as they are.
    """
    if isinstance(contents, float):
        return float(f"{contents:.{digits}g}")
    if isinstance(contents, dict):
        return {name: round_numbers(part, digits) for name, part in contents.items()}
    if isinstance(contents, list | tuple):
        return [round_numbers(part, digits) for part in contents]
    return contents


def shortest_numbers(tensor: Tensor) -> Any:
    """Return a tensor as nested lists of the shortest decimals that are the same numbers in its
    dtype.

    -inf, inf and nan are strings, since JSON has no such numbers.
    """
    if tensor.dtype == torch.float64:
        return json_numbers(tensor)
    exact = tensor.detach().float().cpu().numpy()
    shortest: Any = exact.astype(str).astype(
        "float64"
    )  # numpy writes the fewest digits that identify a float32
    return _finite_or_strings(shortest.tolist())


def json_numbers(tensor: Tensor | None) -> Any:
    """Return a tensor as nested lists, in float64; -inf, inf and nan as strings, since JSON has no
    such numbers.
    """
    if tensor is None:
        return None
    exact = tensor.detach().double().cpu()
    return exact.tolist() if bool(exact.isfinite().all()) else _finite_or_strings(exact.tolist())


def json_number(value: float | None) -> float | str | None:
    """Return one number as `json_numbers` would."""
    return None if value is None else _finite_or_strings(value)


def _finite_or_strings(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_finite_or_strings(number) for number in numbers]
    return numbers if abs(numbers) < float("inf") else str(numbers)
