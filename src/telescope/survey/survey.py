"""`survey`: what every query looks at and what every key is given, at any length, as data that can be asked further."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, everyone, softmax
from ..attention.restrict import key_heads_of, of_heads
from ..engines import attend, torch_modes
from ..engines.check_inputs import check, check_without_values
from ..words import whole_number
from .cells import Cells, grid, segments
from .device import beside
from .dispatch import ENGINES, choose
from .exact_rows import check_lse, check_sums, masked_rows
from .extend import holds, joined
from .summary import Marks, Summary


class Top(NamedTuple):
    """The largest weights of each query, largest first, and their keys; where fewer are seen, weight 0 and key -1."""

    weights: Float[Tensor, "batch heads query top"]
    keys: Int[Tensor, "batch heads query top"]


class Peak(NamedTuple):
    """The largest weight of each query, and its key."""

    weight: Float[Tensor, "batch heads query"]
    key: Int[Tensor, "batch heads query"]


@dataclass(frozen=True, eq=False, repr=False)
class Survey:
    """Exact numbers for each query and each key; `.map`, `.rows` and `.cell` look further, `.extend` goes on.

    Where only the summary was kept, queries and keys are on meta: they have a shape, but no numbers to look further.
    """

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"] | None
    attention: Attention
    engine: str
    summary: Summary
    recorded: tuple[int, int] | None
    context: Float[Tensor, "batch heads query d_v"] | None

    @property
    def lse(self) -> Float[Tensor, "batch heads query"] | None:
        """ln Σ exp(score) of each query, the sink included; None where the normaliser is not softmax."""
        return self.summary.lse

    @property
    def received(self) -> Float[Tensor, "batch heads key"]:
        """The weight each key gets from all queries together: the sums of the columns."""
        return self.summary.received

    @property
    def entropy(self) -> Float[Tensor, "batch heads query"]:
        """-Σ w ln w of each query, in nats: 0 where it looks at one key, ln n where it looks at n alike."""
        return self.summary.entropy

    @property
    def top(self) -> Top:
        return Top(self.summary.top_weights, self.summary.top_keys.long())

    @property
    def peak(self) -> Peak:
        if not self.summary.top_keys.shape[-1]:
            raise ValueError("this survey was made with top=0, so it kept no peak; top=1 keeps it")
        return Peak(self.summary.top_weights[..., 0], self.summary.top_keys[..., 0].long())

    @torch.no_grad()
    def map(
        self, rows: int | None = None, cols: int | None = None, how: str = "share", *, segments: Any = None
    ) -> Float[Tensor, "batch heads rows cols"]:
        """The matrix, pooled to rows x cols, or to a row and a column for each of the `segments`.

        "share" sums over the keys of a cell and averages over its queries, so rows still sum to one; "max" is the
        largest weight in a cell. `segments` are ids from 0, (token,) or (batch, token), or (query ids, key ids).
        """
        if how == "share" and segments is None and self.recorded is not None and (rows, cols) == self.recorded:
            assert self.summary.map is not None
            return self.summary.map
        self._look_further("map")
        cells = _cells(self.queries, self.keys, rows, cols, how, segments)
        with torch_modes.without_autocast(self.queries.device):
            pooled: Tensor = ENGINES[self.engine].pool(self.queries, self.keys, self.attention, self.lse, cells)
        return pooled

    @torch.no_grad()
    def rows(self, i: int | slice | range | Sequence[int] | Tensor) -> Float[Tensor, "batch heads row key"]:
        """The weights of these queries, every key of them. Negative numbers count from the last query."""
        self._look_further("rows")
        where = _indices("rows", i, self.queries.shape[-2], "queries").to(self.queries.device)
        with torch_modes.without_autocast(self.queries.device):
            return self.attention.weights(self._masked(where, range(self.keys.shape[-2])))

    @torch.no_grad()
    def cell(self, i: SupportsIndex, j: SupportsIndex) -> Float[Tensor, "batch heads"]:
        """The weight query i gives key j, in every sequence and head."""
        self._look_further("cell")
        (row,) = _indices("cell(i, ...)", whole_number("i", i), self.queries.shape[-2], "queries").tolist()
        (column,) = _indices("cell(..., j)", whole_number("j", j), self.keys.shape[-2], "keys").tolist()
        if self.lse is None:
            return self.rows(row)[:, :, 0, column]
        with torch_modes.without_autocast(self.queries.device):
            where = torch.tensor([row], device=self.queries.device)
            masked = self._masked(where, range(column, column + 1))[:, :, 0, 0]
        return torch.exp(masked - self.lse[:, :, row]).masked_fill(masked == -torch.inf, 0.0)

    def head(self, i: SupportsIndex) -> "Survey":
        """The survey of one head alone."""
        (number,) = _indices("head", whole_number("head", i), self.queries.shape[1], "heads").tolist()
        which = torch.tensor([number])
        serving = key_heads_of(which, self.queries.shape[1], self.keys.shape[1]).tolist()
        return replace(
            self,
            queries=self.queries[:, [number]],
            keys=self.keys[:, serving],
            values=None if self.values is None else self.values[:, serving],
            attention=of_heads(self.attention, which, self.queries.shape[1]),
            summary=self.summary.of_head(number),
            context=None if self.context is None else self.context[:, [number]],
        )

    def extend(
        self,
        queries: Float[Tensor, "batch heads new_query d_q"],
        keys: Float[Tensor, "batch key_heads new_key d_k"],
        *,
        values: Float[Tensor, "batch key_heads new_key d_v"] | None = None,
        attention: Attention | None = None,
    ) -> "Survey":
        """The survey of what was there and these, the same as from scratch; where no old query sees a new key, only
        the new rows are computed. A recorded map is not carried on: `.map` computes it when it is asked for.

        Where the definition holds a tensor as long as the sequence (documents, padding(keep=...), from_tensor), pass
        the longer `attention`.
        """
        self._look_further("extend")
        attention = self.attention if attention is None else attention
        _check(queries, keys, values, replace(self.attention, mask=everyone, bias=None))
        if (values is None) != (self.values is None):
            raise ValueError(
                "this survey has no values, so it cannot go on with some; make it with survey(..., values=...)"
                if self.values is None
                else "this survey has a context, so it goes on with values too: extend(queries, keys, values=...)"
            )
        all_queries, all_keys = _after("queries", self.queries, queries), _after("keys", self.keys, keys)
        if self.values is not None and values is not None:
            values = _after("values", self.values, values)
        old, new = (self.queries.shape[-2], self.keys.shape[-2]), (all_queries.shape[-2], all_keys.shape[-2])
        _check(all_queries, all_keys, values, attention)
        top, reusable = self.top.keys.shape[-1], holds(self.attention, attention, old, new, self.queries, self.keys)
        asking = all_queries[:, :, old[0] :] if reusable else all_queries
        engine = self.engine if ENGINES[self.engine].cannot(asking, all_keys, attention, top) is None else None
        more = survey(asking, all_keys, attention, top=top, values=values, engine=engine)
        if not reusable:
            return more
        context = None if self.context is None or more.context is None else torch.cat([self.context, more.context], -2)
        return replace(more, queries=all_queries, summary=joined(self.summary, more.summary), context=context)

    def _look_further(self, what: str) -> None:
        if self.queries.is_meta:
            raise ValueError(
                f'{what} needs queries and keys, but the summary alone was kept; ts.watch(keep="queries-keys") has them'
            )

    def _masked(self, rows: Tensor, columns: range) -> Tensor:
        batch, heads = self.queries.shape[:2]
        return masked_rows(self.queries, self.keys, self.attention, rows, columns, range(batch), range(heads))

    def __repr__(self) -> str:
        (batch, heads, queries, _), keys = self.queries.shape, self.keys.shape[-2]
        top = self.summary.top_keys.shape[-1]
        return (
            f"Survey of {self.attention}: {queries:,} queries x {keys:,} keys, batch {batch}, heads {heads}, "
            f"by {self.engine}; the top {top} of each query"
        )


@torch.no_grad()
def survey(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention = Attention(),
    *,
    top: int = 8,
    values: Float[Tensor, "batch key_heads key d_v"] | None = None,
    lse: Float[Tensor, "batch heads query"] | None = None,
    map: tuple[int, int] | None = None,
    engine: str | None = None,
) -> Survey:
    """What every query looks at and what every key is given, exact, in memory that grows with n and not with n².

    .lse .received .entropy .peak .top .map(rows, cols) .rows(i) .cell(i, j) .extend(queries, keys)

    `top` is how many of each query's largest weights are kept. `values` adds .context. Pass an `lse` where a forward
    pass already has it, and less is computed. `map` = (rows, cols) records that map in the same pass.
    """
    _check(queries, keys, values, attention)
    if not isinstance(top, int) or isinstance(top, bool) or top < 0:
        raise ValueError(f"top={top!r} is how many weights of each query are kept; it takes 0 or more")
    if queries.is_meta:
        raise ValueError("queries are on meta, where tensors have a shape but no numbers to survey; use cpu or cuda")
    if lse is not None and attention.normalize is not softmax:
        raise ValueError("an lse belongs to softmax; leave it out where normalize is another")
    queries, keys = (tensor.detach() for tensor in torch_modes.cast_for_autocast(queries, keys))
    values = None if values is None else torch_modes.cast_for_autocast(values)[0].detach()
    with torch_modes.without_autocast(queries.device):
        meanwhile: AbstractContextManager[object] = nullcontext()
        if lse is not None:
            check_lse(queries, lse)
            lse, meanwhile = lse.detach(), beside(lse, urgent=True)
        seen = read_off(queries, keys, attention, top=top, lse=lse, map=map, engine=engine)
        if lse is not None:
            with meanwhile:
                check_sums(queries, keys, attention, lse)
    return seen if values is None else replace(seen, values=values, context=attend(queries, keys, values, attention))


def read_off(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    *,
    top: int,
    lse: Float[Tensor, "batch heads query"] | None = None,
    map: tuple[int, int] | None = None,
    engine: str | None = None,
    marks: Marks | None = None,
) -> Survey:
    """`survey` of what is known to fit, and of an lse that is known to be its own: on a GPU, nobody waits for it.

    `marks` are answered by the engine that passes over all weights in turn, and by no other.
    """
    chosen = choose(queries, keys, attention, top, engine)
    cells = None if map is None else _cells(queries, keys, *_pair(map), "share", None)
    also = () if marks is None or chosen != "chunked" else (marks,)
    summary = ENGINES[chosen].summarize(queries, keys, attention, lse, top, cells, *also)
    return Survey(queries, keys, None, attention, chosen, summary, map, None)


def _check(queries: Tensor, keys: Tensor, values: Tensor | None, attention: Attention) -> None:
    if values is None:
        check_without_values(queries, keys, attention)
    else:
        check(queries, keys, values, attention)


def _cells(queries: Tensor, keys: Tensor, rows: int | None, cols: int | None, how: str, ids: Any) -> Cells:
    size, device = (queries.shape[-2], keys.shape[-2]), queries.device
    if ids is not None:
        if rows is not None or cols is not None:
            raise ValueError("map takes rows and cols, or segments=, whose ids say how many there are; not both")
        return segments(ids, how, of=size, batch=len(queries), device=device)
    if rows is None or cols is None:
        raise ValueError("map takes its size, map(rows, cols), or segments= with an id for each token")
    return grid(rows, cols, how, of=size, device=device)


def _pair(size: Any) -> tuple[int, int]:
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(f"map={size!r} is not a size; it takes (rows, cols), such as map=(128, 128)")
    return size


def _indices(what: str, i: Any, count: int, of: str) -> Int[Tensor, " row"]:
    """Positions from 0 on, whatever way they were given."""
    if isinstance(i, slice):
        i = range(*i.indices(count))
    where = torch.as_tensor(list(i) if isinstance(i, range) else i)
    where = where if where.numel() else where.long()  # an empty list is taken for floats
    if where.is_floating_point() or where.dtype == torch.bool or where.ndim > 1:
        raise TypeError(f"{what} takes whole numbers, not a {where.dtype} tensor of shape {tuple(where.shape)}")
    where = where.reshape(-1).cpu()
    wrong = where[(where < -count) | (where >= count)]
    if len(wrong):
        raise ValueError(f"{what}: there is no {int(wrong[0])} among {count} {of}, counted from 0")
    return where.long() % max(count, 1)


def _after(name: str, old: Tensor, new: Tensor) -> Tensor:
    """The new ones put to the old."""
    if old.shape[:2] != new.shape[:2] or old.shape[3] != new.shape[3]:
        raise ValueError(
            f"extend: {name} have shape {tuple(new.shape)}, after {tuple(old.shape)}; only their number may differ"
        )
    (new,) = torch_modes.cast_for_autocast(new)
    if (old.device, old.dtype) != (new.device, new.dtype):
        raise ValueError(
            f"extend: {name} are {new.dtype} on {new.device}, after {old.dtype} on {old.device}; convert them"
        )
    return torch.cat([old, new.detach()], -2)
