"""Numbers as a person would write them: no more digits than they have, at most four after the point."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def digits(numbers: Tensor) -> int:
    """How many places after the point show these numbers: none for whole ones, two for 0.43, otherwise four."""
    finite = numbers[numbers.isfinite()].double()
    for places in (0, 2):
        if bool(((finite * 10**places).round() - finite * 10**places).abs().le(1e-4).all()):
            return places
    return 4


def write(number: float, places: int) -> str:
    if number != number or number in (float("inf"), float("-inf")):
        return str(number)
    return f"{number:.4g}" if abs(number) >= 1e6 else f"{number:.{places}f}"


def shown(count: int, most: int) -> list[int | None]:
    """Which of `count` things to show when there is room for `most`: the first and the last ones, None for the gap."""
    if count <= most:
        return list(range(count))
    last = max(1, most // 4)
    return [*range(most - last - 1), None, *range(count - last, count)]


def vector(numbers: Tensor, most: int = 8) -> str:
    """[0.43 0.15 0.89]"""
    places, values = digits(numbers), numbers.tolist()
    return "[" + " ".join("…" if i is None else write(values[i], places) for i in shown(len(values), most)) + "]"


def factor(number: float, places: int) -> str:
    """A number behind a multiplication sign: a negative one in brackets."""
    return f"({write(number, places)})" if number < 0 else write(number, places)


def total(terms: Sequence[str], most: int = 8) -> str:
    """a + b - c + … + z"""
    summed = " + ".join("…" if i is None else terms[i] for i in shown(len(terms), most))
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
    """The colour of a weight from 0 to 1; what lies outside takes the nearest end."""
    place = min(max(weight, 0.0), 1.0) * (len(_VIRIDIS) - 1) if weight == weight else 0.0
    low = min(int(place), len(_VIRIDIS) - 2)
    return tuple(  # type: ignore[return-value]
        round(a + (b - a) * (place - low)) for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )


def ink(paper: tuple[int, int, int]) -> str:
    """Black or white, whichever is easier to read on this colour: its contrast is then at least 4.5 : 1."""
    return "black" if luminance(paper) > 0.179 else "white"


def luminance(colour: tuple[int, int, int]) -> float:
    """How bright it is to an eye, from 0 to 1 (WCAG's relative luminance)."""
    channels = (channel / 255 for channel in colour)
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
