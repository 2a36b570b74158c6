"""How the survey's kernels are started; as torch operators too, of which torch.compile only knows what they change.

Each takes a band of rows: queries (batch, heads, row, d), all keys, and what stands between their product and a weight.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

BM, BN = 64, 128  # the rows and keys of a tile
BLOCK = 64  # the keys of which the largest weight is noted; where there are many keys a tile's, as notes are read too
MANY = 2**14
MAXIMA = torch.float16  # enough to tell where to look
BUSY = 16  # blocks that may raise a threshold
SIDE_BY_SIDE = 4  # programs that share the rows which ask for a block of keys
SMALL: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}  # as triton's default, which later versions ask for


def room(top: int) -> tuple[int, int]:
    """In how many blocks the top of a row is searched, and among how many keys of theirs; a row that needs more is
    overfull, and searched from its first key to its last."""
    return max(32, _power(3 * top)), max(64, _power(4 * top))


def notes(keys: int, top: int) -> int:
    """The bytes of a row of one head in which its top is searched: maxima, later keys; blocks; and entries."""
    _, key_blocks, places, slots = _searched(keys, top)
    return max(key_blocks * MAXIMA.itemsize, slots * 8) + places * (8 + 4)


def _searched(keys: int, top: int) -> tuple[int, int, int, int]:
    """The keys of a block, how many blocks whole tiles have, and the room for a row's blocks and keys."""
    block = BN if keys > MANY else min(BN, max(BLOCK, _power(2 * top)))
    return block, -(-keys // BN) * (BN // block), *room(top)


def tiles(start: Tensor, stop: Tensor, keys: int, *, written: bool) -> Tensor:
    """The spans of each tile of rows together: between the first two somebody looks, between the other two everyone.

    Rows beyond the last see nothing, and hinder nobody. Where a mask is written out no tile is clear of it.
    """
    missing = (0, -start.shape[-1] % BM)

    def each(spans: Tensor, fill: int) -> Tensor:
        return pad(spans, missing, value=fill).reshape(len(spans), -1, BM)

    first, last = each(torch.where(start < stop, start, keys), keys).amin(-1), each(stop, 0).amax(-1)
    if written:
        return torch.stack([first, last, torch.full_like(first, keys), torch.zeros_like(first)])
    return torch.stack([first, last, each(start, 0).amax(-1), each(stop, keys).amin(-1)])


def _arguments(
    queries: Tensor, keys: Tensor, start: Tensor, stop: Tensor, tiles: Tensor, slopes: Tensor | None,
    relative: Tensor | None, bias: Tensor | None, mask: Tensor | None, scale: float, softcap: float | None, shift: int,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Queries, keys, what stands between, and the tiles, as the kernels take them."""
    from . import kernels

    kinds: Any = kernels
    rule = kinds.Rule(
        scale,
        softcap,
        slopes,
        relative,
        0 if relative is None or len(relative) == 1 else relative.shape[-1],
        None if relative is None else relative.shape[-1] // 2,
        bias,
        *_strides(bias),
        mask,
        *_strides(mask),
        start,
        stop,
        start.stride(0) if len(start) > 1 else 0,
        shift,
    )
    together = kinds.Tiles(*tiles, tiles.stride(1) if tiles.shape[1] > 1 else 0)
    return kinds.Heads(queries, *queries.stride()[:3]), kinds.Heads(keys, *keys.stride()[:3]), rule, together


def _strides(table: Tensor | None) -> tuple[int, ...]:
    """From one batch, head and row to the next; an axis of size one is the same for all."""
    if table is None:
        return (0, 0, 0)
    return tuple(0 if size == 1 else step for size, step in zip(table.shape[:3], table.stride()[:3], strict=True))


def _from(first: int, rows: Tensor) -> Tensor:
    """(batch, heads, row, …) from the band's first row on."""
    return rows[:, :, first:] if first else rows


def _shape(queries: Tensor, keys: Tensor) -> dict[str, Any]:
    """How a tile is computed: wide heads and float32 take more of the memory near the processor."""
    width = max(16, _power(queries.shape[-1]))
    large = width * queries.element_size() > 256
    return {
        "D": width,
        "BM": BM,
        "BN": BN,
        "WHOLE": width == queries.shape[-1] and queries.shape[-2] % BM == 0 == keys.shape[-2] % BN,
        "PRECISION": "ieee" if queries.dtype == torch.float32 else "tf32",
        "num_warps": 8 if large else 4,
        "num_stages": 2 if large else 3,
        "enable_fp_fusion": True,  # triton's default, which later versions ask for
    }


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def survey_lse(
    queries: Tensor, keys: Tensor, start: Tensor, stop: Tensor, tiles: Tensor, slopes: Tensor | None,
    relative: Tensor | None, bias: Tensor | None, mask: Tensor | None, scale: float, softcap: float | None, shift: int,
    first: int, sinks: Tensor | None, lse: Tensor,
) -> None:  # fmt: skip
    """lse (batch, heads, query): those of the band, which begins at row `first`."""
    from . import kernels

    begin = alike(
        queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift, first,
        sinks, lse,
    )  # fmt: skip
    (batch, heads, rows, width), (_, key_heads, columns, _) = queries.shape, keys.shape
    arguments = _arguments(queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift)
    begin(
        kernels.log_sum_exp, (-(-rows // (2 * BM)), batch * heads),
        *arguments, sinks, _from(first, lse), rows, columns, heads, heads // key_heads, width, tiles.shape[-1],
        lse.shape[-1], PER=2, **_shape(queries, keys) | {"BM": 2 * BM, "BN": BN // 2, "num_warps": 8},
    )  # fmt: skip


def survey_rows(
    queries: Tensor, keys: Tensor, start: Tensor, stop: Tensor, tiles: Tensor, slopes: Tensor | None,
    relative: Tensor | None, bias: Tensor | None, mask: Tensor | None, scale: float, softcap: float | None, shift: int,
    first: int, lse: Tensor, received: Tensor, entropy: Tensor, weights: Tensor, found: Tensor, overfull: Tensor,
    pooled: Tensor, cell_rows: int, cell_keys: int,
) -> None:  # fmt: skip
    """received and pooled grow by what the band gives; of the others, the rows of the band are written.

    `overfull` says in which rows too many keys came into question.
    """
    from . import kernels

    begin = alike(
        queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift, first,
        lse, received, entropy, weights, found, overfull, pooled, cell_rows, cell_keys,
    )  # fmt: skip
    (batch, heads, rows, width), (_, key_heads, columns, _) = queries.shape, keys.shape
    top, row_tiles, total, grid = weights.shape[-1], tiles.shape[-1], lse.shape[-1], (tiles.shape[-1], batch * heads)
    q, k, rule, of_tiles = _arguments(
        queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift
    )
    shape, own = _shape(queries, keys), _from(first, lse)
    sizes = (rows, columns, heads, heads // key_heads, width)
    block, key_blocks, places, slots = _searched(columns, top)

    def scratch(of_row: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return own.new_empty(batch * heads * row_tiles * BM * of_row, dtype=dtype)

    noted = scratch(max(key_blocks, 4 * slots), MAXIMA) if top else None
    begin(
        kernels.statistics, (-(-columns // BN), batch * heads),
        q, k, own, rule, of_tiles, received, _from(first, entropy), noted, pooled if pooled.numel() else None, *sizes,
        row_tiles, total, cell_rows, cell_keys, pooled.shape[-1], pooled.shape[-2] * pooled.shape[-1], first,
        PART=block, **shape,
    )  # fmt: skip
    if noted is None:
        return

    lines = row_tiles * BM
    threshold, count, busy = scratch(1, torch.float32), scratch(1), own.new_empty(*grid, BUSY + 1, dtype=torch.int32)
    listed, entries = scratch(places, torch.int64), scratch(places)
    zeros = own.new_zeros(batch * heads * (key_blocks + lines), dtype=torch.int32)
    asked, marked = torch.split(zeros, [batch * heads * key_blocks, batch * heads * lines])
    classes = max(32, _power(2 * top))
    begin(
        kernels.candidates, grid,
        noted, of_tiles, threshold, asked, count, listed, busy, heads, row_tiles, key_blocks,
        TOP=top, BM=BM, BN=block, CLASSES=classes, ROOM=places, MOST_BUSY=BUSY, **SMALL | {"num_warps": classes // 16},
    )  # fmt: skip
    before = asked.cumsum(0, dtype=torch.int32) - asked
    begin(
        kernels.enlist, (lines // 16, batch * heads),
        count, listed, before, entries, lines, key_blocks, BM=16, ROOM=places, **SMALL,
    )  # fmt: skip
    shape["BN"] = block
    begin(
        kernels.sharpen, grid,
        q, k, own, rule, threshold, busy, *sizes, row_tiles, total, TOP=top, MOST_BUSY=BUSY, **shape,
    )  # fmt: skip
    noted = noted.view(torch.int64)  # the maxima are not read again: keys take their place
    begin(
        kernels.mark, (key_blocks, SIDE_BY_SIDE, batch * heads),
        q, k, own, rule, threshold, before, asked, entries, marked, noted, *sizes, lines, total, SLOTS=slots, **shape,
    )  # fmt: skip
    results, best = (_from(first, weights), _from(first, found)), {"TOP": top, "TOP_WIDE": _power(top)}
    begin(
        kernels.rank, (-(-rows // 4), batch * heads),
        count, marked, noted, *results, _from(first, overfull), rows, lines, total,
        BM=4, ROOM=places, SLOTS=slots, FEW=max(16, 2 * _power(top)), **best, **SMALL | {"num_warps": 1},
    )  # fmt: skip
    begin(
        kernels.search, (-(-rows // 16), batch * heads),
        q, k, own, rule, of_tiles, _from(first, overfull), *results, *sizes, total, PER=BM // 16, **best,
        **{name: value for name, value in shape.items() if name != "WHOLE"} | {"BM": 16, "BN": BN},
    )  # fmt: skip


def survey_map(
    queries: Tensor, keys: Tensor, start: Tensor, stop: Tensor, tiles: Tensor, slopes: Tensor | None,
    relative: Tensor | None, bias: Tensor | None, mask: Tensor | None, scale: float, softcap: float | None, shift: int,
    first: int, lse: Tensor, rows_of: Tensor, keys_of: Tensor, key_item: Tensor, pooled: Tensor, how: str,
) -> None:  # fmt: skip
    """pooled (batch, heads, rows, columns) grows by what the band gives."""
    from . import kernels

    begin = alike(
        queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift, first,
        lse, rows_of, keys_of, key_item, pooled, how,
    )  # fmt: skip
    (batch, heads, rows, width), (_, key_heads, columns, _) = queries.shape, keys.shape
    q, k, rule, _ = _arguments(queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift)
    shape = {name: value for name, value in _shape(queries, keys).items() if name != "WHOLE"}
    begin(
        kernels.pool, (rows_of.shape[-1], batch * heads),
        q, k, _from(first, lse), rule, tuple(rows_of), tuple(keys_of), key_item, pooled, rows, columns, heads,
        heads // key_heads, width, lse.shape[-1], pooled.shape[-1], pooled[0, 0].numel(), SHARE=how == "share", **shape,
    )  # fmt: skip


def survey_stretches(
    queries: Tensor, keys: Tensor, start: Tensor, stop: Tensor, tiles: Tensor, slopes: Tensor | None,
    relative: Tensor | None, bias: Tensor | None, mask: Tensor | None, scale: float, softcap: float | None, shift: int,
    first: int, lse: Tensor, of_rows: Tensor, of_keys: Tensor, begin: Tensor, end: Tensor, share: Tensor,
    seen: Tensor | None,
) -> None:  # fmt: skip
    """share (set, batch, heads, query) of the keys that are listed from `begin` to `end`; seen, of the first set."""
    from . import kernels

    launch = alike(
        queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift, first,
        lse, of_rows, of_keys, begin, end, share, seen,
    )  # fmt: skip
    (batch, heads, rows, width), (_, key_heads, columns, _) = queries.shape, keys.shape
    q, k, rule, _ = _arguments(queries, keys, start, stop, tiles, slopes, relative, bias, mask, scale, softcap, shift)
    shape = {name: value for name, value in _shape(queries, keys).items() if name != "WHOLE"}
    sets, own = len(begin), (0 if len(it) == 1 else it.shape[-1] for it in (of_rows, of_keys, begin[0]))
    launch(
        kernels.stretches, (-(-rows // BM), batch * heads),
        q, k, lse, rule, of_rows, of_keys, begin, end, share, seen, rows, columns, rows, of_keys.shape[-1], *own,
        begin[0].numel(), heads, heads // key_heads, width, lse.shape[-1], share[0].numel(),
        SETS=sets, WIDE=_power(sets), **shape,
    )  # fmt: skip


CHANGED: dict[Any, tuple[str, ...]] = {
    survey_lse: ("lse",),
    survey_rows: ("received", "entropy", "weights", "found", "overfull", "pooled"),
    survey_map: ("pooled",),
    survey_stretches: ("share", "seen"),
}
OPERATORS = {
    function: torch.library.custom_op(f"telescope::{function.__name__}", function, mutates_args=changed)
    for function, changed in CHANGED.items()
}
for _operator in OPERATORS.values():
    _operator.register_fake(lambda *arguments: None)


def run(function: Any, queries: Tensor, *arguments: Any) -> None:
    """As an operator where somebody traces, who could not look inside; else directly, which takes less time."""
    traced = torch.compiler.is_compiling() or type(queries) is not Tensor
    (OPERATORS[function] if traced else function)(queries, *arguments)


class LaunchCache:
    """Of calls that are alike: a kernel is given arguments of the same kind each time."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
        """kernel[grid](*arguments, **settings), where the settings are those that it is compiled for."""
        key = (id(kernel), *settings.values())
        compiled = self._compiled.get(key)
        if compiled is None:  # at first, and always where kernels are interpreted
            self._compiled[key] = kernel[grid](*arguments, **settings)
        else:
            rest = (settings[name] for name in kernel.arg_names[len(arguments) :])
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)


def alike(*arguments: Any) -> LaunchCache:
    """For calls with such arguments: numbers are the same, tensors have the same shape, and the same place in memory as
    far as triton makes use of it."""
    return _starts(tuple(_told(argument) for argument in arguments))


@lru_cache(maxsize=64)
def _starts(told: tuple[Any, ...]) -> LaunchCache:
    return LaunchCache()


def _told(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.shape, argument.stride(), argument.dtype, argument.device, argument.data_ptr() % 16
