"""The cells of a map: which of them each query and each key falls into."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..words import hint

HOW = ("share", "max")


@dataclass(frozen=True, eq=False)
class Cells:
    """`share` sums over the keys of a cell and averages over its queries; `max` is the largest weight in it."""

    numbers: Callable[[], tuple[Tensor, Tensor]]  # asked for only where the sizes do not say it all
    rows: int
    columns: int
    how: str
    row_size: int = 1  # how many queries each row of cells has, where all have the same number; else 1
    key_size: int = 1

    @cached_property
    def of_each(self) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch key"]]:
        return self.numbers()

    @property
    def of_queries(self) -> Int[Tensor, "#batch query"]:
        return self.of_each[0]

    @property
    def of_keys(self) -> Int[Tensor, "#batch key"]:
        return self.of_each[1]

    def averaged(self, summed: Float[Tensor, "batch heads rows columns"]) -> Float[Tensor, "batch heads rows columns"]:
        """Sums over queries and keys, divided by the number of queries in each row of the map."""
        if self.row_size > 1:
            return summed / self.row_size
        counts = torch.zeros(len(self.of_queries), self.rows, dtype=summed.dtype, device=summed.device)
        counts.scatter_add_(1, self.of_queries, torch.ones_like(self.of_queries, dtype=summed.dtype))
        return summed / counts.clamp(min=1.0)[:, None, :, None]


def grid(rows: int, columns: int, how: str, *, of: tuple[int, int], device: torch.device) -> Cells:
    """A map of this size, cells as even as can be: query i is in row floor(i · rows / queries)."""
    _known(how)
    for name, count, there, what in (("rows", rows, of[0], "queries"), ("cols", columns, of[1], "keys")):
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"map({name}=...) is a whole number, not {type(count).__name__}")
        if not 1 <= count <= there:
            raise ValueError(f"map({name}={count}) does not fit {there} {what}; it takes 1 to {there}")

    def numbers() -> tuple[Tensor, Tensor]:
        row, column = (torch.arange(there, device=device) for there in of)
        return (row * rows // of[0])[None], (column * columns // of[1])[None]

    even = (there // count if there % count == 0 else 1 for count, there in zip((rows, columns), of, strict=True))
    return Cells(numbers, rows, columns, how, *even)


def segments(ids: Any, how: str, *, of: tuple[int, int], batch: int, device: torch.device) -> Cells:
    """A row and a column for each id: one list for queries and keys alike, or (query ids, key ids)."""
    _known(how)
    if isinstance(ids, tuple) and len(ids) == 2 and not all(isinstance(part, int) for part in ids):
        of_queries, of_keys = (_ids(part, device) for part in ids)
    else:
        of_keys = _ids(ids, device)
        of_queries = of_keys[:, max(of_keys.shape[-1] - of[0], 0) :]  # the last query stands at the last key
    for name, part, there in (("queries", of_queries, of[0]), ("keys", of_keys, of[1])):
        if part.shape[-1] != there or len(part) not in (1, batch):
            raise ValueError(
                f"segments number {name} by a tensor of shape {tuple(part.shape)}; there are {there} {name} in a batch "
                f"of {batch}; two sequences are numbered by segments=(query ids, key ids)"
            )
        if part.numel() and int(part.min()) < 0:
            raise ValueError(f"segments has the id {int(part.min())}; ids count from 0, one for each row of the map")
    rows, columns = (int(part.max()) + 1 if part.numel() else 0 for part in (of_queries, of_keys))
    return Cells(lambda: (of_queries, of_keys), rows, columns, how)


def _known(how: str) -> None:
    if how not in HOW:
        raise ValueError(f'map(how="{how}") is not a way to pool; {hint(str(how), HOW)}')


def _ids(ids: Sequence[int] | Tensor, device: torch.device) -> Int[Tensor, "#batch token"]:
    numbers = torch.as_tensor(ids, device=device)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.ndim not in (1, 2):
        raise ValueError(
            f"segments are whole numbers, (token,) or (batch, token), "
            f"not a {numbers.dtype} tensor of shape {tuple(numbers.shape)}"
        )
    return (numbers if numbers.ndim == 2 else numbers[None]).long()
