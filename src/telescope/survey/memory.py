"""Where memory runs out, a survey goes on in smaller pieces."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def as_it_fits(run: Callable[[int], Result], most: int, least: int, queries: Tensor, keys: Tensor) -> Result:
    """run(most), or with half as much, and half of that, down to `least`; then one clear error."""
    while True:
        try:
            return run(most)
        except torch.OutOfMemoryError:
            if most <= least:
                break
        most //= 2  # not within `except`, where the problem still holds on to its tensors
    raise torch.OutOfMemoryError(
        f"survey of {queries.shape[-2]:,} queries and {keys.shape[-2]:,} keys: {queries.device} has no memory left for "
        "one row at a time; survey fewer heads or sequences at once, or free what else is held there"
    )
