"""The base class of masks, and how masks combine. True = may attend, everywhere in Telescope.

A mask is a rule about pairs of a query and a key: any block of it can be computed, and the n x n
matrix is never stored. Masks combine with &, | and ~. Positions are aligned at the end: the last
query is at the position of the last key.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import and_, or_
from typing import ClassVar, NoReturn

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .values import Value


@dataclass(frozen=True)
class Pairs:
    """Index the (query, key) pairs of a block of the attention matrix, by integer tensors that
    broadcast to its shape.

    Args:
        batch: Which sequence. head: Which query head. row: Which query, counted from zero, for what
        is stored query by query. query: The position of the query. The last query is at the
        position of the last key, so that `key <= query` is
            causal with a cache too.
        key: The position of the key, counted from zero.

    Pairs that form no block have a batch axis in `row` and `key` too, or a key for each query.
    Inside a compiled kernel all five are scalars, one pair at a time.

    Example:
        >>> import telescope as ts
        >>> at = ts.Pairs.block(2, 3, of=(2, 3))
        >>> (at.query - at.key)[0, 0].tolist()
        [[1, 0, -1], [2, 1, 0]]
    """

    batch: Int[Tensor, "#batch 1 1 1"]
    head: Int[Tensor, "1 head 1 1"]
    row: Int[Tensor, "#batch 1 #query 1"]
    query: Int[Tensor, "#batch 1 #query 1"]
    key: Int[Tensor, "#batch 1 #query #key"]
    ranges: dict[str, range] = field(init=False, default_factory=dict, repr=False, compare=False)
    """The ranges of the axes that are ranges, so that `pick` can slice. `dataclasses.replace` drops
    them.
    """

    @classmethod
    def block(
        cls,
        rows: int | range,
        columns: int | range,
        *,
        of: tuple[int, int],
        batch: int | range = 1,
        heads: int | range = 1,
        device: torch.device | None = None,
    ) -> "Pairs":
        """Return the pairs of `rows` x `columns` in a matrix of size `of` = (queries, keys). A
        number n means range(n).

        Pass the symbolic sizes of torch.export as numbers: a range would make them constants.
        """
        concrete = all(
            isinstance(indices, int | range) for indices in (batch, heads, rows, columns)
        )
        if torch.compiler.is_compiling() or not concrete:
            row = _indices(rows, 2, device)
            return cls(
                batch=_indices(batch, 0, device),
                head=_indices(heads, 1, device),
                row=row,
                query=row + (of[1] - of[0]),
                key=_indices(columns, 3, device),
            )
        if device is None or device.type != "cpu" or max(of) > MAX_CACHED_SIZE or is_tracing():
            return _make_block(rows, columns, of[1] - of[0], batch, heads, device)
        at, versions = _cached_block(rows, columns, of[1] - of[0], batch, heads)
        if (
            at.batch._version,
            at.head._version,
            at.row._version,
            at.query._version,
            at.key._version,
        ) != versions:
            _cached_block.cache_clear()
            at, _ = _cached_block(rows, columns, of[1] - of[0], batch, heads)
        return at

    @classmethod
    def all(cls, scores: Tensor) -> "Pairs":
        """Return the pairs of a full matrix of scores (batch, head, query, key)."""
        batch, heads, queries, keys = scores.shape
        return cls.block(
            queries, keys, of=(queries, keys), batch=batch, heads=heads, device=scores.device
        )

    def pick(self, table: Tensor, *axes: str) -> Tensor:
        """Return table[axes] for these pairs; a table axis of size 1 holds for every index.

        Args:
            table: A tensor with one axis for each of `axes`.
            axes: Names out of "batch", "head", "row", "query", "key", in this order.

        Returns:
            A tensor that broadcasts to the block; for a block of ranges a view of `table`.
        """
        table = table.to(self.key.device)
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
        return table[tuple(slices)]


DIMENSIONS = {"batch": 0, "head": 1, "row": 2, "query": 2, "key": 3}  # of the axes, in a block
SHAPES = tuple(tuple(-1 if axis == dimension else 1 for axis in range(4)) for dimension in range(4))
MAX_CACHED_SIZE = (
    2**14
)  # queries or keys of a matrix whose blocks are cached, at most; 64 such blocks take 24 MiB


def _indices(
    indices: int | range, dimension: int, device: torch.device | None
) -> Int[Tensor, "..."]:
    """Return the numbers of a range along one axis of four. A number, which may be symbolic, means
    range(number).
    """
    if isinstance(indices, range):
        return torch.arange(indices.start, indices.stop, indices.step, device=device).view(
            SHAPES[dimension]
        )
    return torch.arange(indices, device=device).view(SHAPES[dimension])


def _make_block(
    rows: int | range,
    columns: int | range,
    ahead: int,
    batch: int | range,
    heads: int | range,
    device: torch.device | None,
) -> Pairs:
    """Return the pairs of a block whose first query is at the position rows.start + ahead."""
    given = {"batch": batch, "head": heads, "row": rows, "key": columns}
    ranges = {axis: range(size) if isinstance(size, int) else size for axis, size in given.items()}
    ranges["query"] = range(
        ranges["row"].start + ahead, ranges["row"].stop + ahead, ranges["row"].step
    )
    at = Pairs(
        *(
            _indices(ranges[axis], DIMENSIONS[axis], device)
            for axis in ("batch", "head", "row", "query", "key")
        )
    )
    at.ranges.update(ranges)
    return at


@lru_cache(maxsize=64)
def _cached_block(
    rows: int | range, columns: int | range, ahead: int, batch: int | range, heads: int | range
) -> tuple[Pairs, tuple[int, ...]]:
    """Return a cached block on the CPU, and the version counters that change when its tensors are
    written to.
    """
    with torch.inference_mode(False):  # an inference tensor could not be saved for a gradient later
        at = _make_block(rows, columns, ahead, batch, heads, torch.device("cpu"))
    return at, (
        at.batch._version,
        at.head._version,
        at.row._version,
        at.query._version,
        at.key._version,
    )


def is_tracing() -> bool:
    """Return whether tensors made now belong to FakeTensorMode, make_fx, torch.func or
    torch.jit.trace.

    Such tensors must not be cached.
    """
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def pick(table: Tensor, *at: Tensor) -> Tensor:
    """Return table[at], where a table axis of size 1 holds for every index, as in broadcasting."""
    table = table.to(at[0].device)
    return table[
        tuple(
            index if size > 1 else torch.zeros_like(index)
            for index, size in zip(at, table.shape, strict=True)
        )
    ]


def check_shape(what: str, tensor: Tensor, axes: str, sizes: tuple[int, ...]) -> None:
    """Raise a ValueError unless each axis of `tensor` has the size in `sizes`, or size 1."""
    if any(have not in (1, need) for have, need in zip(tensor.shape, sizes, strict=True)):
        raise ValueError(
            f"{what} has shape {tuple(tensor.shape)}; "
            f"this attention needs {axes} = {sizes}, or 1 in place of any of them"
        )


@dataclass(frozen=True)
class Spans:
    """Bound the keys that each query sees: all of them lie in range(start, stop).

    `whole` is True if every query sees all keys of its range. A query that sees nothing has start =
    stop.
    """

    start: Int[Tensor, "#batch #head #query 1"]
    stop: Int[Tensor, "#batch #head #query 1"]
    whole: bool

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, keys: int, *, whole: bool = True) -> "Spans":
        """Return the spans range(start, stop), cut to the existing keys."""
        start = start.clamp(0, keys)
        return cls(start, torch.maximum(stop.clamp(0, keys), start), whole)

    @classmethod
    def unknown(cls, at: Pairs, keys: int) -> "Spans":
        """Return spans over all keys, for a mask that has no tighter bound."""
        return cls(torch.zeros_like(at.query), torch.full_like(at.query, keys), False)

    @property
    def empty(self) -> Tensor:
        """Which queries see nothing."""
        return self.start == self.stop

    def __and__(self, other: "Spans") -> "Spans":
        start = torch.maximum(self.start, other.start)
        stop = torch.maximum(torch.minimum(self.stop, other.stop), start)
        return Spans(start, stop, self.whole and other.whole)

    def __or__(self, other: "Spans") -> "Spans":
        """Return one span around both. It is whole if in every row both touch, or one of them is
        empty.
        """
        start = torch.where(other.empty, self.start, torch.minimum(self.start, other.start))
        start = torch.where(self.empty, other.start, start)
        stop = torch.where(other.empty, self.stop, torch.maximum(self.stop, other.stop))
        stop = torch.where(self.empty, other.stop, stop)
        touch = torch.maximum(self.start, other.start) <= torch.minimum(self.stop, other.stop)
        whole = self.whole and other.whole and bool((touch | self.empty | other.empty).all())
        return Spans(start, stop, whole)

    def outside(self, at: Pairs, keys: int) -> "Spans":
        """Return spans of the remaining keys: tight if every span begins at the first key or ends
        at the last one.
        """
        if self.whole and bool((self.empty | (self.start == 0)).all()):
            return Spans(
                torch.where(self.empty, 0, self.stop), torch.full_like(self.stop, keys), True
            )
        if self.whole and bool((self.empty | (self.stop == keys)).all()):
            return Spans(
                torch.zeros_like(self.start), torch.where(self.empty, keys, self.start), True
            )
        return Spans.unknown(at, keys)


class Mask(Value):
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
    """

    is_arbitrary: ClassVar[bool] = False
    """Whether the mask comes from a tensor or a function of the user, which may hide padding among
    other things.
    """

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        """Return whether each query of `at` may attend to each key; axes without influence may have
        size 1.
        """
        raise TypeError(
            f"{type(self).__name__} does not define which keys a query sees; add a method "
            "sees(self, at)"
        )

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this mask does not fit an attention of these sizes."""

    @property
    def same_for_all_queries(self) -> bool:
        """Whether all queries see the same keys, so that one row of the mask stands for all."""
        return False

    def for_last_query(self) -> "Mask":
        """Return the mask for the last query alone, which may be simpler: `causal` hides nothing
        from that query.
        """
        return self

    def spans(self, at: Pairs, keys: int) -> Spans:
        """Return a range of keys around what each query of `at` sees, so that engines skip the
        rest; by default all.
        """
        return Spans.unknown(at, keys)

    def block(
        self,
        rows: int | range,
        columns: int | range,
        *,
        of: tuple[int, int] | None = None,
        batch: int = 1,
        heads: int = 1,
        device: torch.device | str | None = None,
    ) -> Bool[Tensor, "batch head query key"]:
        """Return the mask of these rows and columns, without forming the rest of the matrix.

        Args:
            rows: Which queries; a number n stands for range(n). columns: Which keys; a number n
            stands for range(n). of: (queries, keys), the size of the full matrix; None if the block
            ends at its last row and column. batch: How many sequences. heads: How many heads.
            device: Where the block is made.

        Returns:
            A bool tensor (batch, head, row, column), True = may attend. Batch and head may have
            size 1 where all agree.

        Raises:
            ValueError: The mask does not fit a matrix of this size.
        """
        rows = range(rows) if isinstance(rows, int) else rows
        columns = range(columns) if isinstance(columns, int) else columns
        of = of or (rows.stop, columns.stop)
        self.check(batch=batch, heads=heads, queries=of[0], keys=of[1])
        device = None if device is None else torch.device(device)
        seen = self.sees(Pairs.block(rows, columns, of=of, batch=batch, heads=heads, device=device))
        return seen.expand(*seen.shape[:2], len(rows), len(columns))

    def __and__(self, other: "Mask") -> "Mask":
        return _join(Both, self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _join(Either, self, other)

    def __invert__(self) -> "Mask":
        return self.mask if isinstance(self, Opposite) else Opposite(self)

    def __bool__(self) -> NoReturn:
        """Raise a TypeError: `a and b`, `a or b` and `not a` would silently return one of the two
        masks, or False.
        """
        raise TypeError(
            f"a mask, {type(self).__name__}, has no truth value, so that `and`, `or` and `not` do "
            "not combine masks; "
            "a & b, a | b and ~a do, and `mask is None` asks whether there is one"
        )


@dataclass(frozen=True, eq=False)
class Combination(Mask):
    """Base of `Both` and `Either`: one mask made of several."""

    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        if not self.masks:
            raise ValueError(f"{type(self).__name__} combines no masks; it takes at least one")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        for mask in self.masks:
            mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    @property
    def same_for_all_queries(self) -> bool:
        return all(mask.same_for_all_queries for mask in self.masks)


class Both(Combination):
    """a & b: True where all masks are True."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen = self.masks[0].sees(at)
        for mask in self.masks[1:]:
            seen = seen & mask.sees(at)
        return seen

    def for_last_query(self) -> Mask:
        return reduce(and_, (mask.for_last_query() for mask in self.masks))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return reduce(and_, (mask.spans(at, keys) for mask in self.masks))

    def __repr__(self) -> str:
        return " & ".join(
            f"({mask})" if isinstance(mask, Either) else repr(mask) for mask in self.masks
        )


class Either(Combination):
    """a | b: True where at least one mask is True."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen = self.masks[0].sees(at)
        for mask in self.masks[1:]:
            seen = seen | mask.sees(at)
        return seen

    def for_last_query(self) -> Mask:
        return reduce(or_, (mask.for_last_query() for mask in self.masks))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return reduce(or_, (mask.spans(at, keys) for mask in self.masks))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.masks))


@dataclass(frozen=True, eq=False)
class Opposite(Mask):
    """~a: True where `mask` is False."""

    mask: Mask

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return ~self.mask.sees(at)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(at, keys).outside(at, keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    @property
    def same_for_all_queries(self) -> bool:
        return self.mask.same_for_all_queries

    def __repr__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, Combination) else f"~{self.mask}"


def _join(kind: type[Combination], left: Mask, right: Mask) -> Mask:
    """Combine two masks into a flat one: (a & b) & c has three parts, so that engines find `causal`
    among them.
    """
    if not isinstance(right, Mask):
        raise TypeError(
            f"a mask combines with masks, not with {type(right).__name__}; "
            "a bool tensor with True = may attend becomes a mask by ts.from_tensor(seen)"
        )
    if everyone in (left, right):
        rest = right if left == everyone else left
        return rest if kind is Both else everyone
    parts = [
        part for mask in (left, right) for part in (mask.masks if type(mask) is kind else (mask,))
    ]
    return kind(tuple(parts))


@dataclass(frozen=True, eq=False)
class Everyone(Mask):
    """Every query may attend to every key."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return torch.ones_like(at.key, dtype=torch.bool)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return replace(Spans.unknown(at, keys), whole=True)

    @property
    def same_for_all_queries(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "everyone"


everyone = Everyone()
