"""The cells of a map of the attention matrix: the row of each query and the column of each key."""

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
    """A map of rows x columns cells, and how the weights in a cell are pooled. Made by `grid` or
    `segments`.

    numbers    returns the row of each query and the column of each key; called only where they are
               needed
    how        "share" sums over the keys of a cell and averages over its queries; "max" is the
               largest weight in it
    row_size   queries per row of the map, where all rows have equally many; else 1
    key_size   keys per column of the map, likewise
    by_query   whether every query has a row of its own, in order

    Example:
        >>> import torch
        >>> from telescope.surveys.cells import grid
        >>> cells = grid(2, 3, "share", of=(4, 6), device=torch.device("cpu"))
        >>> cells.row_of_query.tolist(), cells.column_of_key.tolist()
        ([[0, 0, 1, 1]], [[0, 0, 1, 1, 2, 2]])
    """

    numbers: Callable[[], tuple[Tensor, Tensor]]
    rows: int
    columns: int
    how: str
    row_size: int = 1
    key_size: int = 1
    by_query: bool = False

    @cached_property
    def _numbers(self) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch key"]]:
        return self.numbers()

    @property
    def row_of_query(self) -> Int[Tensor, "#batch query"]:
        """The row of the map that each query falls into."""
        return self._numbers[0]

    @property
    def column_of_key(self) -> Int[Tensor, "#batch key"]:
        """The column of the map that each key falls into."""
        return self._numbers[1]

    def averaged(
        self, summed: Float[Tensor, "batch heads rows columns"]
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Return sums over queries and keys, divided by the number of queries in each row of the
        map.
        """
        if self.row_size > 1:
            return summed / self.row_size
        counts = torch.zeros(
            len(self.row_of_query), self.rows, dtype=summed.dtype, device=summed.device
        )
        counts.scatter_add_(
            1, self.row_of_query, torch.ones_like(self.row_of_query, dtype=summed.dtype)
        )
        return summed / counts.clamp(min=1.0)[:, None, :, None]


def grid(rows: int, columns: int, how: str, *, of: tuple[int, int], device: torch.device) -> Cells:
    """Return cells as even as possible, for a matrix `of` (queries, keys): query i is in row i ·
    rows // queries.
    """
    _check_how(how)
    _check_counts(rows, columns, of)

    def numbers() -> tuple[Tensor, Tensor]:
        row, column = (torch.arange(size, device=device) for size in of)
        return (row * rows // of[0])[None], (column * columns // of[1])[None]

    row_size, key_size = (
        size // count if size % count == 0 else 1
        for count, size in zip((rows, columns), of, strict=True)
    )
    return Cells(numbers, rows, columns, how, row_size, key_size)


def borders(rows: int, columns: int, *, of: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return the first query of each row and the first key of each column of `grid`.

    Query i is in row i · rows // queries, so row r begins with the least i for which i · rows >= r
    · queries.
    """
    _check_counts(rows, columns, of)
    queries, keys = of
    # -(-a // b) is a / b, rounded up.
    first_queries = [-(-row * queries // rows) for row in range(rows)]
    first_keys = [-(-column * keys // columns) for column in range(columns)]
    return first_queries, first_keys


def _check_counts(rows: int, columns: int, of: tuple[int, int]) -> None:
    """Raise where a matrix `of` (queries, keys) cannot be pooled to so many rows and columns."""
    for name, count, size, what in (
        ("rows", rows, of[0], "queries"),
        ("cols", columns, of[1], "keys"),
    ):
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"map({name}=...) is a whole number, not {type(count).__name__}")
        if not 1 <= count <= size:
            raise ValueError(
                f"map({name}={count}) does not fit {size} {what}; it takes 1 to {size}"
            )


def segments(ids: Any, how: str, *, of: tuple[int, int], batch: int, device: torch.device) -> Cells:
    """Return a row and a column for each id, for a matrix `of` (queries, keys).

    `ids` are (key,) or (batch, key), for queries and keys alike, or a pair (query ids, key ids) of
    such.
    """
    _check_how(how)
    if isinstance(ids, tuple) and len(ids) == 2 and not all(isinstance(part, int) for part in ids):
        row_of_query, column_of_key = (_ids(part, device) for part in ids)
    else:
        column_of_key = _ids(ids, device)
        skipped = max(column_of_key.shape[-1] - of[0], 0)  # the last query stands at the last key
        row_of_query = column_of_key[:, skipped:]
    for name, part, size in (("queries", row_of_query, of[0]), ("keys", column_of_key, of[1])):
        if part.shape[-1] != size or len(part) not in (1, batch):
            raise ValueError(
                f"segments number {name} by a tensor of shape {tuple(part.shape)}; there are "
                f"{size} {name} in a batch "
                f"of {batch}; two sequences are numbered by segments=(query ids, key ids)"
            )
        if part.numel() and int(part.min()) < 0:
            raise ValueError(
                f"segments has the id {int(part.min())}; ids count from 0, one for each row of the "
                "map"
            )
    rows, columns = (
        int(part.max()) + 1 if part.numel() else 0 for part in (row_of_query, column_of_key)
    )
    by_query = rows == of[0] and bool((row_of_query == torch.arange(rows, device=device)).all())
    return Cells(lambda: (row_of_query, column_of_key), rows, columns, how, by_query=by_query)


def _check_how(how: str) -> None:
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
