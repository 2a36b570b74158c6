"""Survey on a GPU: from queries, keys and lse, compute q·k once more, a tile at a time, and reduce
it at once.

First every block of keys sums what it receives, and writes down the largest weight of each row in
it. These maxima bound the `top` of a row from below, so that only the blocks that reach the bound
are searched for the keys themselves.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, has_data
from .blocks import obstacle, sink_of
from .device import compile_ahead, run_within_memory
from .launch import (
    by_group,
    compiled_for,
    run,
    survey_check,
    survey_largest_rows,
    survey_lse,
    survey_map,
    survey_rows,
    survey_weighted,
)
from .matrix import BN, LOG2_E, Band, Matrix, aligned_rows, next_power
from .requests import Cells, Extras, QueryWeights
from .summary import Keys, Map, PerQuery, PerSet, Queries, Summary

# Bytes that a band of rows may take for scratch memory and for a mask or bias written out as a
# table.
MEMORY = 2**29
LEAST = 2**22  # bytes below which a band would hardly have a tile of rows
MOST = 64  # the longest top a row is searched for
MOST_FEATURES = 256  # of a head: a tile of more does not fit into shared memory
LEAST_RUN = 32  # keys of the narrowest tile that a map is pooled by
CHECKED_TILES = 4  # of keys that one program of the check reads, up to CHECKED_PARTS programs
CHECKED_PARTS = 64
INSTALLED = find_spec("triton") is not None  # looked up once, not for every survey

Result = TypeVar("Result")


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
    if keys.shape[-1] > MOST_FEATURES:
        return f"a head of {keys.shape[-1]} features does not fit; {MOST_FEATURES} do"
    return obstacle(queries, keys, attention, top, MOST)


# ------------------------------------------------------------------------------- what others call


def summarize(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    top: int,
    cells: Cells | None,
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary, in bands of fewer rows where memory runs out. An lse, where given, is not
    computed again.
    """

    def within(matrix: Matrix) -> Summary:
        _compile_once(matrix, lse is None, top, cells, extras)
        # One pass for the lse, unless it is known, and one for everything else.
        known = _known_lse(matrix, attention, lse)
        summary = _survey(partial(matrix.bands, top=top), known, keys.shape[-2], top, cells, extras)
        if extras.weighted is not None:
            summary = replace(summary, weighted=_weigh(matrix, known, extras.weighted))
        # A map whose cells fit the tiles was summed on the way; any other takes a pass.
        if cells is not None and summary.map is None:
            summary = replace(summary, map=_pool(matrix, known, cells))
        return summary

    return _with_matrix(within, queries, keys, attention)


def pool(
    queries: Queries, keys: Keys, attention: Attention, lse: PerQuery | None, cells: Cells
) -> Map:
    """Return the map of these cells alone."""

    def within(matrix: Matrix) -> Map:
        known = _known_lse(matrix, attention, lse)
        if not _fits_tiles(cells):
            return _pool(matrix, known, cells)
        # The kernel of a survey reads larger tiles, and fewer of them, than that of a map.
        pooled = _survey(matrix.bands, known, keys.shape[-2], 0, cells, Extras()).map
        assert pooled is not None
        return pooled

    return _with_matrix(within, queries, keys, attention)


def weigh(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    query_weights: QueryWeights,
) -> PerSet:
    """Return what each key gets from the weighted queries, without the rest of a summary."""
    return _with_matrix(
        lambda matrix: _weigh(matrix, _known_lse(matrix, attention, lse), query_weights),
        queries,
        keys,
        attention,
    )


def log_sum_exp(queries: Queries, keys: Keys, attention: Attention) -> PerQuery:
    """Return ln Σ exp(score) alone, the sink included."""
    return _with_matrix(
        lambda matrix: _known_lse(matrix, attention, None), queries, keys, attention
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
    """Return `reference.row_numbers` by a kernel, or None where a mask or bias had to be written
    out as a table.
    """
    matrix = Matrix.of(queries, keys, attention, MEMORY)
    if matrix.has_tables:
        return None
    (band,) = matrix.bands()  # without tables and a search one band has all rows
    lse = lse.float().contiguous()
    # Several programs share the keys: one alone would take longer than a survey.
    parts = min(-(-keys.shape[-2] // (CHECKED_TILES * BN)), CHECKED_PARTS)
    numbers = lse.new_zeros(4, len(batch), len(heads), len(rows))
    steps = (batch.step, heads.step, rows.step)
    run(survey_check, band, _sinks(attention, lse), lse, *steps, parts, numbers)
    return numbers


def _with_matrix(
    compute: Callable[[Matrix], Result], queries: Tensor, keys: Tensor, attention: Attention
) -> Result:
    """Return compute(matrix), with bands of fewer rows where memory runs out."""

    def within(memory: int) -> Result:
        return compute(Matrix.of(queries, keys, attention, memory))

    return run_within_memory(within, MEMORY, LEAST, queries, keys)


# ------------------------------------------------------------------------------ bands, one by one


def _survey(
    bands: Callable[[], Iterable[Band]],
    lse: Tensor,
    columns: int,
    top: int,
    cells: Cells | None,
    extras: Extras,
) -> Summary:
    """Return the summary of all bands, with the sums of a map whose cells fit the tiles."""
    # What kernels add to is zero at first: one piece of memory, so that one kernel clears it.
    batch, heads, rows = lse.shape
    tiled = cells if _fits_tiles(cells) else None
    map_size = (0, 0) if tiled is None else (tiled.rows, tiled.columns)
    matrices = batch * heads
    counts = [matrices * columns, matrices * rows, matrices * map_size[0] * map_size[1]]
    zeros = lse.new_zeros(sum(counts)).split_with_sizes(counts)
    received = zeros[0].view(batch, heads, columns)
    entropy = zeros[1].view(batch, heads, rows)
    pooled = None if tiled is None else zeros[2].view(batch, heads, *map_size)
    cell_sizes = (1, 1) if tiled is None else (tiled.row_size, tiled.key_size)
    weights = lse.new_empty((batch, heads, rows, top))
    found = lse.new_empty((batch, heads, rows, top), dtype=torch.int32)
    carried = None if extras.carried is None else torch.zeros_like(lse)
    largest = torch.zeros_like(received) if extras.largest else None
    query = torch.full_like(received, -1, dtype=torch.int32) if extras.largest else None

    for band in bands():
        run(
            survey_rows, band, lse, received, entropy, weights, found, pooled, *cell_sizes,
            extras.carried, carried, largest, query,
        )  # fmt: skip
    if query is not None:  # so far it is known in which group of rows the largest weight is
        order = by_group(query)
        for band in bands():
            run(survey_largest_rows, band, lse, order, query)
    return Summary(
        lse=lse,
        received=received,
        entropy=entropy,
        top_weights=weights,
        top_keys=found,
        map=pooled,
        carried=carried,
        largest_weight=largest,
        largest_query=query,
    )


def _fits_tiles(cells: Cells | None) -> bool:
    """Return whether `survey_rows` sums the map on its way: 16 rows of a tile and a power of two of
    its keys lie in one cell.
    """
    if cells is None or cells.how != "share":
        return False
    keys = cells.key_size
    return cells.row_size % 16 == 0 == keys % 16 and (BN % keys == 0 or keys % BN == 0)


def _weigh(matrix: Matrix, lse: Tensor, query_weights: Tensor) -> PerSet:
    sets = query_weights.shape[2]
    weighted = lse.new_zeros(*lse.shape[:2], sets, matrix.keys.shape[-2])
    query_weights = query_weights.float()
    for band in matrix.bands():
        run(survey_weighted, band, lse, query_weights, weighted)
    return weighted


def _known_lse(matrix: Matrix, attention: Attention, given: Tensor | None) -> PerQuery:
    """Return the lse given or, without one, ln Σ exp(score), the sink included."""
    if given is not None:
        return given.float().contiguous()
    lse = matrix.start.new_empty(matrix.queries.shape[:3], dtype=torch.float32)
    sinks = _sinks(attention, lse)
    for band in matrix.bands():
        run(survey_lse, band, sinks, lse)
    return lse


def _sinks(attention: Attention, lse: Tensor) -> Tensor | None:
    """Return the sinks (heads,) in bits, if the attention has any."""
    if attention.sink is None:
        return None
    return sink_of(attention, torch.float32, lse.device).expand(lse.shape[1]) * LOG2_E


def _pool(matrix: Matrix, lse: Tensor, cells: Cells) -> Map:
    pooled = lse.new_zeros(*lse.shape[:2], cells.rows, cells.columns)
    even = _even_runs(cells)
    if even is not None:
        for band in matrix.bands():
            run(survey_map, band, lse, None, None, None, pooled, cells.how, *even)
        return pooled
    # Sequences with cells of their own are pooled one by one.
    numbered = max(len(cells.row_of_query), len(cells.column_of_key))
    for b in range(numbered):
        batch = slice(None) if numbered == 1 else slice(b, b + 1)
        row_cell = cells.row_of_query[b % len(cells.row_of_query)].int()
        runs, run_of_key = _runs(cells.column_of_key[b % len(cells.column_of_key)], BN)
        for band in matrix.bands(batch):
            run(
                survey_map, band, lse[batch], row_cell[band.first :], runs, run_of_key,
                pooled[batch], cells.how, BN, 1,
            )  # fmt: skip
    return cells.averaged(pooled) if cells.how == "share" else pooled


def _even_runs(cells: Cells) -> tuple[int, int] | None:
    """Return how many keys of a cell are multiplied at a time, and in how many steps, if the kernel
    can compute the cell of each row and key by itself; else None.
    """
    # The kernel multiplies positions with cells, in 32 bits.
    if cells.of is None or max(cells.of[0] * cells.rows, cells.of[1] * cells.columns) >= 2**31:
        return None
    most = -(-cells.of[1] // cells.columns)
    # A tile no wider than the cells: the rest of a tile would be computed for nothing.
    width = min(BN, max(LEAST_RUN, next_power(most)))
    return width, -(-most // width)


def _runs(
    cell: Int[Tensor, " position"], most: int
) -> tuple[Int[Tensor, "3 run"], Int[Tensor, " position"]]:
    """Return runs of at most `most` neighbours in one cell, as (first, stop, cell), and the run of
    each position.
    """
    positions = torch.arange(len(cell), device=cell.device)
    # A run begins where the cell changes, and after every `most` neighbours.
    changes = torch.ones_like(cell, dtype=torch.bool)
    changes[1:] = cell[1:] != cell[:-1]
    since_change = positions - torch.where(changes, positions, 0).cummax(0).values
    first = (since_change % most == 0).nonzero().flatten()
    stop = torch.cat([first[1:], first.new_tensor([len(cell)])])
    run_of_position = torch.searchsorted(first, positions, right=True) - 1
    return aligned_rows(torch.stack([first, stop, cell[first]]).int()), run_of_position.int()


# ---------------------------------------------------------------------------------- compile ahead

# The kinds of surveys whose kernels this process has compiled: a process never forgets them.
_compiled: set[tuple[Any, ...]] = set()


def _compile_once(
    matrix: Matrix, needs_lse: bool, top: int, cells: Cells | None, extras: Extras
) -> None:
    """Compile all kernels of a survey, in parallel, before its first launch; do nothing if this was
    done before.
    """
    queries = matrix.queries
    if not queries.is_cuda or not has_data(queries) or type(queries) is not Tensor:
        return
    # What is None is compiled away, so that each combination has kernels of its own.
    optional = (matrix.softcap, matrix.slopes, matrix.relative, matrix.bias, matrix.mask)
    kind = (
        compiled_for(queries.dtype, queries.shape[-2], *matrix.keys.shape[-2:], top),
        queries.device,
        needs_lse,
        None if cells is None else _compiled_for_map(cells),
        (extras.sets, extras.carried is None, extras.largest),
        *(part is None for part in optional),
    )
    if kind not in _compiled:
        band = next(matrix.bands(top=top))
        compile_ahead(queries.device, partial(_rehearse, band, needs_lse, top, cells, extras))
        _compiled.add(kind)


def _compiled_for_map(cells: Cells) -> tuple[Any, ...]:
    """Return what the kernel that sums a map is compiled for."""
    if _fits_tiles(cells):
        return ("tiles", min(cells.key_size, BN))
    even = _even_runs(cells)
    return (cells.how, None if even is None else even[0])


def _rehearse(band: Band, needs_lse: bool, top: int, cells: Cells | None, extras: Extras) -> None:
    """Call all launchers of a survey of one band. Tensors have the right shapes, but no numbers
    yet.
    """
    lse = band.queries.new_empty(band.queries.shape[:3], dtype=torch.float32)
    columns = band.keys.shape[-2]
    if needs_lse:
        survey_lse(band, None, lse)
    elif band.bias is None and band.mask is None:
        survey_check(band, None, lse, 1, 1, 1, 1, lse.new_empty(4, 1, 1, 1))
    # The same calls as in a survey, so that no kernel is forgotten.
    _survey(lambda: [band], lse, columns, top, cells, extras)
    if extras.weighted is not None:
        weighted = lse.new_empty(*lse.shape[:2], extras.sets, columns)
        survey_weighted(band, lse, extras.weighted.float(), weighted)
    if cells is not None and not _fits_tiles(cells):
        pooled = lse.new_empty(*lse.shape[:2], cells.rows, cells.columns)
        even = _even_runs(cells)
        if even is not None:
            survey_map(band, lse, None, None, None, pooled, cells.how, *even)
        else:
            row_cell = band.start.new_empty(lse.shape[-1])
            runs = aligned_rows(band.start.new_empty(3, 1))
            run_of_key = band.start.new_empty(columns)
            survey_map(band, lse, row_cell, runs, run_of_key, pooled, cells.how, BN, 1)
