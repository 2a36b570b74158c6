"""How much of what lies between two inputs an edit restores: the column "restored" of `ts.effect`.

Patched from the clean text, a run of the corrupted one gets back some of the clean value: all of it
is 1, nothing of it is 0.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

# The rows of a table with the values of the two inputs.
CLEAN = 0
CORRUPTED = 1
RUNS = ("corrupted", "clean")  # which inputs run with the edits


def are_alike(clean: Tensor | None, other: Tensor | None, real: Sequence[Tensor | None]) -> bool:
    """Return whether the positions of two outputs can be compared one by one; `real` tells which of
    them count in each.
    """
    if clean is None or other is None or clean.shape != other.shape:
        return False
    if real[0] is None or real[1] is None:
        return real[0] is real[1]
    return torch.equal(real[0], real[1])


def check_measure(column: str, alike: bool, labels: Tensor | None) -> None:
    """Raise a ValueError if a measure needs positions that are alike, and they are not."""
    if not alike and (column == "kl" or (column == "loss" and labels is None)):
        raise ValueError(
            f'"{column}" compares the two inputs position by position, and they differ in size or '
            "in padding; measure tokens= with against= after the last position, or a function of "
            "the output"
        )


def with_restored(columns: Mapping[str, list[Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return a table with one more column for each of these: (value - corrupted) / (clean -
    corrupted).

    Raise a ValueError if a value is the same for both inputs, so that there is nothing to restore.
    """
    found = dict(columns)
    for name in names:
        clean = columns[name][CLEAN]
        corrupted = columns[name][CORRUPTED]
        between = clean - corrupted
        if between == 0.0 or not isfinite(between):
            raise ValueError(
                f'"{name}" is {clean:.6g} for the inputs as they are and {corrupted:.6g} for '
                "corrupted=, so that nothing lies between them; choose inputs or a measure that "
                "differ"
            )
        label = "restored" if len(names) == 1 else f"restored({name})"
        found[label] = [(value - corrupted) / between for value in columns[name]]
    return found
