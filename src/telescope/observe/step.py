"""A step of an attention, as something to show: its numbers, and the names of everything along their axes."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Step(NamedTuple):
    """`formula` made the numbers; `rows` are tokens, and so are `columns`, or None where they are features."""

    name: str
    formula: str
    numbers: Float[Tensor, "batch head row column"]
    axes: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...] | None

    def matrix(self, batch: int, head: int, heads: int) -> Float[Tensor, "row column"]:
        """What head number `head` of `heads` sees of it: grouped heads share their keys and values."""
        return self.numbers[batch, head * self.numbers.shape[1] // heads]


def peak(name: str, numbers: Tensor) -> float | None:
    """The largest weight, which is drawn brightest; None for steps that are not weights."""
    return None if name != "weights" or not numbers.numel() else numbers.max().item() or 1.0
