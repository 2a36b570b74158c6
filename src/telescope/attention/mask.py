"""The base class of masks, and how masks combine. True = may attend, everywhere in Telescope.

A mask is a rule about pairs of a query and a key: any block of it can be computed, and the n x n
matrix is never stored. Masks combine with &, | and ~. Positions are aligned at the end: the last
query is at the position of the last key.
"""

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import ClassVar, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from .pairs import Pairs, Spans
from .values import Value


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
