"""Launch the survey's Triton kernels: directly or, under torch.compile and FakeTensor, as torch
operators.

Every launcher `survey_...` takes a `Band` of rows and the tensors to write to; `run` calls one.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.nn.functional import pad

from .device import launch_cache_for
from .matrix import (
    BM,
    BN,
    LOG2_E,
    MAXIMA,
    Band,
    SearchSizes,
    next_power,
    padded,
    search_sizes,
    strides,
)

# Tiles of keys from which on whole tiles get kernels without checks of bounds, 5 % faster.
MANY_TILES = 32
SPLIT = torch.bfloat16  # dtype of the two parts of a query's weight: float16 would lose small ones
GROUP = 32  # tiles of rows: which of them has the largest weight of a key is found out afterwards
ALL_TILES = 2**30
MOST_SETS = 16  # weights of a query that are multiplied with a tile at a time
NO_WEIGHT = -1e30  # log2 of no weight, as in the kernels
PLACED_BLOCKS = 256  # whose rows get their places at a time
MOST_COMMON = 16  # blocks per tile of rows that may raise its thresholds
PROGRAMS = 256  # of a kernel, to occupy a GPU: few rows share their keys among so many
LEAST_KEYS = 1024  # for each of these
FILLING = 1024  # programs of the map's kernel, which are smaller
PROGRAMS_PER_BLOCK = 4  # programs that share the rows to be multiplied with one block of keys
# Settings of kernels without products; fusion is triton's default, which later versions require.
SMALL: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}


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


def _launcher(*mutated: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make function(launch, band, *arguments) a launcher(band, *arguments), and register it as the
    torch operator telescope::<its name>, which writes to the arguments named here.

    `launch` launches kernels by the cache for such arguments. The schema of an operator has no
    place for a NamedTuple, so the operator takes the fields of the Band one by one.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        count = len(Band._fields)

        @wraps(function)
        def launcher(band: Band, *arguments: Any) -> None:
            function(launch_cache_for(band.kind, arguments), band, *arguments)

        def operator(*arguments: Any) -> None:
            launcher(Band(*arguments[:count]), *arguments[count:])

        kind = Parameter.POSITIONAL_OR_KEYWORD
        shared = [Parameter(name, kind, annotation=hint) for name, hint in BAND_TYPES.items()]
        own = [*signature(function).parameters.values()][2:]
        schema = Signature([*shared, *own], return_annotation=None)
        operator.__signature__ = schema  # type: ignore[attr-defined]
        custom = torch.library.custom_op(
            f"telescope::{function.__name__}", operator, mutates_args=mutated
        )
        custom.register_fake(lambda *arguments: None)
        OPERATORS[launcher] = custom
        return launcher

    return register


# ---------------------------------------------------------------------------------------- launchers


@_launcher("lse")
def survey_lse(launch: Any, band: Band, sinks: Tensor | None, lse: Tensor) -> None:
    """Write ln Σ exp(score) of the band's rows into lse (batch, heads, query); sinks (heads,) are
    in bits.
    """
    from .kernels import sums

    # Where rows are few, several programs share their keys.
    grid = (-(-band.queries.shape[-2] // (2 * BM)), band.matrices)
    keys = band.keys.shape[-2]
    parts = min(PROGRAMS // (grid[0] * grid[1]), keys // LEAST_KEYS)
    part_keys = keys if parts < 2 else -(-keys // (parts * BN)) * BN
    parts = -(-keys // part_keys)
    written = band.rows_of(lse) if parts == 1 else lse.new_empty(parts, *band.queries.shape[:3])
    settings = _tile_settings(band) | {"BM": 2 * BM, "BN": BN // 2, "num_warps": 8}
    settings["EVEN"] = settings["EVEN"] and band.queries.shape[-2] % (2 * BM) == 0
    launch(
        sums.log_sum_exp, (*grid, parts),
        *band.kernel_arguments(), lse if sinks is None else sinks, written, *band.sizes,
        band.row_tiles, lse.shape[-1] if parts == 1 else written.shape[-1],
        int(sinks is not None), part_keys,
        TILES=2, **settings,
    )  # fmt: skip
    if parts > 1:
        lse[:, :, band.first : band.first + written.shape[-1]] = written.logsumexp(0)


@_launcher("numbers")
def survey_check(
    launch: Any, band: Band, sinks: Tensor | None, lse: Tensor, batch_step: int, head_step: int,
    row_step: int, parts: int, numbers: Tensor,
) -> None:  # fmt: skip
    """Write `reference.row_numbers` into numbers (4, batch, heads, row), zeros at first, of at most
    16 rows; the band has all rows. `parts` programs share the keys of a head.
    """
    from .kernels import sums

    q, k, rule, _ = band.kernel_arguments()
    _, batch, heads, rows = numbers.shape
    part_keys = -(-band.keys.shape[-2] // (parts * BN)) * BN
    launch(
        sums.check_rows, (heads, batch, parts),
        q, k, lse, rule, lse if sinks is None else sinks, numbers, *band.sizes, lse.shape[-1],
        int(sinks is not None), batch_step, head_step, row_step, rows, part_keys,
        **_checked_settings(band) | {"BM": 16},
    )  # fmt: skip


@_launcher(
    "received", "entropy", "weights", "found", "pooled", "carried", "largest", "largest_row",
)  # fmt: skip
def survey_rows(
    launch: Any, band: Band, lse: Tensor, received: Tensor, entropy: Tensor, weights: Tensor,
    found: Tensor, pooled: Tensor | None, cell_rows: int, cell_keys: int,
    norms: Tensor | None, carried: Tensor | None, largest: Tensor | None,
    largest_row: Tensor | None,
) -> None:  # fmt: skip
    """Compute what a survey has of the band: add to received and pooled, and write the band's rows
    of the others.

    received (batch, heads, key)                       pooled (batch, heads, rows, columns), or None
    entropy (batch, heads, query)                      weights, found (batch, heads, query, top)

    A cell of the map has `cell_rows` x `cell_keys` weights, whose sum is averaged over the rows;
    `fits_tiles` holds for them. norms (batch, heads, key) are summed into carried (batch, heads,
    query), and largest and largest_row (batch, heads, key) are raised, unless None.
    """
    from .kernels import sums

    top = weights.shape[-1]
    keys = band.keys.shape[-2]
    row_tiles = band.row_tiles
    arguments = q, k, rule, spans = band.kernel_arguments()
    sizes = search_sizes(keys, top)
    map_sizes = (0, 0) if pooled is None else (pooled.shape[-1], pooled[0, 0].numel())
    maxima = None
    if top:
        per_row = max(sizes.key_blocks, 4 * sizes.key_capacity)
        maxima = lse.new_empty(band.matrices * row_tiles * BM * per_row, dtype=MAXIMA)
    launch(
        sums.statistics, (-(-keys // BN), band.matrices),
        q, k, band.rows_of(lse), rule, spans, received, band.rows_of(entropy), maxima,
        pooled, norms,
        None if carried is None else band.rows_of(carried), largest, largest_row,
        *band.sizes, row_tiles, lse.shape[-1], cell_rows, cell_keys, *map_sizes, band.first,
        BLOCK=sizes.block, GROUP=ALL_TILES if largest is None else GROUP, CELL=min(cell_keys, BN),
        **_tile_settings(band),
    )  # fmt: skip
    if maxima is not None:
        _search_top(launch, band, arguments, sizes, lse, maxima, weights, found)


def _search_top(
    launch: Any, band: Band, arguments: tuple[Any, Any, Any, Any], sizes: SearchSizes, lse: Tensor,
    maxima: Tensor, weights: Tensor, found: Tensor,
) -> None:  # fmt: skip
    """Write the top of the band's rows: search the blocks whose maxima reach a row's threshold."""
    from .kernels import top as kernels

    top = weights.shape[-1]
    matrices = band.matrices
    band_sizes = rows, _, heads, *_ = band.sizes
    row_tiles = band.row_tiles
    padded_rows = row_tiles * BM
    grid = (row_tiles, matrices)
    q, k, rule, spans = arguments
    band_lse = band.rows_of(lse)
    block, key_blocks, block_capacity, key_capacity = sizes

    def scratch(per_row: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return lse.new_empty(matrices * padded_rows * per_row, dtype=dtype)

    # Find a threshold for each row, and list the blocks that reach it.
    threshold = scratch(1, torch.float32)
    block_count = scratch(1)
    common = lse.new_empty(*grid, MOST_COMMON + 1, dtype=torch.int32)
    row_blocks = scratch(block_capacity, torch.int64)
    block_rows = scratch(block_capacity)
    counts = [matrices * key_blocks, matrices * padded_rows]
    row_count, key_count = lse.new_zeros(sum(counts), dtype=torch.int32).split_with_sizes(counts)
    classes = max(32, 2 * padded(top))
    launch(
        kernels.find_blocks, grid,
        maxima, spans, threshold, row_count, block_count, row_blocks, common, heads, row_tiles,
        key_blocks, top,
        BM=BM, BN=block, CLASSES=classes, BLOCK_CAPACITY=block_capacity, MOST_COMMON=MOST_COMMON,
        **SMALL | {"num_warps": classes // 16},
    )  # fmt: skip

    # Sort the (row, block) pairs by block, and raise thresholds where rows share blocks.
    first_row = row_count.new_empty(row_count.shape)
    launch(
        kernels.place_rows, (matrices,), row_count, first_row, padded_rows, key_blocks,
        BLOCK_CAPACITY=block_capacity, BLOCKS=PLACED_BLOCKS, **SMALL,
    )  # fmt: skip
    launch(
        kernels.group_rows, (padded_rows // 16, matrices),
        block_count, row_blocks, first_row, block_rows, padded_rows, key_blocks,
        BM=16, BLOCK_CAPACITY=block_capacity, **SMALL,
    )  # fmt: skip
    settings = _checked_settings(band) | {"BN": block}
    launch(
        kernels.raise_thresholds, grid,
        q, k, band_lse, rule, threshold, common, *band_sizes, row_tiles, lse.shape[-1], top,
        MOST_COMMON=MOST_COMMON, **settings,
    )  # fmt: skip

    # Collect the keys that reach them. The maxima are not read again: their memory takes the keys.
    candidates = maxima.view(torch.int64)
    launch(
        kernels.collect_keys, (key_blocks, PROGRAMS_PER_BLOCK, matrices),
        q, k, band_lse, rule, threshold, first_row, row_count, block_rows, key_count, candidates,
        *band_sizes, padded_rows, lse.shape[-1], KEY_CAPACITY=key_capacity, **settings,
    )  # fmt: skip

    # Sort them. A row is overfull where more blocks or keys reach its threshold than there is room
    # for: it is searched from its first key to its last.
    results = band.rows_of(weights), band.rows_of(found)
    overfull = lse.new_empty(lse.shape, dtype=torch.bool)
    launch(
        kernels.rank_keys, (-(-rows // 4), matrices),
        block_count, key_count, candidates, *results, overfull, rows, padded_rows,
        lse.shape[-1], top, BM=4, BLOCK_CAPACITY=block_capacity, KEY_CAPACITY=key_capacity,
        FEW=2 * padded(top), TOP_PADDED=padded(top), **SMALL | {"num_warps": 1},
    )  # fmt: skip
    launch(
        kernels.search_all_keys, (-(-rows // 16), matrices),
        q, k, band_lse, rule, spans, overfull, *results, *band_sizes, lse.shape[-1], top,
        PROGRAMS=BM // 16, TOP_PADDED=padded(top), **settings | {"BM": 16, "BN": BN},
    )  # fmt: skip


@_launcher("largest_row")
def survey_largest_rows(
    launch: Any, band: Band, lse: Tensor, order: Tensor, largest_row: Tensor
) -> None:
    """Replace, in largest_row (batch, heads, key), the first row of a group by the row that has the
    largest weight.

    order (batch, heads, key) has the keys as `by_group` orders them. Groups of rows in other bands
    are left alone.
    """
    from .kernels import sums

    q, k, rule, spans = band.kernel_arguments()
    launch(
        sums.find_largest_rows, (-(-band.keys.shape[-2] // (BN // 2)), band.matrices),
        q, k, band.rows_of(lse), rule, spans, order, largest_row, *band.sizes, lse.shape[-1],
        band.first,
        GROUP=GROUP, **_tile_settings(band) | {"BN": BN // 2},  # three tiles of registers
    )  # fmt: skip


def by_group(largest_row: Tensor) -> Tensor:
    """Return the keys in the order of the groups of rows that have their largest weights."""
    return (largest_row // (GROUP * BM)).short().argsort(-1)


@_launcher("weighted")
def survey_weighted(
    launch: Any, band: Band, lse: Tensor, query_weights: Tensor, weighted: Tensor
) -> None:
    """Add Σ over the band's rows of query_weights · weight to weighted (batch, heads, sets, key).

    query_weights (batch or 1, heads or 1, sets, query) are float32. At most MOST_SETS are summed at
    a time.
    """
    from .kernels import pools

    q, k, rule, spans = band.kernel_arguments()
    rows = band.queries.shape[-2]
    grid = (-(-band.keys.shape[-2] // BN), band.matrices)
    own = query_weights[..., band.first : band.first + rows]
    settings = _tile_settings(band)
    sizes = *band.sizes, band.row_tiles, lse.shape[-1]
    if weighted.shape[2] == 1:
        own = own[:, :, 0].contiguous()
        launch(
            pools.weigh_once, grid, q, k, band.rows_of(lse), rule, spans, own, weighted, *sizes,
            *strides(own)[:2], **settings,
        )  # fmt: skip
        return
    # Several sets: their factors are a second matrix, multiplied with each tile.
    lse_base_2 = torch.where(lse == -torch.inf, -NO_WEIGHT, lse * LOG2_E)
    for first in range(0, weighted.shape[2], MOST_SETS):
        part = slice(first, min(first + MOST_SETS, weighted.shape[2]))
        factors = _factors(own[:, :, part], band.queries.dtype)
        sums = torch.zeros_like(weighted[:, :, part])
        launch(
            pools.weigh, grid, q, k, band.rows_of(lse_base_2), rule, spans, factors, sums, *sizes,
            sums.shape[2], *strides(factors)[:2],
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
        return pad(weights, (0, max(16, next_power(sets)) - sets))[..., None, :].contiguous()
    weights = pad(weights, (0, max(8, next_power(sets)) - sets))
    # Half precision and what it leaves over: their sum has almost the precision of float32.
    high = weights.to(SPLIT)
    return torch.stack([high, (weights - high.float()).to(SPLIT)], -2)


@_launcher("pooled")
def survey_map(
    launch: Any, band: Band, lse: Tensor, row_cell: Tensor | None, runs: Tensor | None,
    run_of_key: Tensor | None, pooled: Tensor, how: str, run_keys: int, runs_per_cell: int,
) -> None:  # fmt: skip
    """Add the band's rows to the map pooled (batch, heads, rows, columns); how is "share" or "max".

    Keys are multiplied in runs of at most `run_keys` neighbours in one cell. Without row_cell, runs
    and run_of_key, cells are those of `requests.grid`, of at most runs_per_cell runs, and shares
    are averaged over their rows. Else row_cell (row,) is the row of the map that each row of the
    band falls into, runs (3, run) are first, stop and cell of each, and run_of_key (key,) is the
    number of each key's run.
    """
    from .kernels import pools

    q, k, rule, _ = band.kernel_arguments()
    row_tiles = band.row_tiles
    columns = pooled.shape[-1]
    # Where rows are few, several programs share their keys.
    parts = FILLING // (row_tiles * band.matrices)
    parts = max(1, min(parts, columns * runs_per_cell if runs is None else runs.shape[-1]))
    launch(
        pools.pool, (row_tiles, parts, band.matrices),
        q, k, band.rows_of(lse), rule, row_cell, *((None,) * 3 if runs is None else runs),
        run_of_key, pooled, *band.sizes, lse.shape[-1], band.first, pooled.shape[-2], columns,
        runs_per_cell,
        SHARE=how == "share", **_checked_settings(band) | {"BN": run_keys},
    )  # fmt: skip


@_launcher("share", "seen")
def survey_listed(
    launch: Any, band: Band, lse: Tensor, listed_rows: Tensor, listed_keys: Tensor, begin: Tensor,
    end: Tensor, share: Tensor, seen: Tensor | None,
) -> None:  # fmt: skip
    """Write the weight of each row's listed keys into share (set, batch, heads, query); the band
    has all rows.

    listed_rows (batch or 1, row) and listed_keys (batch or 1, slot) are lists of rows and keys. In
    each set, the keys of the row in a slot stand in the slots from begin to end (set, batch or 1,
    row) of the other list. seen (batch, heads, query), unless None, becomes true where a row sees
    one of its keys of the first set.
    """
    from .kernels import pools

    # A list that all sequences share has the stride 0.
    rows, keys, heads, group, width = band.sizes
    sets = len(begin)
    q, k, rule, _ = band.kernel_arguments()
    lists = (listed_rows, listed_keys, begin[0])
    batch_strides = (0 if len(part) == 1 else part.shape[-1] for part in lists)
    launch(
        pools.sum_listed, (-(-rows // BM), band.matrices),
        q, k, lse, rule, listed_rows, listed_keys, begin, end, share, seen,
        rows, keys, rows, listed_keys.shape[-1], *batch_strides, begin[0].numel(), heads, group,
        width, lse.shape[-1], share[0].numel(),
        SETS=sets, SETS_PADDED=next_power(sets), **_checked_settings(band),
    )  # fmt: skip


# -------------------------------------------------------------------------- settings of the kernels


@lru_cache(maxsize=64)
def compiled_for(
    dtype: torch.dtype, rows: int, keys: int, features: int, top: int
) -> tuple[Any, ...]:
    """Return what the kernels of a survey are compiled for, besides the definition."""
    block, _, *capacities = search_sizes(keys, top)
    settings = _tile_settings_for(dtype, rows, keys, features)
    return (dtype, *settings.values(), top > 0, block, *capacities)


def _tile_settings(band: Band) -> dict[str, Any]:
    rows, keys, _, _, width = band.sizes
    return _tile_settings_for(band.queries.dtype, rows, keys, width)


def _tile_settings_for(dtype: torch.dtype, rows: int, keys: int, features: int) -> dict[str, Any]:
    """Return how a tile is computed. Wide heads and float32 need more shared memory, so they get
    fewer stages.
    """
    width = max(16, next_power(features))
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


def _checked_settings(band: Band) -> dict[str, Any]:
    """Return the settings for a kernel that always checks the bounds of its tiles."""
    return {name: value for name, value in _tile_settings(band).items() if name != "EVEN"}
