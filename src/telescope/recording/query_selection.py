"""Which queries are kept: all, or those that were asked for before the model ran."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

Chosen = Callable[[int, int], Sequence[int]]  # of so many queries, after so many that came before: which of them


def everyone(count: int, before: int) -> Sequence[int]:
    return range(count)


def chosen(queries: Any) -> Chosen:
    """Numbers from 0 are places in the sequence; below 0 they count from the last query of a call, so that -1 is the
    last token read, and then every one that is written. A slice or a range is of places."""
    if queries is None:
        return everyone
    if isinstance(queries, slice):
        if any(end is not None and end < 0 for end in (queries.start, queries.stop)) or (queries.step or 1) < 1:
            raise ValueError(f"queries={queries} counts from the end, which moves while a model writes; use numbers")
        return lambda count, before: [
            row for row in range(count) if before + row in range(*queries.indices(before + count))
        ]
    try:
        numbers = [index(queries)] if not hasattr(queries, "__iter__") else [index(number) for number in queries]
    except TypeError:
        numbers = []
    doubtful = any(isinstance(number, bool) for number in (queries, *numbers)) or len(set(numbers)) < len(numbers)
    if not numbers or doubtful:
        raise ValueError(f"queries={queries!r} are not numbers of queries, each once; -1 is the last, None is all")

    def rows(count: int, before: int) -> list[int]:
        places = {number - before if number >= 0 else count + number for number in numbers}
        return [row for row in range(count) if row in places]

    return rows
