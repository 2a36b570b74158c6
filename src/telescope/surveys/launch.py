"""Launch the survey's Triton kernels: directly or, under torch.compile and FakeTensor, as torch
operators.

Every launcher `survey_...` takes a `Band` of rows and the tensors that it writes to. `run` calls a
launcher.
"""

from collections.abc import Callable
from functools import lru_cache
from inspect import Parameter, Signature, signature
from math import log
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor
from torch.nn.functional import pad

from .launch_cache import launch_cache_for

# Rows and keys of a tile
BM = 64
BN = 128
# Keys whose largest weight is written down; with more than MANY_KEYS keys a whole tile's, to read
# less.
BLOCK = 64
MANY_KEYS = 2**14
# Tiles of keys from which on whole tiles get kernels of their own, 5 % faster without checks of
# bounds.
MANY_TILES = 32
MAXIMA = (
    torch.float16
)  # dtype of these largest weights, precise enough to choose the blocks to search
SPLIT = torch.bfloat16  # dtype of the two parts of a query's weight: float16 would lose small ones
# Tiles of rows, one of which has the largest weight of a key; which, is found out afterwards.
GROUP = 32
ALL_TILES = 2**30
MOST_SETS = 16  # weights of a query that are multiplied with a tile at a time
NO_WEIGHT = -1e30  # log2 of no weight, as in the kernels
LOG2_E = 1.0 / log(2.0)
MOST_COMMON = 16  # blocks per tile of rows that may raise its thresholds
PROGRAMS = 256  # of a kernel, to occupy a GPU: few rows share their keys among so many
LEAST_KEYS = 1024  # for each of these
PROGRAMS_PER_BLOCK = 4  # programs that share the rows to be multiplied with one block of keys
SMALL: dict[str, Any] = {
    "num_warps": 4,
    "enable_fp_fusion": True,
}  # triton's defaults, which later versions require


class Band(NamedTuple):
    """Some rows of an attention matrix, with all of its keys: the arguments that all launchers
    share.

    The schemas of the torch operators are made from these fields, so the fields are written out
    here alone.
    """

    queries: Tensor
    """(batch, heads, row, d): those of the band. The features of each query are contiguous."""
    keys: Tensor
    """(batch, key heads, key, d): all keys. The features of each key are contiguous."""
    start: Tensor
    """(batch or 1, row), int32: the first key that each row may see."""
    stop: Tensor
    """(batch or 1, row), int32: one past the last key that each row may see."""
    tiles: Tensor
    """(4, batch or 1, tile), int32: `tile_spans` of these rows."""
    slopes: Tensor | None
    """(heads,), float32: the slopes of ALiBi · log2(e)."""
    relative: Tensor | None
    """(heads, distances), float32: a bias for each distance · log2(e)."""
    bias: Tensor | None
    """(batch or 1, heads or 1, row or 1, key), float32: any other bias, written out for the band in
    `aligned_rows`.
    """
    mask: Tensor | None
    """(batch or 1, heads or 1, row or 1, key), uint8: 1 where a row sees a key, if start and stop
    do not suffice.
    """
    scale: float
    softcap: float | None
    shift: int
    """The position of the band's first row, counted in keys."""
    first: int
    """The number of the band's first row in the whole matrix."""

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Rows, keys, heads, heads per key head and features, in the order in which the kernels
        take them.
        """
        _, heads, rows, width = self.queries.shape
        _, key_heads, keys, _ = self.keys.shape
        return rows, keys, heads, heads // key_heads, width

    @property
    def matrices(self) -> int:
        """Batch size · heads: how many matrices the kernels run over."""
        return self.queries.shape[0] * self.queries.shape[1]

    def kernel_arguments(self) -> tuple[Any, Any, Any, Any]:
        """Return queries, keys, rule and tile spans as the kernels take them."""
        from . import kernels

        structures: Any = kernels
        relative = self.relative
        start = self.start
        tiles = self.tiles
        rule = structures.Rule(
            self.scale,
            self.softcap,
            self.slopes,
            relative,
            None if relative is None else relative.shape[-1],
            self.bias,
            *_strides(self.bias),
            self.mask,
            *_strides(self.mask),
            start,
            self.stop,
            start.stride(0) if len(start) > 1 else 0,
            0 if self.slopes is None and relative is None else self.shift,
        )
        return (
            structures.HeadTensor(self.queries, *_strides(self.queries)),
            structures.HeadTensor(self.keys, *_strides(self.keys)),
            rule,
            structures.TileSpans(*tiles, tiles.stride(1) if tiles.shape[1] > 1 else 0),
        )


def run(launcher: Any, band: Band, *arguments: Any) -> None:
    """Call launcher(band, *arguments): as a torch operator while tracing, else directly, which
    takes less time.

    torch.compile and FakeTensor cannot trace a kernel launch; of an operator they need only what it
    changes.
    """
    if torch.compiler.is_compiling() or type(band.queries) is not Tensor:
        OPERATORS[launcher](*band, *arguments)
    else:
        launcher(band, *arguments)


OPERATORS: dict[Any, Any] = {}
"""The torch operator of each launcher."""

BAND_TYPES = get_type_hints(Band)

Launcher = TypeVar("Launcher", bound=Callable[..., None])


def _operator(*mutated: str) -> Callable[[Launcher], Launcher]:
    """Register a launcher as the torch operator telescope::<its name>, which writes to the
    arguments named here.

    The schema of an operator has no place for a NamedTuple, so the operator takes the fields of the
    Band one by one.
    """

    def register(launcher: Launcher) -> Launcher:
        count = len(Band._fields)

        def operator(*arguments: Any) -> None:
            launcher(Band(*arguments[:count]), *arguments[count:])

        kind = Parameter.POSITIONAL_OR_KEYWORD
        shared = [
            Parameter(name, kind, annotation=annotation) for name, annotation in BAND_TYPES.items()
        ]
        own = [*signature(launcher).parameters.values()][1:]
        operator.__signature__ = Signature([*shared, *own], return_annotation=None)  # type: ignore[attr-defined]
        custom = torch.library.custom_op(
            f"telescope::{launcher.__name__}", operator, mutates_args=mutated
        )
        custom.register_fake(lambda *arguments: None)
        OPERATORS[launcher] = custom
        return launcher

    return register


# ---------------------------------------------------------------------------------------- launchers


@_operator("lse")
def survey_lse(band: Band, sinks: Tensor | None, lse: Tensor) -> None:
    """Write ln Σ exp(score) of the band's rows into lse (batch, heads, query); sinks (heads,) are
    in bits.
    """
    from . import kernels

    launch = launch_cache_for(*band, sinks, lse)
    grid = (-(-band.queries.shape[-2] // (2 * BM)), band.matrices)
    keys = band.keys.shape[-2]
    parts = min(PROGRAMS // (grid[0] * grid[1]), keys // LEAST_KEYS)
    part_keys = keys if parts < 2 else -(-keys // (parts * BN)) * BN
    parts = -(-keys // part_keys)
    written = _rows_from(band, lse) if parts == 1 else lse.new_empty(parts, *band.queries.shape[:3])
    launch(
        kernels.log_sum_exp, (*grid, parts),
        *band.kernel_arguments(), lse if sinks is None else sinks, written, *band.sizes,
        band.tiles.shape[-1], lse.shape[-1] if parts == 1 else written.shape[-1], int(sinks is not None), part_keys,
        TILES=2, **_tile_settings(band) | {"BM": 2 * BM, "BN": BN // 2, "num_warps": 8},
    )  # fmt: skip
    if parts > 1:
        lse[:, :, band.first : band.first + written.shape[-1]] = written.logsumexp(0)


@_operator("numbers")
def survey_check(
    band: Band,
    sinks: Tensor | None,
    lse: Tensor,
    batch_step: int,
    head_step: int,
    row_step: int,
    numbers: Tensor,
) -> None:
    """Write `exact_rows.row_numbers` into numbers (4, batch, heads, row), of at most 16 rows; the
    band has all rows.
    """
    from . import kernels

    launch = launch_cache_for(*band, sinks, lse, batch_step, head_step, row_step, numbers)
    q, k, rule, _ = band.kernel_arguments()
    _, batch, heads, rows = numbers.shape
    launch(
        kernels.check_rows, (heads, batch),
        q, k, lse, rule, lse if sinks is None else sinks, numbers, *band.sizes, lse.shape[-1], int(sinks is not None),
        batch_step, head_step, row_step, rows,
        **_without_even(_tile_settings(band)) | {"BM": 16},
    )  # fmt: skip


@_operator(
    "received",
    "entropy",
    "weights",
    "found",
    "overfull",
    "pooled",
    "carried",
    "largest",
    "largest_row",
)
def survey_rows(
    band: Band, lse: Tensor, received: Tensor, entropy: Tensor, weights: Tensor, found: Tensor, overfull: Tensor,
    pooled: Tensor, cell_rows: int, cell_keys: int, norms: Tensor | None, carried: Tensor | None,
    largest: Tensor | None, largest_row: Tensor | None,
) -> None:  # fmt: skip
    """Compute what a survey has of the band: add to received and pooled, and write the band's rows
    of the others.

    received (batch, heads, key)                       pooled (batch, heads, rows, columns), or
                                                       without elements
    entropy, overfull (batch, heads, query)            weights, found (batch, heads, query, top)

    A cell of the map has `cell_rows` x `cell_keys` weights. A row is overfull where more keys might
    be among its top than `search_capacity` has room for: it was searched from its first key to its
    last. norms (batch, heads, key) are summed into carried (batch, heads, query), and largest and
    largest_row (batch, heads, key) are raised, unless None.
    """
    from . import kernels

    launch = launch_cache_for(
        *band, lse, received, entropy, weights, found, overfull, pooled, cell_rows, cell_keys, norms, carried, largest,
        largest_row,
    )  # fmt: skip
    sizes = band.sizes
    matrices = band.matrices
    top = weights.shape[-1]
    rows, keys, heads, *_ = sizes
    row_tiles = band.tiles.shape[-1]
    lse_stride = lse.shape[-1]
    grid = (band.tiles.shape[-1], matrices)
    q, k, rule, spans = band.kernel_arguments()
    settings = _tile_settings(band)
    band_lse = _rows_from(band, lse)
    block, key_blocks, block_capacity, key_capacity = _search_sizes(keys, top)
    padded_rows = row_tiles * BM

    def scratch(per_row: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return band_lse.new_empty(matrices * padded_rows * per_row, dtype=dtype)

    maxima = scratch(max(key_blocks, 4 * key_capacity), MAXIMA) if top else None
    launch(
        kernels.statistics, (-(-keys // BN), matrices),
        q, k, band_lse, rule, spans, received, _rows_from(band, entropy), maxima, pooled if pooled.numel() else None,
        norms, None if carried is None else _rows_from(band, carried), largest, largest_row,
        *sizes, row_tiles, lse_stride, cell_rows, cell_keys, pooled.shape[-1],
        pooled.shape[-2] * pooled.shape[-1], band.first,
        BLOCK=block, GROUP=ALL_TILES if largest is None else GROUP, **settings,
    )  # fmt: skip
    if maxima is None:
        return

    threshold = scratch(1, torch.float32)
    block_count = scratch(1)
    common = band_lse.new_empty(*grid, MOST_COMMON + 1, dtype=torch.int32)
    row_blocks = scratch(block_capacity, torch.int64)
    block_rows = scratch(block_capacity)
    zeros = band_lse.new_zeros(matrices * (key_blocks + padded_rows), dtype=torch.int32)
    row_count, key_count = torch.split(zeros, [matrices * key_blocks, matrices * padded_rows])
    classes = max(32, 2 * _padded(top))
    launch(
        kernels.find_blocks, grid,
        maxima, spans, threshold, row_count, block_count, row_blocks, common, heads, row_tiles, key_blocks, top,
        BM=BM, BN=block, CLASSES=classes, BLOCK_CAPACITY=block_capacity, MOST_COMMON=MOST_COMMON,
        **SMALL | {"num_warps": classes // 16},
    )  # fmt: skip
    first_row = row_count.cumsum(0, dtype=torch.int32) - row_count
    launch(
        kernels.group_rows, (padded_rows // 16, matrices),
        block_count, row_blocks, first_row, block_rows, padded_rows, key_blocks,
        BM=16, BLOCK_CAPACITY=block_capacity, **SMALL,
    )  # fmt: skip
    settings = _without_even(settings) | {"BN": block}
    launch(
        kernels.raise_thresholds, grid,
        q, k, band_lse, rule, threshold, common, *sizes, row_tiles, lse_stride, top,
        MOST_COMMON=MOST_COMMON, **settings,
    )  # fmt: skip
    candidates = maxima.view(
        torch.int64
    )  # the maxima are not read again: their memory takes the candidate keys
    launch(
        kernels.collect_keys, (key_blocks, PROGRAMS_PER_BLOCK, matrices),
        q, k, band_lse, rule, threshold, first_row, row_count, block_rows, key_count, candidates,
        *sizes, padded_rows, lse_stride, KEY_CAPACITY=key_capacity, **settings,
    )  # fmt: skip
    results = _rows_from(band, weights), _rows_from(band, found)
    launch(
        kernels.rank_keys, (-(-rows // 4), matrices),
        block_count, key_count, candidates, *results, _rows_from(band, overfull), rows, padded_rows, lse_stride, top,
        BM=4, BLOCK_CAPACITY=block_capacity, KEY_CAPACITY=key_capacity, FEW=2 * _padded(top), TOP_PADDED=_padded(top),
        **SMALL | {"num_warps": 1},
    )  # fmt: skip
    launch(
        kernels.search_all_keys, (-(-rows // 16), matrices),
        q, k, band_lse, rule, spans, _rows_from(band, overfull), *results, *sizes, lse_stride, top,
        PROGRAMS=BM // 16, TOP_PADDED=_padded(top), **settings | {"BM": 16, "BN": BN},
    )  # fmt: skip


@_operator("largest_row")
def survey_largest_rows(band: Band, lse: Tensor, order: Tensor, largest_row: Tensor) -> None:
    """Replace, in largest_row (batch, heads, key), the first row of a group by the row that has the
    largest weight.

    order (batch, heads, key) has the keys as `by_group` orders them. Groups of rows in other bands
    are left alone.
    """
    from . import kernels

    launch = launch_cache_for(*band, lse, order, largest_row)
    q, k, rule, spans = band.kernel_arguments()
    launch(
        kernels.find_largest_rows, (-(-band.keys.shape[-2] // (BN // 2)), band.matrices),
        q, k, _rows_from(band, lse), rule, spans, order, largest_row, *band.sizes, lse.shape[-1], band.first,
        GROUP=GROUP, **_tile_settings(band) | {"BN": BN // 2},  # three tiles of registers
    )  # fmt: skip


def by_group(largest_row: Tensor) -> Tensor:
    """Return the keys in the order of the groups of rows that have their largest weights."""
    return (largest_row // (GROUP * BM)).short().argsort(-1)


@_operator("weighted")
def survey_weighted(band: Band, lse: Tensor, query_weights: Tensor, weighted: Tensor) -> None:
    """Add Σ over the band's rows of query_weights · weight to weighted (batch, heads, sets, key).

    query_weights (batch or 1, heads or 1, sets, query) are float32. At most MOST_SETS are summed at
    a time.
    """
    from . import kernels

    launch = launch_cache_for(*band, lse, query_weights, weighted)
    q, k, rule, spans = band.kernel_arguments()
    rows = band.queries.shape[-2]
    grid = (-(-band.keys.shape[-2] // BN), band.matrices)
    own = query_weights[..., band.first : band.first + rows]
    settings = _tile_settings(band)
    sizes = *band.sizes, band.tiles.shape[-1], lse.shape[-1]
    if weighted.shape[2] == 1:
        own = own[:, :, 0].contiguous()
        launch(kernels.weigh_once, grid, q, k, _rows_from(band, lse), rule, spans, own, weighted, *sizes,
               *_strides(own)[:2], **settings)  # fmt: skip
        return
    lse_base_2 = torch.where(lse == -torch.inf, -NO_WEIGHT, lse * LOG2_E)
    for first in range(0, weighted.shape[2], MOST_SETS):
        part = slice(first, min(first + MOST_SETS, weighted.shape[2]))
        factors = _factors(own[:, :, part], band.queries.dtype)
        sums = torch.zeros_like(weighted[:, :, part])
        launch(
            kernels.weigh, grid, q, k, _rows_from(band, lse_base_2), rule, spans, factors, sums, *sizes,
            sums.shape[2], *_strides(factors)[:2],
            SETS=factors.shape[-1], PARTS=factors.shape[-2], **settings,
        )  # fmt: skip
        weighted[:, :, part] += sums


def _factors(query_weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of queries (batch, head, row, part, set): beside float32 one part, else
    two of SPLIT.
    """
    sets = query_weights.shape[2]
    weights = query_weights.mT
    if dtype == torch.float32:
        return pad(weights, (0, max(16, _next_power(sets)) - sets))[..., None, :].contiguous()
    weights = pad(weights, (0, max(8, _next_power(sets)) - sets))
    high = weights.to(SPLIT)
    return torch.stack([high, (weights - high.float()).to(SPLIT)], -2)


@_operator("pooled")
def survey_map(
    band: Band, lse: Tensor, row_runs: Tensor, key_runs: Tensor, run_of_key: Tensor, pooled: Tensor, how: str,
    by_row: bool,
) -> None:  # fmt: skip
    """Add the band's rows to the map pooled (batch, heads, rows, columns); how is "share" or "max".

    row_runs (3, run) and key_runs (3, run) are the runs of neighbours in one cell: first, stop and
    cell. A run of rows has at most BM, one of keys at most BN. run_of_key (key,) is the number of
    each key's run. With by_row, every row of a run has a row of the map of its own, from that of
    the run on.
    """
    from . import kernels

    launch = launch_cache_for(*band, lse, row_runs, key_runs, run_of_key, pooled, how, by_row)
    q, k, rule, _ = band.kernel_arguments()
    launch(
        kernels.pool, (row_runs.shape[-1], band.matrices),
        q, k, _rows_from(band, lse), rule, tuple(row_runs), tuple(key_runs), run_of_key, pooled,
        *band.sizes, lse.shape[-1], pooled.shape[-1], pooled[0, 0].numel(),
        SHARE=how == "share", BY_ROW=by_row, **_without_even(_tile_settings(band)),
    )  # fmt: skip


@_operator("share", "seen")
def survey_listed(
    band: Band, lse: Tensor, listed_rows: Tensor, listed_keys: Tensor, begin: Tensor, end: Tensor, share: Tensor,
    seen: Tensor | None,
) -> None:  # fmt: skip
    """Write the weight of each row's listed keys into share (set, batch, heads, query); the band
    has all rows.

    listed_rows (batch or 1, row) and listed_keys (batch or 1, slot) are lists of rows and keys. In
    each set, the keys of the row in a slot stand in the slots from begin to end (set, batch or 1,
    row) of the other list. seen (batch, heads, query), unless None, becomes true where a row sees
    one of its keys of the first set.
    """
    from . import kernels

    launch = launch_cache_for(*band, lse, listed_rows, listed_keys, begin, end, share, seen)
    rows, keys, heads, group, width = band.sizes
    sets = len(begin)
    q, k, rule, _ = band.kernel_arguments()
    strides = (
        0 if len(part) == 1 else part.shape[-1] for part in (listed_rows, listed_keys, begin[0])
    )
    launch(
        kernels.sum_listed, (-(-rows // BM), band.matrices),
        q, k, lse, rule, listed_rows, listed_keys, begin, end, share, seen,
        rows, keys, rows, listed_keys.shape[-1], *strides, begin[0].numel(), heads, group, width, lse.shape[-1],
        share[0].numel(),
        SETS=sets, SETS_PADDED=_next_power(sets), **_without_even(_tile_settings(band)),
    )  # fmt: skip


# ------------------------------------------------------------------------- arguments of the kernels


def tile_spans(start: Tensor, stop: Tensor, keys: int, *, has_mask: bool) -> Tensor:
    """Return the spans of keys of each tile of BM rows, (4, batch or 1, tile): first, stop, inner
    first, inner stop.

    From first to stop some row of the tile sees a key, from inner first to inner stop all rows see
    all keys. With has_mask, a mask is written out as a table, and no tile has inner keys. Rows
    beyond the last change no span.
    """
    missing = (0, -start.shape[-1] % BM)

    def by_tile(spans: Tensor, fill: int) -> Tensor:
        return pad(spans, missing, value=fill).reshape(len(spans), -1, BM)

    first = by_tile(torch.where(start < stop, start, keys), keys).amin(-1)
    last = by_tile(stop, 0).amax(-1)
    if has_mask:
        return aligned_rows(
            torch.stack([first, last, torch.full_like(first, keys), torch.zeros_like(first)])
        )
    return aligned_rows(
        torch.stack([first, last, by_tile(start, 0).amax(-1), by_tile(stop, keys).amin(-1)])
    )


def aligned_rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose strides, but the last, are multiples of 16: for any others, Triton
    compiles anew.
    """
    size = tensor.shape[-1]
    return pad(tensor, (0, -size % 16))[..., :size] if size % 16 else tensor.contiguous()


def search_capacity(top: int) -> tuple[int, int]:
    """Return in how many blocks the top of a row is searched, and among how many of their keys.

    A row that needs more is overfull, and is searched from its first key to its last.
    """
    return 4 * _padded(top), max(64, 4 * _padded(top))


def scratch_bytes_per_row(keys: int, top: int) -> int:
    """Return the bytes that the search for one row's top takes: maxima, later candidate keys; and
    blocks twice.
    """
    _, key_blocks, block_capacity, key_capacity = _search_sizes(keys, top)
    return max(key_blocks * MAXIMA.itemsize, key_capacity * 8) + block_capacity * (8 + 4)


def _search_sizes(keys: int, top: int) -> tuple[int, int, int, int]:
    """Return the keys per block, the blocks in all tiles of keys, and the two numbers of
    `search_capacity`.
    """
    block = BN if keys > MANY_KEYS else min(BN, max(BLOCK, 2 * _padded(top)))
    return block, -(-keys // BN) * (BN // block), *search_capacity(top)


@lru_cache(maxsize=64)
def compiled_for(
    dtype: torch.dtype, rows: int, keys: int, features: int, top: int
) -> tuple[Any, ...]:
    """Return what the kernels of a survey are compiled for, besides the definition."""
    block, _, *capacities = _search_sizes(keys, top)
    return (
        dtype,
        *_tile_settings_for(dtype, rows, keys, features).values(),
        top > 0,
        block,
        *capacities,
    )


def _strides(tensor: Tensor | None) -> tuple[int, ...]:
    """Return the strides of batch, head and position; 0 for an axis of size one, which all
    share.
    """
    if tensor is None:
        return (0, 0, 0)
    return tuple(
        0 if size == 1 else step
        for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )


def _rows_from(band: Band, rows: Tensor) -> Tensor:
    """Return (batch, heads, row, ...) from the band's first row on."""
    return rows[:, :, band.first :] if band.first else rows


def _tile_settings(band: Band) -> dict[str, Any]:
    return _tile_settings_for(
        band.queries.dtype, band.queries.shape[-2], band.keys.shape[-2], band.keys.shape[-1]
    )


def _tile_settings_for(dtype: torch.dtype, rows: int, keys: int, features: int) -> dict[str, Any]:
    """Return how a tile is computed. Wide heads and float32 need more shared memory, so they get
    fewer stages.
    """
    width = max(16, _next_power(features))
    large = width * dtype.itemsize > 256
    return {
        "D": width,
        "BM": BM,
        "BN": BN,
        "EVEN": keys >= MANY_TILES * BN and width == features and rows % BM == 0 == keys % BN,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "num_warps": 8 if large else 4,
        "num_stages": 2 if large else 3,
        "enable_fp_fusion": True,  # triton's default, which later versions require
    }


def _without_even(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for a kernel that always checks the bounds of its tiles."""
    return {name: value for name, value in settings.items() if name != "EVEN"}


def _padded(top: int) -> int:
    """Return the smallest of 8, 16, 32, 64, ... that is not below top: kernels are compiled for
    these alone.
    """
    return max(8, _next_power(top))


def _next_power(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
