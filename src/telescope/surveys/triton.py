"""Survey on a GPU: from queries, keys and lse, compute q·k once more, a tile at a time, and reduce
it at once.

First every block of keys sums what it receives, and writes down the largest weight of each row in
it. These maxima bound the `top` of a row from below, so that only the blocks that reach the bound
are searched for the keys themselves.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import (
    Alibi,
    Attention,
    Bias,
    Mask,
    Pairs,
    Relative,
    dot,
    has_data,
    softmax,
    tensors,
)
from .cells import Cells
from .device import StreamEvent, record_event, run_within_memory
from .extras import Extras
from .launch import (
    BM,
    BN,
    LOG2_E,
    Band,
    aligned_rows,
    by_group,
    compiled_for,
    run,
    scratch_bytes_per_row,
    survey_check,
    survey_largest_rows,
    survey_lse,
    survey_map,
    survey_rows,
    survey_weighted,
    tile_spans,
)
from .launch_cache import compile_ahead
from .summary import Summary

MEMORY = (
    2**29
)  # bytes that a band of rows may take for scratch memory and for a mask or bias written out as a table
LEAST = 2**22  # bytes below which a band would hardly have a tile of rows
MOST = 64  # the longest top a row is searched for
INSTALLED = find_spec("triton") is not None  # looked up once, not for every survey


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return why this engine cannot survey such an attention, or None if it can."""
    if queries.device.type != "cuda":
        return f"it needs a GPU, and the queries are on {queries.device}"
    if not INSTALLED:
        return "it needs triton: pip install triton"
    if queries.dtype == torch.float64:
        return "it computes in float32, and these are float64"
    if not attention.score.is_dot_product:
        return f"the score {attention.score.formula} is no dot product"
    if attention.normalize is not softmax:
        return (
            "it normalises by softmax, not by "
            f"{getattr(attention.normalize, '__name__', attention.normalize)}"
        )
    if keys.shape[-1] > 256:
        return f"a head of {keys.shape[-1]} features does not fit; 256 do"
    if top > MOST:
        return f"top={top} is more than the {MOST} it keeps in order"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    return None


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary, in bands of fewer rows where memory runs out. An lse, where given, is not
    computed again.
    """
    within = partial(_summarize, queries, keys, attention, lse, top, cells, extras)
    return run_within_memory(within, MEMORY, LEAST, queries, keys)


def _summarize(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor | None,
    top: int,
    cells: Cells | None,
    extras: Extras,
    memory: int,
) -> Summary:
    matrix = Matrix.of(queries, keys, attention, memory)
    _compile_once(matrix, lse is None, top, cells, extras)
    lse = _lse(matrix, attention) if lse is None else lse.float().contiguous()
    summary = _survey(partial(matrix.bands, top=top), lse, keys.shape[-2], top, cells, extras)
    if extras.query_weights is not None:
        summary = replace(summary, weighted=_weigh(matrix, lse, extras.query_weights))
    if cells is None:
        return summary
    pooled = summary.map
    return replace(
        summary, map=_pool(matrix, lse, cells) if pooled is None else cells.averaged(pooled)
    )


def _survey(
    bands: Callable[[], Iterable[Band]],
    lse: Tensor,
    columns: int,
    top: int,
    cells: Cells | None,
    extras: Extras,
) -> Summary:
    """Return the summary of all bands, with the sums of a map whose cells fit the tiles."""
    batch, heads, rows = lse.shape
    tiled = cells if cells is not None and _fits_tiles(cells) else None
    map_size = (0, 0) if tiled is None else (tiled.rows, tiled.columns)
    zeros = lse.new_zeros(batch * heads * (columns + rows + map_size[0] * map_size[1]))
    parts = torch.split(
        zeros, [batch * heads * count for count in (columns, rows, map_size[0] * map_size[1])]
    )
    received, entropy, pooled = (
        part.view(batch, heads, *size)
        for part, size in zip(parts, ((columns,), (rows,), map_size), strict=True)
    )
    weights = lse.new_empty(*lse.shape, top)
    found = lse.new_empty(*lse.shape, top, dtype=torch.int32)
    overfull = lse.new_empty(lse.shape if top else (0,), dtype=torch.bool)
    sizes = (1, 1) if tiled is None else (tiled.row_size, tiled.key_size)
    carried = None if extras.norms is None else torch.zeros_like(lse)
    largest = torch.zeros_like(received) if extras.largest else None
    query = torch.full_like(received, -1, dtype=torch.int32) if extras.largest else None
    more = (extras.norms, carried, largest, query)
    for band in bands():
        run(
            survey_rows,
            band,
            lse,
            received,
            entropy,
            weights,
            found,
            overfull,
            pooled,
            *sizes,
            *more,
        )
    if query is not None:
        order = by_group(query)
        for band in bands():
            run(survey_largest_rows, band, lse, order, query)
    return Summary(
        lse,
        received,
        entropy,
        weights,
        found,
        None if tiled is None else pooled,
        carried=carried,
        largest_weight=largest,
        largest_query=query,
    )


def _fits_tiles(cells: Cells) -> bool:
    """Return whether `survey_rows` can sum the map: every tile lies in one cell."""
    return cells.how == "share" and cells.row_size % BM == 0 == cells.key_size % BN


_compiled: set[tuple[Any, ...]] = set()


def _compile_once(
    matrix: "Matrix", needs_lse: bool, top: int, cells: Cells | None, extras: Extras
) -> None:
    """Compile all kernels of a survey, in parallel, before its first launch; do nothing if this was
    done before.
    """
    queries = matrix.queries
    if not queries.is_cuda or not has_data(queries) or type(queries) is not Tensor:
        return
    kind = (
        compiled_for(queries.dtype, queries.shape[-2], *matrix.keys.shape[-2:], top),
        queries.device,
        needs_lse,
        None if cells is None else (cells.how, _fits_tiles(cells), cells.by_query),
        (extras.sets, extras.norms is None, extras.largest),
        matrix.softcap is None,
        matrix.slopes is None,
        matrix.relative is None,
        matrix.bias is None,
        matrix.mask is None,
    )
    if kind not in _compiled:
        band = next(matrix.bands(top=top))
        compile_ahead(queries.device, partial(_rehearse, band, needs_lse, top, cells, extras))
        _compiled.add(kind)


def _rehearse(band: Band, needs_lse: bool, top: int, cells: Cells | None, extras: Extras) -> None:
    """Call all launchers of a survey of one band. Tensors have the right shapes, but no numbers
    yet.
    """
    lse = band.queries.new_empty(band.queries.shape[:3], dtype=torch.float32)
    columns = band.keys.shape[-2]
    if needs_lse:
        survey_lse(band, None, lse)
    elif band.bias is None and band.mask is None:
        survey_check(band, None, lse, 1, 1, 1, lse.new_empty(4, 1, 1, 1))
    _survey(lambda: [band], lse, columns, top, cells, extras)
    if extras.query_weights is not None:
        weighted = lse.new_empty(*lse.shape[:2], extras.sets, columns)
        survey_weighted(band, lse, extras.query_weights.float(), weighted)
    if cells is not None and not _fits_tiles(cells):
        runs = aligned_rows(band.start.new_empty(3, 1))
        pooled = lse.new_empty(*lse.shape[:2], cells.rows, cells.columns)
        survey_map(
            band, lse, runs, runs, band.start.new_empty(columns), pooled, cells.how, cells.by_query
        )


def pool(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    cells: Cells,
) -> Float[Tensor, "batch heads rows columns"]:
    """Return the map of these cells alone."""

    def within(memory: int) -> Tensor:
        matrix = Matrix.of(queries, keys, attention, memory)
        return _pool(
            matrix, _lse(matrix, attention) if lse is None else lse.float().contiguous(), cells
        )

    return run_within_memory(within, MEMORY, LEAST, queries, keys)


def weigh(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    query_weights: Float[Tensor, "#batch #heads sets query"],
) -> Float[Tensor, "batch heads sets key"]:
    """Return what each key gets from the weighted queries, without the rest of a summary."""

    def within(memory: int) -> Tensor:
        matrix = Matrix.of(queries, keys, attention, memory)
        known = _lse(matrix, attention) if lse is None else lse.float().contiguous()
        return _weigh(matrix, known, query_weights)

    return run_within_memory(within, MEMORY, LEAST, queries, keys)


def _weigh(
    matrix: "Matrix", lse: Tensor, query_weights: Tensor
) -> Float[Tensor, "batch heads sets key"]:
    sets = query_weights.shape[2]
    columns = matrix.keys.shape[-2]
    weighted = lse.new_zeros(*lse.shape[:2], sets, columns)
    query_weights = query_weights.float()
    for band in matrix.bands():
        run(survey_weighted, band, lse, query_weights, weighted)
    return weighted


def log_sum_exp(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
) -> Float[Tensor, "batch heads query"]:
    """Return ln Σ exp(score) alone, the sink included."""

    def within(memory: int) -> Tensor:
        return _lse(Matrix.of(queries, keys, attention, memory), attention)

    return run_within_memory(within, MEMORY, LEAST, queries, keys)


def _lse(matrix: "Matrix", attention: Attention) -> Float[Tensor, "batch heads query"]:
    """Return ln Σ exp(score), the sink included."""
    lse = matrix.start.new_empty(matrix.queries.shape[:3], dtype=torch.float32)
    sinks = _sinks(attention, lse)
    for band in matrix.bands():
        run(survey_lse, band, sinks, lse)
    return lse


def _sinks(attention: Attention, lse: Tensor) -> Tensor | None:
    """Return the sinks (heads,) in bits, if the attention has any."""
    if attention.sink is None:
        return None
    return (
        torch.as_tensor(attention.sink, dtype=torch.float32, device=lse.device).expand(lse.shape[1])
        * LOG2_E
    )


def row_numbers(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor,
    batch: range,
    heads: range,
    rows: range,
) -> Float[Tensor, "4 batch heads row"] | None:
    """Return `exact_rows.row_numbers` by a kernel, or None where a mask or bias had to be written
    out as a table.
    """
    matrix = Matrix.of(queries, keys, attention, MEMORY)
    if matrix.bias is not None or matrix.mask is not None:
        return None
    (band,) = matrix.bands()
    numbers = matrix.start.new_empty(4, len(batch), len(heads), len(rows), dtype=torch.float32)
    lse = lse.float().contiguous()
    run(survey_check, band, _sinks(attention, lse), lse, batch.step, heads.step, rows.step, numbers)
    return numbers


def _pool(matrix: "Matrix", lse: Tensor, cells: Cells) -> Float[Tensor, "batch heads rows columns"]:
    pooled = lse.new_zeros(*lse.shape[:2], cells.rows, cells.columns)
    numbered = max(
        len(cells.row_of_query), len(cells.column_of_key)
    )  # sequences with cells of their own: one by one
    for b in range(numbered):
        batch = slice(None) if numbered == 1 else slice(b, b + 1)
        key_runs, run_of_key = _runs(cells.column_of_key[b % len(cells.column_of_key)], BN)
        row_of_query = cells.row_of_query[b % len(cells.row_of_query)]
        for band in matrix.bands(batch):
            rows = row_of_query[band.first : band.first + band.queries.shape[-2]]
            row_runs, _ = _runs(rows, BM, as_one=cells.by_query)
            run(
                survey_map,
                band,
                lse[batch],
                row_runs,
                key_runs,
                run_of_key,
                pooled[batch],
                cells.how,
                cells.by_query,
            )
    return cells.averaged(pooled) if cells.how == "share" else pooled


def _runs(
    cell: Int[Tensor, " position"], most: int, *, as_one: bool = False
) -> tuple[Int[Tensor, "3 run"], Int[Tensor, " position"]]:
    """Return runs of at most `most` neighbours in one cell, as (first, stop, cell), and the run of
    each position.

    With as_one, neighbours belong to one run whatever their cells; the cell of a run is that of its
    first.
    """
    positions = torch.arange(len(cell), device=cell.device)
    changes = torch.ones_like(cell, dtype=torch.bool)
    changes[1:] = False if as_one else cell[1:] != cell[:-1]
    since_change = positions - torch.where(changes, positions, 0).cummax(0).values
    first = (since_change % most == 0).nonzero().flatten()
    stop = torch.cat([first[1:], first.new_tensor([len(cell)])])
    run_of_position = torch.searchsorted(first, positions, right=True) - 1
    return aligned_rows(torch.stack([first, stop, cell[first]]).int()), run_of_position.int()


@dataclass(frozen=True, eq=False)
class Matrix:
    """An attention matrix as the kernels take it.

    Common masks and biases are given by their parameters. `bias` and `mask` are the others: they
    are written out as tables, for a band of rows at a time.
    """

    queries: Float[Tensor, "batch heads query d"]
    keys: Float[Tensor, "batch key_heads key d"]
    scale: float
    softcap: float | None
    slopes: Float[Tensor, " heads"] | None
    relative: Float[Tensor, "heads distances"] | None
    bias: Bias | None
    mask: Mask | None
    start: Int[Tensor, "#batch query"]
    stop: Int[Tensor, "#batch query"]
    tiles: Int[Tensor, "4 #batch tile"]
    memory: int
    """Bytes that a band may take."""

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, attention: Attention, memory: int) -> "Matrix":
        """Return the matrix of an attention that `cannot` has nothing against."""
        scale = attention.scale_for(keys.shape[-1])
        bias = attention.bias
        if (
            attention.score != dot
        ):  # in float32: the queries, once multiplied, should not be rounded to half precision
            queries, keys = attention.score.as_dot(queries.float(), keys.float())
        batch, heads, rows, _ = queries.shape
        columns = keys.shape[-2]
        start, stop, tiles, complete = _cached_spans(
            attention.mask, batch, heads, rows, columns, queries
        )
        table = (
            bias.slopes
            if isinstance(bias, Alibi)
            else bias.table
            if isinstance(bias, Relative)
            else None
        )
        table = (
            None
            if table is None
            else (table.detach().to(queries.device, torch.float32) * LOG2_E).contiguous()
        )
        if table is not None and isinstance(bias, Relative):
            table = table.expand(heads, -1).contiguous()
        assert bias is None or isinstance(bias, Bias)
        return cls(
            queries if queries.stride(-1) == 1 else queries.contiguous(),
            keys if keys.stride(-1) == 1 else keys.contiguous(),
            scale,
            attention.softcap,
            slopes=table if isinstance(bias, Alibi) else None,
            relative=table if isinstance(bias, Relative) else None,
            bias=None if table is not None else bias,
            mask=None if complete else attention.mask,
            start=start,
            stop=stop,
            tiles=tiles,
            memory=memory,
        )

    def bands(self, batch: slice = slice(None), *, top: int = 0) -> Iterator[Band]:
        """Yield bands of as many rows as fit into `memory`, with the scratch memory of a search for
        `top`.
        """
        sequences = range(len(self.queries))[batch]
        rows = self.queries.shape[-2]
        height = self.memory // max(self._row_bytes(sequences, top), 1)
        height = next(
            (height // step * step for step in (4 * BM, BM) if height >= step), BM
        )  # 4 spans: 16 bytes
        for first in range(0, rows, height):
            part = range(first, min(first + height, rows))
            yield Band(
                *self._part(batch, part),
                slopes=self.slopes,
                relative=self.relative,
                bias=None
                if self.bias is None
                else aligned_rows(self._table(self.bias, part, sequences).float()),
                mask=None
                if self.mask is None
                else aligned_rows(self._table(self.mask.sees, part, sequences)).view(torch.uint8),
                scale=self.scale,
                softcap=self.softcap,
                shift=self.keys.shape[-2] - rows + first,
                first=first,
            )

    def _part(self, batch: slice, rows: range) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, start, stop and tiles of these sequences and rows."""
        if batch == slice(None) and len(rows) == self.queries.shape[-2]:
            return self.queries, self.keys, self.start, self.stop, self.tiles
        part = slice(rows.start, rows.stop)
        of_tiles = slice(rows.start // BM, -(-rows.stop // BM))
        start, stop = (
            spans[batch if len(spans) > 1 else slice(None), part]
            for spans in (self.start, self.stop)
        )
        tiles = self.tiles[:, batch if self.tiles.shape[1] > 1 else slice(None), of_tiles]
        return self.queries[batch, :, part], self.keys[batch], start, stop, tiles

    def _row_bytes(self, batch: range, top: int) -> int:
        """Return the bytes of one row of a band: scratch memory of all heads, and its part of a
        mask and a bias.
        """
        sees = None if self.mask is None else self.mask.sees
        rules = (rule for rule in (self.bias, sees) if rule is not None)
        tables = sum(
            row.numel() * row.element_size()
            for row in (self._table(rule, range(1), batch) for rule in rules)
        )
        searched = scratch_bytes_per_row(self.keys.shape[-2], top) if top else 0
        return len(batch) * self.queries.shape[1] * searched + tables

    def _table(self, rule: object, rows: range, batch: range) -> Tensor:
        """Return a bias or mask written out for these rows and all keys."""
        size = (self.queries.shape[-2], self.keys.shape[-2])
        at = Pairs.block(
            rows,
            range(size[1]),
            of=size,
            batch=batch,
            heads=self.queries.shape[1],
            device=self.queries.device,
        )
        assert callable(rule)
        table: Tensor = rule(at)
        return table.detach().expand(*table.shape[:3], size[1])


def _spans(
    mask: Mask, batch: int, heads: int, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return the first key each row sees, one past the last, the spans of tiles, and whether a row
    sees all between.
    """
    at = Pairs.block(
        range(rows), range(1), of=(rows, columns), batch=batch, heads=heads, device=device
    )
    spans = mask.spans(at, columns)
    start, stop = (
        aligned_rows(ends.squeeze(-1).expand(-1, rows).int())
        for ends in (spans.start.amin(1), spans.stop.amax(1))
    )
    return start, stop, tile_spans(start, stop, columns, has_mask=not spans.whole), spans.whole


def _cached_spans(
    mask: Mask, batch: int, heads: int, rows: int, columns: int, queries: Tensor
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return `_spans`, made once for all layers of a model; the current stream waits for the one
    that made them.
    """
    held = tuple(tensors(mask))
    sizes = (batch, heads, rows, columns, queries.device)
    if (
        not has_data(queries)
        or type(queries) is not Tensor
        or any(one.is_inference() for one in held)
    ):
        return _spans(mask, *sizes)
    spans, made = _spans_and_event(
        SameMask(mask, tuple(one._version for one in held)) if held else mask, *sizes
    )
    if made is not None:
        made.wait(*spans[:3])
    return spans


class SameMask:
    """A mask with tensors, equal to itself alone, and only until one of its tensors is written to.

    Comparing numbers would wait for the GPU.
    """

    def __init__(self, mask: Mask, versions: tuple[int, ...]) -> None:
        self.mask = mask
        self.versions = versions

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SameMask)
            and self.mask is other.mask
            and self.versions == other.versions
        )

    def __hash__(self) -> int:
        return hash((id(self.mask), self.versions))


@lru_cache(maxsize=16)
def _spans_and_event(
    mask: Mask | SameMask, *sizes: Any
) -> tuple[tuple[Tensor, Tensor, Tensor, bool], StreamEvent | None]:
    return _spans(mask.mask if isinstance(mask, SameMask) else mask, *sizes), record_event(
        sizes[-1]
    )
