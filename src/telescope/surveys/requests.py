"""What a caller can ask of a survey besides its summary: maps, extra sums, and marked keys.

Cells say how the matrix is pooled to a map. Extras are sums over queries and keys. Marks and
Listings name keys of each query whose weights are wanted. The `read_...` functions check what a
user gave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Mask, softmax
from ..words import check_index, hint
from .summary import Map, PerKey, compute_dtype

QueryWeights = Float[Tensor, "#batch #heads sets query"]
# How the weights of a cell are pooled, see `Cells`.
HOW = ("share", "max")
TILE = 64  # rows and keys of a listing that are multiplied together


# --------------------------------------------------------------------------------------------- maps


@dataclass(frozen=True, eq=False)
class Cells:
    """A map of rows x columns cells, and how the weights in a cell are pooled. Made by `grid` or
    `segments`.

    numbers    returns the row of each query and the column of each key; called only where they are
               needed
    how        "share" sums over the keys of a cell and averages over its queries; "max" is the
               largest weight in it
    of         (queries, keys) of the matrix, where the cells are those of `grid`; else None

    Example:
        >>> import torch
        >>> from telescope.surveys.requests import grid
        >>> cells = grid(2, 3, "share", of=(4, 6), device=torch.device("cpu"))
        >>> cells.row_of_query.tolist(), cells.column_of_key.tolist()
        ([[0, 0, 1, 1]], [[0, 0, 1, 1, 2, 2]])
    """

    numbers: Callable[[], tuple[Tensor, Tensor]]
    rows: int
    columns: int
    how: str
    of: tuple[int, int] | None = None

    @cached_property
    def _numbers(self) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch key"]]:
        return self.numbers()

    @property
    def row_size(self) -> int:
        """Queries per row of the map, where all rows have equally many; else 1."""
        return 1 if self.of is None or self.of[0] % self.rows else self.of[0] // self.rows

    @property
    def key_size(self) -> int:
        """Keys per column of the map, where all columns have equally many; else 1."""
        return 1 if self.of is None or self.of[1] % self.columns else self.of[1] // self.columns

    @property
    def row_of_query(self) -> Int[Tensor, "#batch query"]:
        """The row of the map that each query falls into."""
        return self._numbers[0]

    @property
    def column_of_key(self) -> Int[Tensor, "#batch key"]:
        """The column of the map that each key falls into."""
        return self._numbers[1]

    def averaged(self, summed: Map) -> Map:
        """Return sums over queries and keys, divided by the number of queries in each row of the
        map.
        """
        if self.row_size > 1:
            return summed / self.row_size
        # Rows of different sizes: count the queries of each.
        row = self.row_of_query
        counts = summed.new_zeros(len(row), self.rows)
        counts.scatter_add_(1, row, torch.ones_like(row, dtype=summed.dtype))
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

    return Cells(numbers, rows, columns, how, of)


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
    sides = (("rows", rows, of[0], "queries"), ("cols", columns, of[1], "keys"))
    for name, count, size, what in sides:
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
    # A pair numbers queries and keys by themselves; one sequence numbers both.
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
                f"{size} {name} in a batch of {batch}; two sequences are numbered by "
                "segments=(query ids, key ids)"
            )
        if part.numel() and int(part.min()) < 0:
            raise ValueError(
                f"segments has the id {int(part.min())}; ids count from 0, one for each row of the "
                "map"
            )
    # The largest id gives the size of the map.
    rows, columns = (
        int(part.max()) + 1 if part.numel() else 0 for part in (row_of_query, column_of_key)
    )
    return Cells(lambda: (row_of_query, column_of_key), rows, columns, how)


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


def segment_cells(ids: Any, queries: Tensor, keys: Tensor) -> Cells:
    """Return a map with a row for each query and a column for each segment of the keys."""
    rows = torch.arange(queries.shape[-2])
    size = (queries.shape[-2], keys.shape[-2])
    return segments((rows, ids), "share", of=size, batch=len(queries), device=queries.device)


def read_cells(
    queries: Tensor, keys: Tensor, rows: int | None, cols: int | None, how: str, ids: Any
) -> Cells:
    """Return the cells of a map, from its size or from the ids of segments."""
    size = (queries.shape[-2], keys.shape[-2])
    device = queries.device
    if ids is not None:
        if rows is not None or cols is not None:
            raise ValueError(
                "map takes rows and cols, or segments=, not both: the ids give the size of the map"
            )
        return segments(ids, how, of=size, batch=len(queries), device=device)
    if rows is None or cols is None:
        raise ValueError(
            "map takes its size, map(rows, cols), or segments= with an id for each token"
        )
    return grid(rows, cols, how, of=size, device=device)


def read_map(queries: Tensor, keys: Tensor, size: Any) -> Cells:
    """Return the cells of `survey(map=(rows, cols))`."""
    if not isinstance(size, tuple) or len(size) != 2:
        raise TypeError(
            f"map={size!r} is not a size; it takes (rows, cols), such as map=(128, 128)"
        )
    return read_cells(queries, keys, *size, "share", None)


# ------------------------------------------------------------------------------------------- extras


class Extras(NamedTuple):
    """What an engine computes besides the summary, in the dtype of the survey. By default nothing.

    A field is named as the field of the Summary that it asks for.

    weighted   the weights of the queries, with which the matrix is summed over them
    carried    the norms of the keys, with which each row is summed
    largest    whether to find the largest weight that each key gets
    """

    weighted: QueryWeights | None = None
    carried: PerKey | None = None
    largest: bool = False

    def __bool__(self) -> bool:
        return self.weighted is not None or self.carried is not None or self.largest

    @property
    def sets(self) -> int:
        """How many weighted sums are computed."""
        return 0 if self.weighted is None else self.weighted.shape[2]


def read_extras(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    query_weights: Any,
    norms: Any,
    largest: bool,
) -> Extras:
    """Return the extras that `survey` is asked for; raise a TypeError or ValueError where they do
    not fit.
    """
    return Extras(
        None if query_weights is None else read_query_weights(queries, query_weights),
        None if norms is None or norms is False else _read_norms(queries, keys, values, norms),
        bool(largest),
    )


def read_query_weights(queries: Tensor, given: Any) -> QueryWeights:
    """Return weights of the queries, given as (query,), (sets, query) or (batch or 1, heads or 1,
    sets, query).
    """
    # Bring all three forms to four axes.
    weights = torch.as_tensor(given)
    batch, heads, rows, _ = queries.shape
    shape = tuple(weights.shape)
    while weights.ndim < 2:
        weights = weights[None]
    weights = weights if weights.ndim == 4 else weights[None, None]
    fits = weights.ndim == 4 and weights.shape[-1] == rows and weights.shape[2] > 0
    if not fits or weights.shape[0] not in (1, batch) or weights.shape[1] not in (1, heads):
        raise ValueError(
            f"query_weights has shape {shape}; it takes a weight for each of the {rows} queries: "
            f"(query,), (sets, query) or (batch, heads, sets, query) with batch {batch} and heads "
            f"{heads}, or 1 for either"
        )
    return weights.detach().to(queries.device, compute_dtype(queries))


def _read_norms(queries: Tensor, keys: Tensor, values: Tensor | None, given: Any) -> PerKey:
    """Return one norm for each head and key; given for each key head, they are shared by its
    queries.
    """
    dtype = compute_dtype(queries)
    if given is True:
        if values is None:
            raise ValueError(
                "norms=True takes the norms of the values; give values= too, or the norms "
                "themselves"
            )
        given = values.detach().to(dtype).norm(dim=-1)
    norms = torch.as_tensor(given)
    batch, heads = queries.shape[:2]
    key_heads, columns = keys.shape[1:3]
    if norms.shape not in {(batch, count, columns) for count in (heads, key_heads)}:
        raise ValueError(
            f"norms has shape {tuple(norms.shape)}; it takes (batch, heads, key) = "
            f"{(batch, heads, columns)}, or {key_heads} key heads in place of heads"
        )
    # One for each head of queries, as the kernels read them.
    norms = norms.detach().to(queries.device, dtype)
    return norms.repeat_interleave(heads // max(norms.shape[1], 1), 1).contiguous()


def read_query_numbers(i: Any, count: int) -> Int[Tensor, " row"]:
    """Return positions from 0 on, given as a number, slice, range, list or tensor of numbers down
    to -count.
    """
    # Bring all forms to a tensor of numbers from 0 on.
    if isinstance(i, slice):
        i = range(*i.indices(count))
    where = torch.as_tensor(list(i) if isinstance(i, range) else i)
    where = where if where.numel() else where.long()  # an empty list is taken for floats
    if where.is_floating_point() or where.dtype == torch.bool or where.ndim > 1:
        raise TypeError(
            f"rows takes whole numbers, not a {where.dtype} tensor of shape {tuple(where.shape)}"
        )
    where = where.reshape(-1).cpu()
    # `check_index` raises the error, which names the number.
    wrong = where[(where < -count) | (where >= count)]
    if len(wrong):
        check_index("query", int(wrong[0]), count)
    # Negative numbers count from the end.
    return where.long() % max(count, 1)


def check_within(mask: Any, queries: Tensor, keys: Tensor, attention: Attention) -> None:
    """Raise a TypeError or ValueError if the share of weights within this mask cannot be
    computed.
    """
    if not isinstance(mask, Mask):
        raise TypeError(
            "within takes a mask, such as ts.window(4096) | ts.prefix(4), not "
            f"{type(mask).__name__}"
        )
    if attention.normalize is not softmax:
        raise ValueError("within is defined for softmax only; leave it out for another normaliser")
    batch, heads, rows, _ = queries.shape
    mask.check(batch=batch, heads=heads, queries=rows, keys=keys.shape[-2])


# -------------------------------------------------------------------------------------- marked keys


@dataclass(frozen=True, eq=False)
class Listing:
    """Queries and keys, listed so that the keys of each query are neighbours, in one set or
    several. All are int32.
    """

    rows: Int[Tensor, "#batch query"]
    """The query in each slot; every query stands in one slot."""
    keys: Int[Tensor, "#batch slot"]
    """The key in each slot."""
    start: Int[Tensor, "set #batch query"]
    """For the query in a slot, the first slot of its keys."""
    stop: Int[Tensor, "set #batch query"]
    """One past the last. Every set but the first has at most one key, which is in the first set
    too.
    """
    wants_seen: bool = False
    """Whether to compute which queries may see a key of the first set."""

    def _repeated(self, count: int) -> "Listing":
        """Return the listing of a batch that repeats this one `count` times."""
        if count == 1:
            return self
        # What has no batch axis holds for all sequences.
        rows, keys, start, stop = (
            part.repeat(*(1,) * (part.ndim - 2), count, 1) if part.shape[-2] > 1 else part
            for part in self._tensors
        )
        return replace(self, rows=rows, keys=keys, start=start, stop=stop)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.keys, self.start, self.stop

    @cached_property
    def _tiles(self) -> Int[Tensor, "tile 3"]:
        """The tiles that hold a listed pair: sequence, tile of rows, tile of keys. Synchronises
        with a GPU, once.
        """
        # A query without keys has no tile.
        filled = self.start < self.stop
        missing = (0, -self.start.shape[-1] % TILE)
        width = max(1, min(TILE, self.keys.shape[-1]))

        def by_tile(slots: Tensor, fill: int) -> Tensor:
            return pad(slots, missing, value=fill).reshape(len(slots), -1, TILE)

        # The tiles of keys of each tile of rows: the first, and how many.
        far = 2**30  # beyond every slot
        first = by_tile(self.start.masked_fill(~filled, far).amin(0), far).amin(-1) // width
        last = by_tile(self.stop.masked_fill(~filled, 0).amax(0), 0).amax(-1)
        count = ((last + width - 1) // width - first).clamp(min=0).flatten()

        # One row for each of them, of all sequences one after the other.
        row_tile = torch.repeat_interleave(count)
        numbers = torch.arange(len(row_tile), device=row_tile.device)
        offset = numbers - (count.cumsum(0) - count)[row_tile]
        height = max(first.shape[1], 1)
        return torch.stack(
            [row_tile // height, row_tile % height, first.flatten()[row_tile] + offset], 1
        )

    def _by_row(self) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch query"]]:
        """Return start and stop of the first set for each query, in the order of the queries."""
        batch = max(len(self.rows), self.start.shape[1])
        # Write the ends of each slot to the place of its query.
        where = self.rows.long().expand(batch, -1)
        start, stop = (
            torch.empty_like(where, dtype=torch.int32).scatter_(1, where, ends[0].expand(batch, -1))
            for ends in (self.start, self.stop)
        )
        return start, stop


class Marks(NamedTuple):
    """Keys of each query whose weights an engine should report with the summary, if it forms all
    weights anyway.

    before   (query,): report the total weight of all keys before this one
    single   (mark, batch or 1, query): report the weight of this key; -1 is no key
    listed   report the total weight of the keys that each listing has for a query; its first set
             counts

    Example:
        >>> import torch
        >>> from telescope import Attention, causal
        >>> from telescope.surveys import Marks, survey_unchecked
        >>> zeros, own = torch.zeros(1, 1, 4, 2), torch.arange(4)
        >>> # Everything before a query, and its own key
        >>> marks = Marks(before=own, single=own[None, None])
        >>> seen = survey_unchecked(
        ...     zeros, zeros, Attention(mask=causal), top=1, marks=marks
        ... )
        >>> seen.summary.before[0, 0, 3].item(), seen.summary.single[0, 0, 3, 0].item()
        (0.75, 0.25)
    """

    before: Int[Tensor, " query"]
    single: Int[Tensor, "which #batch query"]
    listed: tuple[Listing, ...] = ()
