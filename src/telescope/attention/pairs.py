"""Who asks and who is asked: the pairs of a query and a key that masks and biases speak about."""

from dataclasses import dataclass, field
from functools import lru_cache

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
    ranges: dict[str, range] = field(init=False, default_factory=dict, repr=False, compare=False)
    """Which axes are known to be which ranges, so that `pick` can slice. `replace` forgets them."""

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
        """The pairs of `rows` x `columns` in a matrix of size `of` = (queries, keys). A number n means range(n).

        torch.export has sizes that are not known yet; those are numbers, since a range would fix them.
        """
        known = all(isinstance(some, int | range) for some in (batch, heads, rows, columns))
        if torch.compiler.is_compiling() or not known:
            row = _indices(rows, 2, device)
            return cls(
                batch=_indices(batch, 0, device),
                head=_indices(heads, 1, device),
                row=row,
                query=row + (of[1] - of[0]),
                key=_indices(columns, 3, device),
            )
        if device is None or device.type != "cpu" or max(of) > REMEMBERED or traced():
            return _block(rows, columns, of[1] - of[0], batch, heads, device)
        at, versions = _remembered(rows, columns, of[1] - of[0], batch, heads)
        if (at.batch._version, at.head._version, at.row._version, at.query._version, at.key._version) != versions:
            _remembered.cache_clear()
            at, _ = _remembered(rows, columns, of[1] - of[0], batch, heads)
        return at

    @classmethod
    def all(cls, scores: Tensor) -> "Pairs":
        """The pairs of these scores (batch, head, query, key), which are all there are."""
        batch, heads, queries, keys = scores.shape
        return cls.block(queries, keys, of=(queries, keys), batch=batch, heads=heads, device=scores.device)

    def pick(self, table: Tensor, *axes: str) -> Tensor:
        """table[axes], the axes named in the order of this class; one of size one stands for every index of it.

        Of a block the answer is a view of the table.
        """
        table = table.to(self.key.device)
        if not self.ranges:
            return pick(table, *(getattr(self, axis) for axis in axes))
        if len(axes) == 4 and all(self.ranges.get(axis) == range(n) for axis, n in zip(axes, table.shape, strict=True)):
            return table  # all of it
        slices: list[slice | None] = [None] * 4
        for axis, size in zip(axes, table.shape, strict=True):
            some = self.ranges.get(axis) if size != 1 else range(1)
            if some is None or some.step != 1 or some.start < 0 or some.stop > size:
                return pick(table, *(getattr(self, axis) for axis in axes))
            slices[PLACES[axis]] = slice(some.start, some.stop)
        return table[tuple(slices)]


PLACES = {"batch": 0, "head": 1, "row": 2, "query": 2, "key": 3}  # of the axes, in a block
SHAPES = tuple(tuple(-1 if axis == place else 1 for axis in range(4)) for place in range(4))
REMEMBERED = 2**14  # queries and keys of a matrix whose blocks are remembered, at most; 64 of these take 24 MiB


def _indices(some: int | range, place: int, device: torch.device | None) -> Int[Tensor, "..."]:
    """Return the numbers of a range along one axis of four. A size that is not known yet is a number."""
    if isinstance(some, range):
        return torch.arange(some.start, some.stop, some.step, device=device).view(SHAPES[place])
    return torch.arange(some, device=device).view(SHAPES[place])


def _block(
    rows: int | range,
    columns: int | range,
    ahead: int,
    batch: int | range,
    heads: int | range,
    device: torch.device | None,
) -> Pairs:
    given = {"batch": batch, "head": heads, "row": rows, "key": columns}
    known = {axis: range(some) if isinstance(some, int) else some for axis, some in given.items()}
    known["query"] = range(known["row"].start + ahead, known["row"].stop + ahead, known["row"].step)
    at = Pairs(*(_indices(known[axis], PLACES[axis], device) for axis in ("batch", "head", "row", "query", "key")))
    at.ranges.update(known)
    return at


@lru_cache(maxsize=64)
def _remembered(
    rows: int | range, columns: int | range, ahead: int, batch: int | range, heads: int | range
) -> tuple[Pairs, tuple[int, ...]]:
    """Return `_block` on the CPU, cached, with the version counters that tell whether a tensor was written to since."""
    with torch.inference_mode(False):  # an inference tensor could not be saved for a gradient later
        at = _block(rows, columns, ahead, batch, heads, torch.device("cpu"))
    return at, (at.batch._version, at.head._version, at.row._version, at.query._version, at.key._version)


def traced() -> bool:
    """Whether tensors made now belong to FakeTensorMode, make_fx or torch.func: those are not to be remembered."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None


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


@dataclass(frozen=True)
class Spans:
    """Every key that a query sees lies from `start` up to `stop`; `whole` says that it sees all of these.

    A query that sees nothing has start = stop.
    """

    start: Int[Tensor, "#batch #head #query 1"]
    stop: Int[Tensor, "#batch #head #query 1"]
    whole: bool

    @classmethod
    def between(cls, start: Tensor, stop: Tensor, keys: int, *, whole: bool = True) -> "Spans":
        """From start up to stop, as far as there are keys."""
        start = start.clamp(0, keys)
        return cls(start, torch.maximum(stop.clamp(0, keys), start), whole)

    @classmethod
    def unknown(cls, at: Pairs, keys: int) -> "Spans":
        """Anywhere: what a mask says that cannot say more."""
        return cls(torch.zeros_like(at.query), torch.full_like(at.query, keys), False)

    @property
    def empty(self) -> Tensor:
        return self.start == self.stop

    def __and__(self, other: "Spans") -> "Spans":
        start = torch.maximum(self.start, other.start)
        stop = torch.maximum(torch.minimum(self.stop, other.stop), start)
        return Spans(start, stop, self.whole and other.whole)

    def __or__(self, other: "Spans") -> "Spans":
        """One stretch around both. It is whole if they touch in every row, or one of them is empty."""
        start = torch.where(other.empty, self.start, torch.minimum(self.start, other.start))
        start = torch.where(self.empty, other.start, start)
        stop = torch.where(other.empty, self.stop, torch.maximum(self.stop, other.stop))
        stop = torch.where(self.empty, other.stop, stop)
        touch = torch.maximum(self.start, other.start) <= torch.minimum(self.stop, other.stop)
        whole = self.whole and other.whole and bool((touch | self.empty | other.empty).all())
        return Spans(start, stop, whole)

    def outside(self, at: Pairs, keys: int) -> "Spans":
        """What is left of the keys: one stretch only where this one begins at the first key or ends at the last."""
        if self.whole and bool((self.empty | (self.start == 0)).all()):
            return Spans(torch.where(self.empty, 0, self.stop), torch.full_like(self.stop, keys), True)
        if self.whole and bool((self.empty | (self.stop == keys)).all()):
            return Spans(torch.zeros_like(self.start), torch.where(self.empty, keys, self.start), True)
        return Spans.unknown(at, keys)
