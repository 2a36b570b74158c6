"""Rectangles of the attention matrix, some queries x some keys, and what an edit makes of them.

`mask & ~rectangle` hides the keys from the queries. `Raised(rectangle, ln 4)` as a bias lets the
keys count four times as much. Both are values of positions, so that one definition holds while a
text grows token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .biases import Bias, SumOfBiases
from .definition import Attention
from .mask import Both, Mask, Opposite, everyone
from .pairs import Pairs, Spans, pick
from .values import format_shape

SMALLEST = 16  # positions of a table, at least


@dataclass(frozen=True, eq=False)
class Rectangle(Mask):
    """Let some queries see some keys in some heads, and nothing else; `~rectangle` hides these keys
    from these queries.

    A table says for each position whether it belongs to the rectangle. A position beyond the
    table's end has the value of the last column, so that a table of any length holds for texts of
    any length.

    Args:
        keys: (batch, position) bool; with one row, all sequences share it. queries: The same for
        the queries; None is every query. heads: (heads,) bool; None is every head. by_row: Whether
        `queries` numbers the queries of the call from 0, as cross-attention needs, where a query
        has
            no position among the keys.

    Example:
        >>> import torch, telescope as ts
        >>> from telescope.attention.rectangle import Rectangle
        >>> (ts.causal & ~Rectangle(torch.tensor([[False, True, False]]))).block(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    """

    keys: Bool[Tensor, "sequences position"]
    queries: Bool[Tensor, "sequences_of_queries position_of_queries"] | None = None
    heads: Bool[Tensor, " heads"] | None = None
    by_row: bool = False

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        inside = _look_up(self.keys, at.batch, at.key)
        if self.queries is not None:
            inside = inside & self._rows(at)
        if self.heads is not None:
            inside = inside & pick(self.heads, at.head)
        return inside

    def spans(self, at: Pairs, keys: int) -> Spans:
        inside = _look_up(
            self.keys, at.batch, torch.arange(keys, device=at.batch.device)[None, None, None]
        )
        if not keys or not inside.shape[-1]:
            return Spans.unknown(at, keys)
        count = inside.sum(-1, keepdim=True)
        first = inside.int().argmax(-1, keepdim=True)
        past = torch.where(count == 0, first, keys - inside.flip(-1).int().argmax(-1, keepdim=True))
        rows = (
            torch.ones_like(at.query, dtype=torch.bool) if self.queries is None else self._rows(at)
        )
        if self.heads is not None:
            rows = rows & pick(self.heads, at.head)
        return Spans(first.where(rows, 0), past.where(rows, 0), bool((past - first == count).all()))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        for name, table in (("keys", self.keys), ("queries", self.queries)):
            if table is not None and (table.shape[0] not in (1, batch) or not table.shape[1]):
                raise ValueError(
                    f"a rectangle's {name} have shape {tuple(table.shape)}; it takes (batch, "
                    "position), with one row "
                    f"or {batch}, and at least one position"
                )
        if self.heads is not None and len(self.heads) != heads:
            raise ValueError(f"a rectangle has {len(self.heads)} heads; this attention has {heads}")

    @property
    def same_for_all_queries(self) -> bool:
        return self.queries is None

    def _rows(self, at: Pairs) -> Tensor:
        """Return whether each query of `at` belongs to the rectangle."""
        assert self.queries is not None
        return _look_up(self.queries, at.batch, at.row if self.by_row else at.query)

    def __repr__(self) -> str:
        parts = [f"keys {_format(self.keys)}"]
        parts += (
            []
            if self.queries is None
            else [f"{'rows' if self.by_row else 'queries'} {_format(self.queries)}"]
        )
        if self.heads is not None:
            parts.append(f"heads {', '.join(map(str, self.heads.nonzero().flatten().tolist()))}")
        return f"rectangle({', '.join(parts)})"


def _look_up(table: Bool[Tensor, "sequences position"], batch: Tensor, position: Tensor) -> Tensor:
    """Return table[batch, position], where a position beyond the end has the value of the last
    column.
    """
    return pick(table, batch, position.clamp(0, table.shape[1] - 1))


def table_of(
    ranges: Sequence[Sequence[tuple[int, int | None]]],
) -> Bool[Tensor, "sequences position"]:
    """Return the table of these ranges, one list for each sequence; a range without an end goes on
    for ever.

    The length is a power of two: kernels are compiled for the shape of a table, and not for its
    content.
    """
    ends = [
        end for row in ranges for start, stop in row for end in (start, stop) if end is not None
    ]
    size = max(SMALLEST, 1 << max(ends, default=0).bit_length())
    table = torch.zeros(len(ranges), size, dtype=torch.bool)
    for row, own in zip(table, ranges, strict=True):
        for start, stop in own:
            row[start:stop] = True
    return table


def runs_of(row: Bool[Tensor, " position"]) -> list[range]:
    """Return the runs of True in a row, in order."""
    edges = torch.diff(row.int(), prepend=row.new_zeros(1).int(), append=row.new_zeros(1).int())
    starts = (edges == 1).nonzero().flatten().tolist()
    stops = (edges == -1).nonzero().flatten().tolist()
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _format(table: Tensor) -> str:
    """Return the positions of a table for printing: "10 to 39, from 200 on", or its shape for
    several sequences.
    """
    if len(table) > 1:
        return format_shape(table)
    end = table.shape[1]
    runs = [_format_run(run, end) for run in runs_of(table[0])]
    return ", ".join([*runs[:3], *(["…"] if len(runs) > 3 else [])]) or "none"


def _format_run(run: range, end: int) -> str:
    if run.stop == end:
        return f"from {run.start} on"
    return str(run.start) if len(run) == 1 else f"{run.start} to {run.stop - 1}"


@dataclass(frozen=True, eq=False)
class Raised(Bias):
    """Add one number to the scores inside of a rectangle: with ln α its keys count α times as
    much.
    """

    rectangle: Rectangle
    by: float

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.added(at, torch.float64)

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        return self.rectangle.sees(at).to(dtype) * self.by

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.rectangle.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def __repr__(self) -> str:
        return f"{self.by:g} in {self.rectangle!r}"


def hide(attention: Attention, rectangle: Rectangle) -> Attention:
    """Return the definition with the keys of the rectangle hidden from its queries."""
    return attention.with_extra_mask(~rectangle)


def raise_scores(attention: Attention, rectangle: Rectangle, by: float) -> Attention:
    """Return the definition with `by` added to the scores of the rectangle, beside the bias that it
    has.
    """
    raised = Raised(rectangle, by)
    bias = attention.bias
    return replace(
        attention, bias=raised if bias is None else SumOfBiases((_as_bias(bias), raised))
    )


def without_other_heads(attention: Attention, heads: Sequence[int]) -> Attention:
    """Return the definition without the rectangles, hidden or raised, that concern none of these
    heads.
    """

    def concerns(rectangle: Rectangle) -> bool:
        return rectangle.heads is None or bool(rectangle.heads[list(heads)].any())

    parts = attention.mask.masks if isinstance(attention.mask, Both) else (attention.mask,)
    kept = [
        part
        for part in parts
        if not (isinstance(part, Opposite) and isinstance(part.mask, Rectangle))
        or concerns(part.mask)
    ]
    added = attention.bias.biases if isinstance(attention.bias, SumOfBiases) else (attention.bias,)
    left = [
        _as_bias(one)
        for one in added
        if one is not None and not (isinstance(one, Raised) and not concerns(one.rectangle))
    ]
    if len(kept) == len(parts) and len(left) == sum(one is not None for one in added):
        return attention
    bias = None if not left else left[0] if len(left) == 1 else SumOfBiases(tuple(left))
    return replace(attention, mask=reduce(and_, kept, everyone), bias=bias)


def _as_bias(bias: object) -> Bias:
    assert isinstance(bias, Bias)  # Attention wraps functions
    return bias
