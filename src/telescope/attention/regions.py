"""Regions of the attention matrix: rectangles that an edit hides or raises, and padding.

`mask & ~rectangle` hides keys from queries. `Raised(rectangle, ln 4)` as a bias lets the keys count
four times as much. Both are values of positions, so that one definition holds while a text grows.
`RealQueries` keeps the meaningless rows of padding queries out of every statistic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .definition import Attention
from .mask import Both, Mask, Opposite, Pairs, Seen, Spans, everyone
from .masks import Keep, Left, Lengths
from .restrict import Renumbered
from .scores import Added, Bias, FromAdditive, SumOfBiases
from .values import format_shape, pick

SMALLEST = 16  # positions of a table, at least


@dataclass(frozen=True, eq=False)
class Rectangle(Mask):
    """Let some queries see some keys in some heads, and nothing else; `~rectangle` hides these keys
    from these queries.

    A table says for each position whether it belongs to the rectangle. A position beyond the
    table's end has the value of the last column, so that a table of any length holds for texts of
    any length.

    Args:
        keys: (batch, position) bool; with one row, all sequences share it.
        queries: The same for the queries; None is every query.
        heads: (heads,) bool; None is every head.
        by_row: Whether `queries` numbers the queries of the call from 0, as cross-attention needs,
            where a query has no position among the keys.

    Example:
        >>> import torch, telescope as ts
        >>> from telescope.attention import Rectangle
        >>> second = Rectangle(torch.tensor([[False, True, False]]))
        >>> (ts.causal & ~second).block(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    """

    keys: Bool[Tensor, "sequences position"]
    queries: Bool[Tensor, "sequences_of_queries position_of_queries"] | None = None
    heads: Bool[Tensor, " heads"] | None = None
    by_row: bool = False

    def sees(self, at: Pairs) -> Seen:
        inside = _look_up(self.keys, at.batch, at.key)
        every_row = self.queries is None and self.heads is None
        return inside if every_row else inside & self._rows(at)

    def spans(self, at: Pairs, keys: int) -> Spans:
        if not keys:
            return Spans.unknown(at, keys)
        every_key = torch.arange(keys, device=at.batch.device)[None, None, None]
        # The span around the rectangle's keys for queries that belong to it, no keys for others.
        around = Spans.around(_look_up(self.keys, at.batch, every_key))
        rows = self._rows(at)
        return Spans(around.start.where(rows, 0), around.stop.where(rows, 0), around.whole)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        for name, table in (("keys", self.keys), ("queries", self.queries)):
            if table is not None and (table.shape[0] not in (1, batch) or not table.shape[1]):
                raise ValueError(
                    f"a rectangle's {name} have shape {tuple(table.shape)}; it takes (batch, "
                    f"position), with one row or {batch}, and at least one position"
                )
        if self.heads is not None and len(self.heads) != heads:
            raise ValueError(f"a rectangle has {len(self.heads)} heads; this attention has {heads}")

    @property
    def same_for_all_queries(self) -> bool:
        return self.queries is None

    def _rows(self, at: Pairs) -> Tensor:
        """Return whether each query of `at` belongs to the rectangle, in each head."""
        rows = torch.ones_like(at.query, dtype=torch.bool)
        if self.queries is not None:
            rows = _look_up(self.queries, at.batch, at.row if self.by_row else at.query)
        return rows if self.heads is None else rows & pick(self.heads, at.head)

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
    # The next power of two above the last position.
    size = max(SMALLEST, 1 << max(ends, default=0).bit_length())
    table = torch.zeros(len(ranges), size, dtype=torch.bool)
    for row, own in zip(table, ranges, strict=True):
        for start, stop in own:
            row[start:stop] = True
    return table


def runs_of(row: Bool[Tensor, " position"]) -> list[range]:
    """Return the runs of True in a row, in order."""
    # +1 where a run begins, -1 where it ends.
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
    # Three runs are enough to recognise a region.
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

    def __call__(self, at: Pairs) -> Added:
        return self.added(at, torch.float64)

    def added(self, at: Pairs, dtype: torch.dtype) -> Added:
        return self.rectangle.sees(at).to(dtype) * self.by

    def check(self, **size: int) -> None:
        self.rectangle.check(**size)

    def __repr__(self) -> str:
        return f"{self.by:g} in {self.rectangle!r}"


def hide(attention: Attention, rectangle: Rectangle) -> Attention:
    """Return the definition with the keys of the rectangle hidden from its queries."""
    return attention.with_extra_mask(~rectangle)


def raise_scores(attention: Attention, rectangle: Rectangle, by: float) -> Attention:
    """Return the definition with `by` added to the scores of the rectangle, beside the bias that it
    has.
    """
    return attention.with_extra_bias(Raised(rectangle, by))


def rectangles_of(attention: Attention) -> list[Rectangle]:
    """Return the rectangles that a definition hides, and those that it raises."""
    masks = [part.mask for part in attention.mask.parts if isinstance(part, Opposite)]
    hidden = [mask for mask in masks if isinstance(mask, Rectangle)]
    return hidden + [one.rectangle for one in attention.biases if isinstance(one, Raised)]


def without_other_heads(attention: Attention, heads: Sequence[int]) -> Attention:
    """Return the definition without the rectangles, hidden or raised, that concern none of these
    heads.
    """

    # A region without heads concerns all of them.
    def concerns(rectangle: Rectangle) -> bool:
        return rectangle.heads is None or bool(rectangle.heads[list(heads)].any())

    parts = attention.mask.parts
    # Drop the rectangles of other heads: those that hide, then those that raise.
    kept = [
        part
        for part in parts
        if not (isinstance(part, Opposite) and isinstance(part.mask, Rectangle))
        or concerns(part.mask)
    ]
    added = attention.biases
    left = [one for one in added if not isinstance(one, Raised) or concerns(one.rectangle)]
    # Reuse the definition where nothing is dropped.
    if len(kept) == len(parts) and len(left) == len(added):
        return attention
    bias = left[0] if len(left) == 1 else SumOfBiases(tuple(left)) if left else None
    return replace(attention, mask=reduce(and_, kept, everyone), bias=bias)


ROWS = 1024  # queries of a block in which a mask given as a function or a tensor is evaluated


# ------------------------------------------------------------------------------------------ padding


@dataclass(frozen=True, eq=False)
class RealQueries(Mask):
    """Hide every key from padding queries: those whose own token is hidden by the mask `padding`.

    In self-attention a query and the key at its position are one token, and `ahead` is 0. In
    cross-attention `padding` is over the tokens of the queries' own sequence.

    ahead  how many tokens that sequence has more than there are keys. Both are aligned at the end:
           the last query is its last token, so that the mask stays right while a decoder appends
           queries.
    """

    padding: Mask
    ahead: int = 0

    def sees(self, at: Pairs) -> Seen:
        # Ask whether the query's own token may be seen, in place of the key.
        return self.padding.sees(replace(at, key=at.query + self.ahead if self.ahead else at.query))

    def spans(self, at: Pairs, keys: int) -> Spans:
        real = self.sees(at)
        # By this mask a real query sees every key, and a padding query none.
        return Spans(torch.zeros_like(real, dtype=torch.long), real.long() * keys, True)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.padding.check(batch=batch, heads=heads, queries=queries, keys=keys + self.ahead)

    def __repr__(self) -> str:
        return "real queries"


@dataclass(frozen=True, eq=False)
class SelectedQueries(RealQueries):
    """Hide every key from queries that a user did not select. They are no padding: keys at their
    positions count.
    """

    def __repr__(self) -> str:
        return "selected queries"


def find_padding(
    attention: Attention, *, batch: int, heads: int, size: tuple[int, int], device: torch.device
) -> Mask | None:
    """Return the mask of the keys that are no padding in a self-attention; None if nothing is
    padding.

    Padding is what a mask made by `padding` hides. In a mask or bias given as a tensor or a
    function, padding is a token that no query may see, not even itself, if every other token sees
    itself and all heads agree. Where heads differ, keys are hidden for other reasons than padding,
    and all queries count as real.
    """
    parts = attention.mask.parts
    # Masks made by `padding` say it themselves ...
    found = [part for part in parts if isinstance(_unwrap(part), Lengths | Left | Keep)]
    rules: list[Callable[[Pairs], Tensor]] = [
        part.sees for part in parts if _unwrap(part).is_arbitrary
    ]
    rules += [
        partial(_is_finite, bias) for bias in attention.biases if isinstance(bias, FromAdditive)
    ]
    for rule in rules:
        # ... in other masks and biases it has to be found.
        keep = _find_unseen_keys(rule, batch, heads, size, device)
        found += [] if keep is None else [Keep(keep)]
    return None if not found else found[0] if len(found) == 1 else Both(tuple(found))


def _is_finite(bias: FromAdditive, at: Pairs) -> Tensor:
    return bias(at) > -torch.inf


def include_padding_queries(attention: Attention) -> Attention:
    """Return the definition without its `RealQueries` mask, so that padding queries count again."""
    parts = attention.mask.parts
    # Take the masks of padding queries out, and keep the others as they are.
    rest = [part for part in parts if not isinstance(_unwrap(part), RealQueries)]
    return (
        attention
        if len(rest) == len(parts)
        else replace(attention, mask=reduce(and_, rest, everyone))
    )


def real_query_masks(attention: Attention) -> list[Mask]:
    """Return the parts of the mask by which padding queries see nothing."""
    return [part for part in attention.mask.parts if isinstance(_unwrap(part), RealQueries)]


def first_real_key(
    attention: Attention,
    *,
    batch: int,
    heads: int,
    size: tuple[int, int],
    across: bool,
    device: torch.device,
) -> Int[Tensor, " #batch"]:
    """Return the position of the first key that is no padding, for each sequence, or one number for
    all.

    With `across` the keys are another sequence than the queries, and padding is every key that all
    queries are denied. Otherwise padding is what `RealQueries` leaves out.
    """
    parts = attention.mask.parts
    real = _real_keys(parts, batch=batch, heads=heads, keys=size[1], across=across, device=device)
    if real is None:
        return torch.zeros(1, dtype=torch.long, device=device)
    # The first True of each row.
    return real.int().argmax(-1)


def _real_keys(
    parts: Sequence[Mask], *, batch: int, heads: int, keys: int, across: bool, device: torch.device
) -> Bool[Tensor, "#batch key"] | None:
    """Return which keys are no padding, by the masks that are joined by &; None if none of them
    tells padding.
    """
    at = Pairs.block(range(1), range(keys), of=(1, keys), batch=batch, heads=heads, device=device)
    if across:
        # Across sequences, what is hidden from every query is padding.
        seen = [part.sees(at) for part in parts if part.same_for_all_queries and part != everyone]
    else:
        real = [
            part
            for part in map(_unwrap, parts)
            if isinstance(part, RealQueries) and _is_padding(part)
        ]
        # Tokens before those that a mask knows count as real.
        tokens = [(part, at.key + part.ahead) for part in real]
        seen = [
            part.padding.sees(replace(at, key=token.clamp(min=0))) | (token < 0)
            for part, token in tokens
        ]
    return reduce(and_, seen).any(1)[:, 0] if seen else None


def real_tokens(
    attention: Attention,
    *,
    batch: int,
    heads: int,
    size: tuple[int, int],
    across: bool,
    device: torch.device,
) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]]:
    """Return which queries and which keys of a recorded definition are tokens that count.

    Queries are left out by `RealQueries`. Keys are, in self-attention, the tokens of the queries
    and of those before them; in cross-attention, every key that some query may see by the masks
    that are the same for all queries.
    """
    queries, keys = size
    # Every query counts until a mask of padding says otherwise.
    rows = torch.ones(batch, queries, dtype=torch.bool, device=device)
    at = Pairs.block(range(queries), range(0), of=size, batch=batch, heads=heads, device=device)
    for part in filter(_is_padding, real_query_masks(attention)):
        rows = rows & part.sees(at).any(1)[..., 0]
    parts = attention.mask.parts
    # Every key counts unless a mask tells padding.
    columns = _real_keys(parts, batch=batch, heads=heads, keys=keys, across=across, device=device)
    if columns is None:
        columns = torch.ones(batch, keys, dtype=torch.bool, device=device)
    return rows, columns.expand(batch, keys)


def _is_padding(real: Mask) -> bool:
    """Return whether the queries that a `RealQueries` mask hides are padding."""
    return not isinstance(_unwrap(real), SelectedQueries)


def _unwrap(mask: Mask) -> Mask:
    """Return the mask of the full attention from which a restricted one was made."""
    return _unwrap(mask.mask) if isinstance(mask, Renumbered) else mask


def _find_unseen_keys(
    sees: Callable[[Pairs], Tensor],
    batch: int,
    heads: int,
    size: tuple[int, int],
    device: torch.device,
) -> Bool[Tensor, "batch key"] | None:
    """Return False for each token that no query may see, itself included; None if nothing counts as
    padding.
    """
    queries, keys = size
    first = size[1] - size[0]
    at = Pairs.block(range(queries), range(0), of=size, batch=batch, heads=heads, device=device)
    # First the diagonal alone: without padding every token sees itself, and we are done.
    itself = sees(replace(at, key=at.query)).any(1)[..., 0].expand(batch, queries)
    if bool(itself.all()):
        return None
    # Some token does not see itself: look at every pair, a block of queries at a time.
    seen = itself.clone()
    columns = range(first, keys)
    for row in range(0, queries, ROWS):
        rows = range(row, min(row + ROWS, queries))
        block = sees(Pairs.block(rows, columns, of=size, batch=batch, heads=heads, device=device))
        # Heads that differ hide keys for another reason than padding.
        if bool((block != block[:, :1]).any()):
            return None
        # A token counts as seen if any query sees it.
        seen |= block.expand(*block.shape[:3], queries)[:, 0].any(1)
    if bool((seen & ~itself).any()):
        return None  # where tokens see others and not themselves, a hidden key need not be padding
    # Keys before the first query are no padding.
    keep = torch.ones(batch, keys, dtype=torch.bool, device=device)
    keep[:, first:] = seen
    return None if bool(keep.all()) else keep
