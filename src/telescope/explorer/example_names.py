"""The names of worked examples as runs. A name holds what was changed, so that its link lasts.

`example-journey~x.2.0_-0.57~by_sum` is the example journey with -0.57 in row 2 and column 0 of x,
both from 0, and with scores divided by their sum. web/engine/names.js reads and writes the same
names.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from torch import Tensor

from .answers import Refusal

PREFIX = "example-"
BY_SUM = "by_sum"
MOST_NAME = 6_000  # characters: every cell of the largest example, with all digits, takes 4,600
CHANGE = re.compile(
    r"([A-Za-z0-9_-]{1,40})\.([0-9]{1,2})\.([0-9]{1,2})_"
    r"(-?[0-9]{1,7}(?:\.[0-9]{1,25})?(?:e-[0-9]{1,3})?)",
    re.ASCII,
)


class Changed(NamedTuple):
    """What a name says: the matrices with changed cells, and the normaliser."""

    inputs: dict[str, list[list[float]]]
    normalize: str


def in_name(input_name: str) -> str:
    """Return the name of an input as it stands in a run's name: without spaces."""
    return input_name.replace(" ", "-")


def number_text(x: float) -> str:
    """Return the shortest decimal that is this number, as JavaScript writes it."""
    text = repr(x + 0.0)  # -0.0 becomes 0.0
    # Python takes an exponent below 1e-4, JavaScript below 1e-6.
    if "e" in text and abs(x) >= 1e-6:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0").replace("e-0", "e-")


def name_of(
    example: str, original: Mapping[str, Tensor], given: Mapping[str, Tensor], normalize: str
) -> str:
    """Return the name of an example with these matrices; cells that did not change are left out."""
    changes = [
        f"{in_name(name)}.{i}.{j}_{number_text(x)}"
        for name, matrix in original.items()
        for i, (own, row) in enumerate(
            zip(matrix.tolist(), given.get(name, matrix).tolist(), strict=True)
        )
        for j, (old, x) in enumerate(zip(own, row, strict=True))
        if x != old
    ]
    return "~".join([PREFIX + example, *changes, *([BY_SUM] if normalize == BY_SUM else [])])


def parse(name: str, original: Mapping[str, Tensor]) -> Changed:
    """Return what a name changes in an example; raise Refusal for what is no change."""
    if len(name) > MOST_NAME:
        raise Refusal(
            400, "bad-name", f"a run's name has at most {MOST_NAME:,} characters, not {len(name):,}"
        )
    first, *changes = name.split("~")
    known = {in_name(one): one for one in original}
    inputs: dict[str, list[list[float]]] = {}
    normalize = "softmax"
    for change in changes:
        if change == BY_SUM:
            normalize = BY_SUM
            continue
        found = CHANGE.fullmatch(change)
        matrix = original[known[found[1]]] if found and found[1] in known else None
        if found is None or matrix is None or not _is_inside(matrix, int(found[2]), int(found[3])):
            raise Refusal(
                404,
                "unknown-run",
                f'"{change[:40]}" is no change of {first}; a change is '
                f"{next(iter(known))}.0.0_1.5, an input with row and column from 0 and the number, "
                f"or {BY_SUM}; there are "
                f"{', '.join(known)}",
            )
        rows = inputs.setdefault(known[found[1]], matrix.tolist())
        rows[int(found[2])][int(found[3])] = float(found[4])
    return Changed(inputs, normalize)


def _is_inside(matrix: Tensor, row: int, column: int) -> bool:
    return row < matrix.shape[0] and column < matrix.shape[1]
