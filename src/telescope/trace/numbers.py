"""Numbers as a person would write them: no more digits than they have, at most four after the point."""

from collections.abc import Sequence

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
