"""Find the heads that look at one word from different sides, and set apart those that attend by
position alone.

A head that always attends to the word before, to itself or to one fixed token says nothing about a
sentence's meaning, wherever that happens to be. What is measured are perspectives, not a decision
of the model.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...measures import CLEAR, OFFSETS

# Where a head may attend by position; "next" exists between the words of an encoder alone, so that
# it names no kind of head.
POSITIONS = {**OFFSETS, "next": 1}


class HeadPerspective(NamedTuple):
    """What one head attends to from one word.

    habit    "previous", "itself", "next", "first" or "sink" where the head attends by position,
             else None
    share    the share of all weight that goes there; of a head without a habit, of its strongest
             one
    weights  from the word to every word
    """

    layer: int
    head: int
    habit: str | None
    share: float
    weights: Float[Tensor, " column"]


def positional_shares(
    weights: Float[Tensor, "row column"], across: bool = False
) -> dict[str, float]:
    """Return the share of a head's weight that goes to each kind of position, the mean over the
    rows.

    "first" and "sink" mean what they mean in the table of measures, between words.
    """
    rows, columns = weights.shape
    shares = {
        "first": float(weights[:, 0].mean()),
        "sink": float(weights.mean(0)[1:].max()) if columns > 1 else 0.0,
    }
    if across or rows != columns:
        return shares
    for name, offset in POSITIONS.items():
        line = weights.diagonal(offset)
        shares[name] = float(line.mean()) if len(line) else 0.0
    return shares


def head_perspectives(
    weights: Float[Tensor, "layer head row column"], row: int, across: bool = False
) -> list[HeadPerspective]:
    """Return the perspective of every head on one row of the weights between words."""
    found = []
    for layer, heads in enumerate(weights):
        for head, one in enumerate(heads):
            shares = positional_shares(one, across)
            habit = max(shares, key=lambda name: shares[name])
            by_position = shares[habit] >= CLEAR and one.shape[0] > 2
            found.append(
                HeadPerspective(
                    layer, head, habit if by_position else None, shares[habit], one[row]
                )
            )
    return found


def most_different(
    heads: Sequence[HeadPerspective], columns: Sequence[int]
) -> tuple[int, int] | None:
    """Return the two heads that differ most in their weights on these columns; None if there are
    fewer than two.

    Heads that attend by position are left out as long as two others remain. The difference is half
    of the sum of absolute differences, the total variation distance.
    """
    able = [i for i, head in enumerate(heads) if head.habit is None]
    able = able if len(able) > 1 else list(range(len(heads)))
    if len(able) < 2:
        return None
    weights = torch.stack([heads[i].weights for i in able])[:, list(columns)].double()
    # Each pair once; the first one if several differ alike.
    distances = torch.cdist(weights, weights, p=1).triu(1)
    first, second = divmod(int(distances.argmax()), len(able))
    return (able[first], able[second]) if first != second else (able[0], able[1])


def most_telling(heads: Sequence[HeadPerspective], row: int, columns: Sequence[int]) -> int:
    """Return the head that attends most from the row to one word that is neither the row itself nor
    next to it.

    Heads that attend by position are left out as long as another remains.
    """
    able = [i for i, head in enumerate(heads) if head.habit is None] or list(range(len(heads)))
    far = [column for column in columns if abs(column - row) > 1] or list(columns) or [0]
    return max(able, key=lambda i: float(heads[i].weights[far].max()))
