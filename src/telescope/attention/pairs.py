"""Who asks and who is asked: the pairs of a query and a key that masks and biases speak about."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """The (query, key) pairs of a block of the attention matrix, as indices that broadcast to its shape.

    `query` and `key` are positions on one line: the last query stands at the last key, so `key <= query` is right
    with a cache too. `row` counts the queries from zero, for what is stored query by query. Pairs that form no block
    have a batch axis in `row` and `key` too, or a key for each query. A compiled kernel asks about one pair at a time:
    there all five are scalars.
    """

    batch: Int[Tensor, "#batch 1 1 1"]
    head: Int[Tensor, "1 head 1 1"]
    row: Int[Tensor, "#batch 1 #query 1"]
    query: Int[Tensor, "#batch 1 #query 1"]
    key: Int[Tensor, "#batch 1 #query #key"]

    @classmethod
    def block(
        cls,
        rows: range,
        columns: range,
        *,
        of: tuple[int, int],
        batch: int | range = 1,
        heads: int | range = 1,
        device: torch.device | None = None,
    ) -> "Pairs":
        """The pairs of `rows` x `columns` in a matrix of size `of` = (queries, keys). A number n means range(n)."""
        queries, keys = of
        batch, heads = (range(some) if isinstance(some, int) else some for some in (batch, heads))
        row = _indices(rows, device)[:, None]
        return cls(
            batch=_indices(batch, device)[:, None, None, None],
            head=_indices(heads, device)[None, :, None, None],
            row=row[None, None],
            query=row[None, None] + (keys - queries),
            key=_indices(columns, device)[None, None, None],
        )

    @classmethod
    def all(cls, scores: Tensor) -> "Pairs":
        """The pairs of these scores (batch, head, query, key), which are all there are."""
        batch, heads, queries, keys = scores.shape
        whole = (range(queries), range(keys))
        return cls.block(*whole, of=(queries, keys), batch=batch, heads=heads, device=scores.device)


def _indices(positions: range, device: torch.device | None) -> Tensor:
    return torch.arange(positions.start, positions.stop, positions.step, device=device)


def pick(table: Tensor, *at: Tensor) -> Tensor:
    """table[at], in which an axis of size one stands for every index of it, as in broadcasting."""
    table = table.to(at[0].device)
    return table[
        tuple(where if size > 1 else torch.zeros_like(where) for where, size in zip(at, table.shape, strict=True))
    ]


def must_fit(what: str, tensor: Tensor, axes: str, sizes: tuple[int, ...]) -> None:
    """Raise a ValueError where `pick` could not serve an attention of these sizes from this tensor."""
    if any(have not in (1, need) for have, need in zip(tensor.shape, sizes, strict=True)):
        raise ValueError(
            f"{what} has shape {tuple(tensor.shape)}; "
            f"this attention needs {axes} = {sizes}, or 1 in place of any of them"
        )
