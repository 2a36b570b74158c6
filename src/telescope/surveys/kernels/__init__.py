"""The survey's kernels in Triton, and what they share: the steps from q·k to a weight. Imported
only where they run, since Triton may be missing; they import nothing but Triton.

Read this file first; then sums.py (over rows and keys), top.py (the largest weights) and pools.py
(maps, lists and weighted queries). Tiles of q·k stay in registers; no weight is written to memory.

Everything is in powers of two: x = log2(weight) = (score - lse) · log2(e), and exp2(x) is the
weight. Tiles are (query, key). A sum along a row stays in one warp, which is cheap; a sum along a
column is kept for each element of the tile and reduced once, after the program's last row.

Names in the kernels: b, h, bh are the sequence, the head and both in one; m, n the first row and
key of a tile; rm, rn the rows and keys of a tile; cm, cn its offsets. CAPITALS are pointers and
compile-time constants.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

# log2 of a masked weight. Finite, so that 0 · HIDDEN is 0; exp2 of it is 0 too.
HIDDEN = tl.constexpr(-1e30)
NOWHERE = tl.constexpr(-1e29)  # below every log2 of a weight, above HIDDEN
LOWEST = tl.constexpr(-65000.0)  # near the end of float16: maxima below it are stored as equal
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
EMPTY = tl.constexpr(-(2**63) + 1)  # a slot without a packed key

# Triton compiles a kernel anew for an integer of 1, a multiple of 16, and any other, and for a
# pointer to a multiple of 16 bytes. Not for these sizes and pointers, whose alignment makes no load
# or store faster.
UNSPECIALIZED = """
rows keys heads group row_tiles key_blocks padded_rows lse_stride cell_rows cell_keys map_columns
map_size map_rows runs_per_cell first_row row_slots key_slots row_batch key_batch span_batch
span_set share_set top has_sinks batch_step head_step row_step row_count sets weight_batch
weight_head factor_batch factor_head part_keys SINKS LSE ENTROPY MAP KEY_COUNT ROWS KEYS START STOP
SHARES SEEN NORMS CARRIED LARGEST LARGEST_ROW WEIGHTED ORDER QUERY_WEIGHTS ROW_CELL KEY_FIRST
KEY_STOP KEY_CELL RUN_OF_KEY
"""
kernel = triton.jit(do_not_specialize=UNSPECIALIZED.split())


def helper(function: Any) -> Any:
    """Return a function that kernels can call, with its part of the key of Triton's cache computed
    already.

    Triton 3.6 leaves the constants of a function out of the key of the first kernel that calls it.
    Keys then depend on which kernel a process compiles first, and another process does not find
    them.
    """
    compiled = triton.jit(function)
    # A property that computes the key; Triton's interpreter has none.
    getattr(compiled, "cache_key", None)
    return compiled


class HeadTensor(NamedTuple):
    """A pointer to queries or keys, and the strides of batch, head and position."""

    data: Any
    batch: Any
    head: Any
    position: Any


class Rule(NamedTuple):
    """The steps from q·k to a weight. What is None is compiled away; *_batch, *_head and *_row are
    strides.

    Triton compiles anew for integers of other alignments here. All strides are multiples of 16, so
    there are no others.
    """

    scale: Any
    softcap: Any  # in natural units, as the scale
    slopes: Any  # of ALiBi, (heads,), · log2(e)
    relative: Any  # (heads, distances), · log2(e)
    distances: Any  # 2 · reach + 1
    bias: Any  # (batch, heads, row, key) in natural units, contiguous along the keys
    bias_batch: Any
    bias_head: Any
    bias_row: Any
    mask: Any  # (batch, heads, row, key), contiguous along the keys; 0 hides a key
    mask_batch: Any
    mask_head: Any
    mask_row: Any
    start: Any  # (batch, row): the first key that each row may see
    stop: Any  # and one past the last
    span_batch: Any
    shift: Any  # the position of row 0, counted in keys; 0 unless slopes or relative need it


class TileSpans(NamedTuple):
    """Spans of keys for each tile of rows: some row sees first to stop, all rows see inner_first to
    inner_stop.
    """

    first: Any
    stop: Any
    inner_first: Any
    inner_stop: Any
    batch: Any  # stride


@helper
def load(heads, b, h, positions, count, width, D: tl.constexpr, EVEN: tl.constexpr):
    """Return a tile (position, feature), zeros beyond `count` and `width`; EVEN promises that
    nothing is beyond.
    """
    feature = tl.arange(0, D)
    at = heads.data + b * heads.batch + h * heads.head
    at += positions[:, None].to(tl.int64) * heads.position + feature[None, :]
    if EVEN:
        return tl.load(at)
    return tl.load(at, mask=(positions[:, None] < count) & (feature[None, :] < width), other=0.0)


@helper
def load_lse(LSE, at, valid):
    """Return lse to base two; of a row that sees nothing or does not exist so large that every
    weight is 0.
    """
    lse = tl.load(LSE + at, mask=valid, other=float("-inf"))
    return tl.where(lse == float("-inf"), -HIDDEN, lse * LOG2_E)


@helper
def _load_table(table, batch, head, position, b, h, row, key, rows, keys, other: tl.constexpr):
    """Return the entries of a bias or mask (batch, heads, row, key); `other` outside of the
    matrix.
    """
    at = table + b * batch + h * head + row.to(tl.int64) * position + key
    return tl.load(at, mask=(row < rows) & (key < keys), other=other)


@helper
def log2_weights(product, lse, row, key, b, h, rule, rows, keys):
    """Return x before masking. row is (rows, 1), key (1, keys) or (rows, 1), lse (rows, 1) to base
    two.
    """
    if rule.softcap is None:
        x = product * (rule.scale * LOG2_E) - lse
    else:
        # tanh(z) = 1 - 2 / (e^2z + 1).
        raised = tl.exp2(product * (rule.scale / rule.softcap * 2.0 * LOG2_E))
        x = rule.softcap * LOG2_E * (1.0 - 2.0 / (raised + 1.0)) - lse
    if rule.slopes is not None:
        x -= tl.load(rule.slopes + h) * tl.abs(row + rule.shift - key).to(tl.float32)
    if rule.relative is not None:
        reach = rule.distances // 2
        distance = tl.minimum(tl.maximum(key - row - rule.shift, -reach), reach)
        x += tl.load(rule.relative + h * rule.distances + distance + reach)
    if rule.bias is not None:
        x += _load_table(
            rule.bias, rule.bias_batch, rule.bias_head, rule.bias_row, b, h, row, key, rows, keys,
            0.0,
        ) * LOG2_E  # fmt: skip
        x = tl.where(x < HIDDEN, HIDDEN, x)  # a bias of -inf hides a key
    return x


@helper
def hide(x, row, key, b, h, rule, rows, keys):
    """Return x, HIDDEN where a row may not see a key."""
    start = tl.load(rule.start + b * rule.span_batch + row, mask=row < rows, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + row, mask=row < rows, other=0)
    seen = (key >= start) & (key < stop)
    if rule.mask is not None:
        allowed = _load_table(
            rule.mask, rule.mask_batch, rule.mask_head, rule.mask_row, b, h, row, key, rows, keys, 0
        )
        seen = seen & (allowed != 0)
    return tl.where(seen, x, HIDDEN)


@helper
def visible_rows(tiles, b, n, keys, row_tiles, BN: tl.constexpr):
    """Return the tiles of rows that see some of the BN keys from n on, and those of them that see
    all: begin and end.

    Tiles from begin to end see some of these keys; from unmasked_begin to unmasked_end, all of
    them.
    """
    # The first and the last tile that see some of the keys, and the first that sees all.
    begin = row_tiles
    end = 0
    unmasked_begin = row_tiles
    unmasked_end = row_tiles
    for m0 in range(0, row_tiles, 256):
        tile = m0 + tl.arange(0, 256)
        at = b * tiles.batch + tile
        valid = tile < row_tiles
        visible = (tl.load(tiles.first + at, mask=valid, other=keys) < n + BN) & (
            tl.load(tiles.stop + at, mask=valid, other=0) > n
        )
        unmasked = (tl.load(tiles.inner_first + at, mask=valid, other=keys) <= n) & (
            tl.load(tiles.inner_stop + at, mask=valid, other=0) >= n + BN
        )
        begin = tl.minimum(begin, tl.min(tl.where(visible, tile, row_tiles), 0))
        end = tl.maximum(end, tl.max(tl.where(visible, tile + 1, 0), 0))
        unmasked_begin = tl.minimum(unmasked_begin, tl.min(tl.where(unmasked, tile, row_tiles), 0))
    # The next tile that does not see all of them ends those that do.
    for m0 in range(unmasked_begin // 256 * 256, row_tiles, 256):
        tile = m0 + tl.arange(0, 256)
        at = b * tiles.batch + tile
        valid = tile < row_tiles
        unmasked = (tl.load(tiles.inner_first + at, mask=valid, other=0) <= n) & (
            tl.load(tiles.inner_stop + at, mask=valid, other=keys) >= n + BN
        )
        unmasked_end = tl.minimum(
            unmasked_end, tl.min(tl.where(unmasked | (tile < unmasked_begin), row_tiles, tile), 0)
        )
    return begin, end, unmasked_begin, unmasked_end
