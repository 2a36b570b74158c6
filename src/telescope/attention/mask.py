"""What a mask is: a value that says who may see whom. True = may attend, everywhere in Telescope.

A mask is never stored n x n. It is a rule about pairs of a query and a key, it can say any block of itself, and masks
combine with &, | and ~. Positions count so that the last query stands at the last key.
"""

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from .pairs import Pairs, Spans
from .values import Value


class Mask(Value):
    """Who may see whom. A new mask says `sees`, and `check` where it only fits some sizes; the rest follows."""

    given: ClassVar[bool] = False
    """Whether the mask was given as a tensor or a function, which may hide padding among other things."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        raise TypeError(f"{type(self).__name__} does not say who sees whom: it needs a method sees(self, at)")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this mask does not fit an attention of this size."""

    @property
    def keys_alone(self) -> bool:
        """Whether all queries see the same keys: such a mask is one row, whatever the number of queries."""
        return False

    def of_last_query(self) -> "Mask":
        """The same for the last query alone, which may be simpler: the last one sees all there is of a causal mask."""
        return self

    def spans(self, at: Pairs, keys: int) -> Spans:
        """Where each query of `at` looks among all `keys`, so that the rest is skipped; unless said, anywhere."""
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
        """The mask of these rows and columns, and of nothing else.

        A number n stands for range(n). `of` = (queries, keys) is the size of the whole matrix; without it the block
        is taken to reach the last query and the last key. An axis the mask does not depend on may have size one.
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


@dataclass(frozen=True, eq=False)
class Combination(Mask):
    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        if not self.masks:
            raise ValueError(f"{type(self).__name__} combines no masks; it takes one at least")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        for mask in self.masks:
            mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    @property
    def keys_alone(self) -> bool:
        return all(mask.keys_alone for mask in self.masks)


class Both(Combination):
    """a & b: seen where every one of them allows it."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen = self.masks[0].sees(at)
        for mask in self.masks[1:]:
            seen = seen & mask.sees(at)
        return seen

    def of_last_query(self) -> Mask:
        return reduce(and_, (mask.of_last_query() for mask in self.masks))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return reduce(and_, (mask.spans(at, keys) for mask in self.masks))

    def __repr__(self) -> str:
        return " & ".join(f"({mask})" if isinstance(mask, Either) else repr(mask) for mask in self.masks)


class Either(Combination):
    """a | b: seen where one of them allows it."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen = self.masks[0].sees(at)
        for mask in self.masks[1:]:
            seen = seen | mask.sees(at)
        return seen

    def of_last_query(self) -> Mask:
        return reduce(or_, (mask.of_last_query() for mask in self.masks))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return reduce(or_, (mask.spans(at, keys) for mask in self.masks))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.masks))


@dataclass(frozen=True, eq=False)
class Opposite(Mask):
    """~a: seen where a hides."""

    mask: Mask

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return ~self.mask.sees(at)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(at, keys).outside(at, keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, Combination) else f"~{self.mask}"


def _join(kind: type[Combination], left: Mask, right: Mask) -> Mask:
    """Flat: (a & b) & c has three parts, so that an engine finds `causal` among them."""
    if not isinstance(right, Mask):
        raise TypeError(
            f"a mask combines with masks, not with {type(right).__name__}; a bool tensor becomes one by ts.from_tensor"
        )
    if everyone in (left, right):
        rest = right if left == everyone else left
        return rest if kind is Both else everyone
    parts = [part for mask in (left, right) for part in (mask.masks if type(mask) is kind else (mask,))]
    return kind(tuple(parts))


@dataclass(frozen=True, eq=False)
class Everyone(Mask):
    """Every query sees every key."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return torch.ones_like(at.key, dtype=torch.bool)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return replace(Spans.unknown(at, keys), whole=True)

    @property
    def keys_alone(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "everyone"


everyone = Everyone()
