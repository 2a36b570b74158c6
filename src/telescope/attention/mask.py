"""The base class of masks, how masks combine, and the pairs of a query and a key that they are
asked about. True = may attend, everywhere in Telescope.

A mask is a rule about pairs: any block of it can be computed, and the n x n matrix is never stored.
Positions are aligned at the end: the last query is at the position of the last key.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import and_, or_
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .values import Part, is_tracing, pick

Indices = int | range  # a number n stands for range(n)
Device = torch.device | None
# What a mask returns for a block: axes without influence on it may have size 1.
Seen = Bool[Tensor, "#batch #head #query #key"]


@dataclass(frozen=True)
class Pairs:
    """Index the (query, key) pairs of a block of the matrix by tensors that broadcast to its shape.

    Pairs that form no block have a batch axis in `row` and `key` too, or a key for each query.
    Inside a compiled kernel all five are scalars, one pair at a time.

    Args:
        batch, head: Which sequence, and which query head.
        row: Which query, counted from zero, for what is stored query by query.
        query: The position of the query. The last query is at the position of the last key, so that
            `key <= query` is causal with a cache too.
        key: The position of the key, counted from zero.

    Example:
        >>> import telescope as ts
        >>> at = ts.Pairs.block(2, 3, of=(2, 3))
        >>> (at.query - at.key)[0, 0].tolist()
        [[1, 0, -1], [2, 1, 0]]
        >>> import torch
        >>> ts.Pairs.all(torch.zeros(1, 1, 2, 3)).key.flatten().tolist()
        [0, 1, 2]
        >>> at.pick(torch.tensor([[10, 11, 12]]), "head", "key").shape
        torch.Size([1, 1, 1, 3])
    """

    batch: Int[Tensor, "#batch 1 1 1"]
    head: Int[Tensor, "1 head 1 1"]
    row: Int[Tensor, "#batch 1 #query 1"]
    query: Int[Tensor, "#batch 1 #query 1"]
    key: Int[Tensor, "#batch 1 #query #key"]
    # A field without a part in equality: it only tells `pick` that slices do.
    ranges: dict[str, range] = field(init=False, default_factory=dict, repr=False, compare=False)
    """The ranges of the axes that are ranges, so that `pick` can slice. `dataclasses.replace` drops
    them.
    """

    @classmethod
    def block(
        cls,
        rows: Indices,
        columns: Indices,
        *,
        of: tuple[int, int],
        batch: Indices = 1,
        heads: Indices = 1,
        device: torch.device | None = None,
    ) -> "Pairs":
        """Return the pairs of `rows` x `columns` in a matrix of size `of` = (queries, keys).

        Pass the symbolic sizes of torch.export as numbers: a range would make them constants.

        Args:
            rows, columns: which queries and which keys; a number n stands for range(n).
            of: (queries, keys), the size of the full matrix.
            batch, heads: which sequences and heads; a number n stands for range(n).
            device: where the tensors are made.
        """
        # Sizes of torch.export are symbols, which are neither int nor range.
        concrete = all(
            isinstance(indices, int | range) for indices in (batch, heads, rows, columns)
        )
        ahead = of[1] - of[0]
        # Under torch.compile nothing is cached, and symbolic sizes stay symbols.
        if torch.compiler.is_compiling() or not concrete:
            row = _indices(rows, 2, device)
            sequences = _indices(batch, 0, device)
            head = _indices(heads, 1, device)
            return cls(sequences, head, row, row + ahead, _indices(columns, 3, device))
        if device is None or device.type != "cpu" or max(of) > MAX_CACHED_SIZE or is_tracing():
            return _make_block(rows, columns, ahead, batch, heads, device)
        # All layers of a model ask for the same few blocks. A block that somebody has written to
        # is made again, with all others.
        at, versions = _cached_block(rows, columns, ahead, batch, heads)
        if _versions(at) != versions:
            _cached_block.cache_clear()
            at, _ = _cached_block(rows, columns, ahead, batch, heads)
        return at

    @classmethod
    def all(cls, scores: Tensor) -> "Pairs":
        """Return the pairs of a full matrix of scores (batch, head, query, key).

        Args:
            scores: a tensor of the matrix's shape; its numbers are not read.
        """
        batch, heads, queries, keys = scores.shape
        return cls.block(
            queries, keys, of=(queries, keys), batch=batch, heads=heads, device=scores.device
        )

    def pick(self, table: Tensor, *axes: str) -> Tensor:
        """Return table[axes], which broadcasts to the block; for a block of ranges a view of it.

        `axes` names the axes of the table, out of "batch", "head", "row", "query" and "key" in this
        order; an axis of size 1 holds for every index.

        Args:
            table: a tensor with the axes that are named.
            axes: names of the axes of the table, out of "batch", "head", "row", "query" and "key"
                in this order; an axis of size 1 holds for every index.
        """
        table = table.to(self.key.device)
        # Pairs that form no block are looked up one by one.
        if not self.ranges:
            return pick(table, *(getattr(self, axis) for axis in axes))
        if len(axes) == 4 and all(
            self.ranges.get(axis) == range(n) for axis, n in zip(axes, table.shape, strict=True)
        ):
            return table  # the block is the full table
        slices: list[slice | None] = [None] * 4
        for axis, size in zip(axes, table.shape, strict=True):
            indices = self.ranges.get(axis) if size != 1 else range(1)
            if indices is None or indices.step != 1 or indices.start < 0 or indices.stop > size:
                return pick(table, *(getattr(self, axis) for axis in axes))
            slices[DIMENSIONS[axis]] = slice(indices.start, indices.stop)
        # A block of ranges is a view of the table.
        return table[tuple(slices)]


DIMENSIONS = {"batch": 0, "head": 1, "row": 2, "query": 2, "key": 3}  # of the axes, in a block
SHAPES = tuple(tuple(-1 if axis == dimension else 1 for axis in range(4)) for dimension in range(4))
# Queries or keys of a matrix whose blocks are cached, at most: 64 such blocks take 24 MiB.
MAX_CACHED_SIZE = 2**14


def _indices(indices: Indices, dimension: int, device: Device) -> Int[Tensor, "..."]:
    """Return range(n) or a range along one axis of four; a number n may be symbolic."""
    span = (indices.start, indices.stop, indices.step) if isinstance(indices, range) else (indices,)
    return torch.arange(*span, device=device).view(SHAPES[dimension])


def _make_block(
    rows: Indices, columns: Indices, ahead: int, batch: Indices, heads: Indices, device: Device
) -> Pairs:
    """Return the pairs of a block whose first query is at the position rows.start + ahead."""
    # Every axis as a range; the queries begin `ahead` positions later than their rows.
    given = {"batch": batch, "head": heads, "row": rows, "key": columns}
    ranges = {axis: range(size) if isinstance(size, int) else size for axis, size in given.items()}
    ranges["query"] = range(
        ranges["row"].start + ahead, ranges["row"].stop + ahead, ranges["row"].step
    )
    at = Pairs(*(_indices(ranges[axis], place, device) for axis, place in DIMENSIONS.items()))
    # The dataclass is frozen, its dict is not.
    at.ranges.update(ranges)
    return at


@lru_cache(maxsize=64)
def _cached_block(
    rows: Indices, columns: Indices, ahead: int, batch: Indices, heads: Indices
) -> tuple[Pairs, tuple[int, ...]]:
    """Return a block on the CPU, and the versions of its tensors when it was made."""
    with torch.inference_mode(False):  # an inference tensor could not be saved for a gradient later
        at = _make_block(rows, columns, ahead, batch, heads, torch.device("cpu"))
    return at, _versions(at)


def _versions(at: Pairs) -> tuple[int, ...]:
    """Return the version counters of the tensors, which grow when one is written to."""
    tensors = (at.batch, at.head, at.row, at.query, at.key)
    return tuple([tensor._version for tensor in tensors])


@dataclass(frozen=True)
class Spans:
    """Bound the keys that each query sees: all of them lie in range(start, stop).

    `whole` is True if every query sees all keys of its range. An empty range has start = stop.

    Attributes:
        start: the first key of each range, an int64 tensor that broadcasts to (batch, head, query).
        stop: one past the last key of each range.
        whole: whether every query sees all keys of its range.

    Example:
        >>> import telescope as ts
        >>> at = ts.Pairs.block(3, 3, of=(3, 3))
        >>> found = ts.causal.spans(at, keys=3)
        >>> found.stop.flatten().tolist(), found.whole
        ([1, 2, 3], True)
        >>> Spans = type(found)
        >>> Spans.around(ts.window(2).block(3, 3)).start.flatten().tolist()
        [0, 0, 1]
        >>> Spans.between(found.start, found.stop + 1, keys=3).stop.flatten().tolist()
        [2, 3, 3]
        >>> Spans.unknown(at, keys=3).empty.any().item()
        False
        >>> found.outside(at, keys=3).start.flatten().tolist()
        [1, 2, 3]
    """

    start: Int[Tensor, "#batch #head #query 1"]
    stop: Int[Tensor, "#batch #head #query 1"]
    whole: bool

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, keys: int, *, whole: bool = True) -> "Spans":
        """Return the spans range(start, stop), cut to the existing keys.

        Args:
            start: the first key of each range.
            stop: one past the last key of each range.
            keys: how many keys there are; ranges are cut to them.
            whole: whether every query sees all keys of its range.
        """
        # Cut to the keys that exist, and never let a span end before it starts.
        start = start.clamp(0, keys)
        return cls(start, torch.maximum(stop.clamp(0, keys), start), whole)

    @classmethod
    def around(cls, inside: Bool[Tensor, "#batch #head #query key"]) -> "Spans":
        """Return spans around the True keys of each row; all keys of the matrix are given.

        Args:
            inside: which keys each query sees.
        """
        count = inside.sum(-1, keepdim=True)
        first = inside.int().argmax(-1, keepdim=True)
        behind = inside.flip(-1).int().argmax(-1, keepdim=True)
        past = torch.where(count == 0, first, inside.shape[-1] - behind)
        return cls(first, past, bool((past - first == count).all()))

    @classmethod
    def unknown(cls, at: Pairs, keys: int) -> "Spans":
        """Return spans over all keys, for a mask that has no tighter bound.

        Args:
            at: the queries.
            keys: how many keys there are.
        """
        return cls(torch.zeros_like(at.query), torch.full_like(at.query, keys), False)

    @property
    def empty(self) -> Tensor:
        """Which queries see nothing."""
        return self.start == self.stop

    def __and__(self, other: "Spans") -> "Spans":
        # The overlap of two ranges is a range, and whole where both are.
        start = torch.maximum(self.start, other.start)
        stop = torch.maximum(torch.minimum(self.stop, other.stop), start)
        return Spans(start, stop, self.whole and other.whole)

    def __or__(self, other: "Spans") -> "Spans":
        """Return one span around both: whole where both touch, or one of them is empty."""
        # An empty span adds nothing, wherever it lies.
        start = torch.where(other.empty, self.start, torch.minimum(self.start, other.start))
        start = torch.where(self.empty, other.start, start)
        stop = torch.where(other.empty, self.stop, torch.maximum(self.stop, other.stop))
        stop = torch.where(self.empty, other.stop, stop)
        # Two spans with a gap between them are no whole span.
        touch = torch.maximum(self.start, other.start) <= torch.minimum(self.stop, other.stop)
        whole = self.whole and other.whole and bool((touch | self.empty | other.empty).all())
        return Spans(start, stop, whole)

    def outside(self, at: Pairs, keys: int) -> "Spans":
        """Return spans of the other keys: tight where spans begin or end with all keys.

        Args:
            at: the queries.
            keys: how many keys there are.
        """
        # Spans at the beginning: what remains is the rest behind them.
        if self.whole and bool((self.empty | (self.start == 0)).all()):
            start = torch.where(self.empty, 0, self.stop)
            return Spans(start, torch.full_like(start, keys), True)
        # Spans at the end: what remains is in front of them.
        if self.whole and bool((self.empty | (self.stop == keys)).all()):
            stop = torch.where(self.empty, keys, self.start)
            return Spans(torch.zeros_like(stop), stop, True)
        return Spans.unknown(at, keys)


class Mask(Part):
    """Decide which keys each query may attend to.

    A subclass defines `sees`, and `check` if it fits only some sizes. `spans` and `for_last_query`
    are optional: with them engines skip hidden keys. Masks combine: `a & b` (both allow), `a | b`
    (one allows), `~a` (a hides).

    Example:
        >>> import telescope as ts
        >>> mask = ts.causal & ts.window(2)
        >>> mask.block(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
        >>> class Even(ts.Mask):
        ...     def sees(self, at):
        ...         return at.key % 2 == 0
        >>> (ts.causal & Even()).block(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
        >>> mask.parts
        (causal, window(2))
        >>> mask.for_last_query(), mask.same_for_all_queries
        (window(2), False)
        >>> # Masks of positions fit every size
        >>> mask.check(batch=1, heads=8, queries=3, keys=3)
        >>> mask.spans(ts.Pairs.block(3, 3, of=(3, 3)), keys=3).start.flatten().tolist()
        [0, 0, 1]
    """

    # Whether the mask comes from a tensor or a function, which may hide padding among other things.
    is_arbitrary: ClassVar[bool] = False

    def sees(self, at: Pairs) -> Seen:
        """Return whether each query may attend to each key; an axis may have size 1.

        Args:
            at: the positions of the queries and keys of a block, as tensors that broadcast.

        Returns:
            A bool tensor (batch, head, query, key), True = may attend.
        """
        raise TypeError(
            f"{type(self).__name__} does not define which keys a query sees; add a method "
            "sees(self, at)"
        )

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this mask does not fit an attention of these sizes.

        Args:
            batch, heads: the number of sequences and of query heads.
            queries, keys: the number of queries and of keys.

        Raises:
            ValueError: the mask does not fit; the sentence says what would.
        """

    @property
    def same_for_all_queries(self) -> bool:
        """Whether all queries see the same keys, so that one row of the mask stands for all."""
        return False

    @property
    def parts(self) -> "tuple[Mask, ...]":
        """The masks that are joined by &; the mask itself where there is one."""
        return (self,)

    def for_last_query(self) -> "Mask":
        """Return the mask for the last query alone, from which `causal` hides nothing."""
        return self

    def spans(self, at: Pairs, keys: int) -> Spans:
        """Return a range around the keys that each query sees; engines skip the rest.

        Args:
            at: the queries, and the positions that they have.
            keys: how many keys there are.

        Returns:
            For each query a range in which all keys lie that it sees.
        """
        return Spans.unknown(at, keys)

    def block(
        self,
        rows: Indices,
        columns: Indices,
        *,
        of: tuple[int, int] | None = None,
        batch: int = 1,
        heads: int = 1,
        device: torch.device | str | None = None,
    ) -> Bool[Tensor, "batch head query key"]:
        """Return the mask of these rows and columns, without forming the rest of the matrix.

        Args:
            rows, columns: Which queries and which keys; a number n stands for range(n).
            of: (queries, keys), the size of the full matrix; None if the block is its end.
            batch, heads, device: How many sequences and heads, and where the block is made.

        Returns:
            A bool tensor (batch, head, row, column), True = may attend; batch and head may be 1.
            A ValueError is raised where the mask does not fit a matrix of this size.
        """
        # A number stands for all rows or columns up to it.
        rows = range(rows) if isinstance(rows, int) else rows
        columns = range(columns) if isinstance(columns, int) else columns
        of = of or (rows.stop, columns.stop)
        self.check(batch=batch, heads=heads, queries=of[0], keys=of[1])
        device = None if device is None else torch.device(device)
        seen = self.sees(Pairs.block(rows, columns, of=of, batch=batch, heads=heads, device=device))
        # Rows and columns are expanded, batch and heads may stay at size 1.
        return seen.expand(*seen.shape[:2], len(rows), len(columns))

    def __and__(self, other: "Mask") -> "Mask":
        return _join(Both, self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _join(Either, self, other)

    def __invert__(self) -> "Mask":
        # ~~a is a itself, so that engines recognise it.
        return self.mask if isinstance(self, Opposite) else Opposite(self)

    def __rand__(self, other: Any) -> "Mask":
        return _join(Both, self, other)

    def __ror__(self, other: Any) -> "Mask":
        return _join(Either, self, other)


@dataclass(frozen=True, eq=False)
class Combination(Mask):
    """Base of `Both` and `Either`: one mask made of several, by & or |."""

    masks: tuple[Mask, ...]

    # The operator, which joins seen keys, spans and masks alike. A builtin, so it binds no self.
    join: ClassVar[Any]

    def __post_init__(self) -> None:
        if not self.masks:
            raise ValueError(f"{type(self).__name__} combines no masks; it takes at least one")

    def sees(self, at: Pairs) -> Seen:
        seen: Tensor = reduce(self.join, [mask.sees(at) for mask in self.masks])
        return seen

    def spans(self, at: Pairs, keys: int) -> Spans:
        spans: Spans = reduce(self.join, [mask.spans(at, keys) for mask in self.masks])
        return spans

    def for_last_query(self) -> Mask:
        mask: Mask = reduce(self.join, [mask.for_last_query() for mask in self.masks])
        return mask

    def check(self, **size: int) -> None:
        for mask in self.masks:
            mask.check(**size)

    @property
    def same_for_all_queries(self) -> bool:
        return all(mask.same_for_all_queries for mask in self.masks)


class Both(Combination):
    """a & b: True where all masks are True."""

    join = and_

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    def __repr__(self) -> str:
        return " & ".join(
            f"({mask})" if isinstance(mask, Either) else repr(mask) for mask in self.masks
        )


class Either(Combination):
    """a | b: True where at least one mask is True."""

    join = or_

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.masks))


@dataclass(frozen=True, eq=False)
class Opposite(Mask):
    """~a: True where `mask` is False."""

    mask: Mask

    def sees(self, at: Pairs) -> Seen:
        return ~self.mask.sees(at)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(at, keys).outside(at, keys)

    def check(self, **size: int) -> None:
        self.mask.check(**size)

    @property
    def same_for_all_queries(self) -> bool:
        return self.mask.same_for_all_queries

    def __repr__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, Combination) else f"~{self.mask}"


def _join(kind: type[Combination], left: Mask, right: Mask) -> Mask:
    """Combine two masks into a flat one, so that engines find `causal` among its parts."""
    if not isinstance(right, Mask):
        raise TypeError(
            f"a mask combines with masks, not with {type(right).__name__}; "
            "a bool tensor with True = may attend becomes a mask by ts.from_tensor(seen)"
        )
    # `everyone` is neutral for & and absorbs |.
    if everyone in (left, right):
        return everyone if kind is Either else right if left == everyone else left
    # A combination of the same kind is taken apart.
    first, second = (mask.masks if type(mask) is kind else (mask,) for mask in (left, right))
    return kind(first + second)


@dataclass(frozen=True, eq=False)
class Everyone(Mask):
    """Every query may attend to every key."""

    same_for_all_queries = True

    def sees(self, at: Pairs) -> Seen:
        # One row of True, which broadcasts over the queries.
        return torch.ones_like(at.key, dtype=torch.bool)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return replace(Spans.unknown(at, keys), whole=True)

    def __repr__(self) -> str:
        return "everyone"


everyone = Everyone()
"""The mask that hides nothing: every query may attend to every key.

Example:
    >>> import telescope as ts
    >>> ts.Attention().mask is ts.everyone
    True
"""
