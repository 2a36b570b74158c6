"""What the kernels share. Tiles of q·k are computed, read and forgotten; no weight is ever written to memory.

Everything is in powers of two: x = log2(weight) = (score - lse) · log2(e), and exp2(x) is the weight. Tiles are
(query, key), so that what is summed along a row stays in one warp, which is cheap; what is summed along a column is
kept for each element of the tile until the program's last row, which costs no sum at all.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)  # log2 of a weight that is not there. Finite: exp2 of it is 0, and so is 0 · HIDDEN
NOWHERE = tl.constexpr(-1e29)  # below every log2 of a weight, above HIDDEN
LOWEST = tl.constexpr(-65000.0)  # what is told apart by sixteen bits ends here: below it a maximum is known no closer
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
EMPTY = tl.constexpr(-(2**63) + 1)

# A kernel is compiled once for all of these sizes, instead of once for 1, once for multiples of 16 and once for others:
# none of them says how memory is read.
SIZES = [
    "rows", "keys", "heads", "group", "row_tiles", "key_blocks", "lines", "lse_head", "cell_rows", "cell_keys",
    "map_columns", "map_size", "first_row", "row_slots", "key_slots", "row_batch", "key_batch", "span_batch",
    "span_set", "result_set",
]  # fmt: skip
kernel = triton.jit(do_not_specialize=SIZES)


class HeadTensor(NamedTuple):
    """Queries or keys: where they are, and how far it is from one batch, head and position to the next."""

    data: Any
    batch: Any
    head: Any
    position: Any


class Rule(NamedTuple):
    """What stands between q·k and its weight. A None is left out when compiling."""

    scale: Any
    softcap: Any  # in natural units, as the scale
    slopes: Any  # ALiBi's, one for each head, · log2(e)
    relative: Any  # (heads, 2 · reach + 1), · log2(e)
    relative_head: Any
    reach: Any
    bias: Any  # in natural units; of its keys one lies beside the other
    bias_batch: Any
    bias_head: Any
    bias_row: Any
    mask: Any
    mask_batch: Any
    mask_head: Any
    mask_row: Any
    start: Any  # (batch, row): the span of keys of each row
    stop: Any
    span_batch: Any
    shift: Any  # the position of row 0


class TileSpans(NamedTuple):
    """The spans of a tile of rows together: from `first` to `stop` somebody looks, between the inner two everyone."""

    first: Any
    stop: Any
    inner_first: Any
    inner_stop: Any
    batch: Any


@triton.jit
def load(heads, b, h, positions, count, width, D: tl.constexpr, WHOLE: tl.constexpr):
    """(position, feature), zeros beyond the last of both; WHOLE says that there is nothing beyond."""
    feature = tl.arange(0, D)
    at = heads.data + b * heads.batch + h * heads.head
    at += positions[:, None].to(tl.int64) * heads.position + feature[None, :]
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=(positions[:, None] < count) & (feature[None, :] < width), other=0.0)


@triton.jit
def load_lse(LSE, at, there):
    """In powers of two; of a row that sees nothing, and of none, so large that every weight is 0."""
    lse = tl.load(LSE + at, mask=there, other=float("-inf"))
    return tl.where(lse == float("-inf"), -HIDDEN, lse * LOG2_E)


@triton.jit
def _pick(table, batch, head, position, b, h, row, key, rows, keys, other: tl.constexpr):
    at = table + b * batch + h * head + row.to(tl.int64) * position + key
    return tl.load(at, mask=(row < rows) & (key < keys), other=other)


@triton.jit
def log2_weights(product, lse, row, key, b, h, rule, rows, keys):
    """x where everyone sees everything: row (rows, 1) and key (1, keys) or (rows, 1); lse (rows, 1), to base two."""
    if rule.softcap is None:
        x = product * (rule.scale * LOG2_E) - lse
    else:
        raised = tl.exp2(product * (rule.scale / rule.softcap * 2.0 * LOG2_E))
        x = rule.softcap * LOG2_E * (1.0 - 2.0 / (raised + 1.0)) - lse
    if rule.slopes is not None:
        x -= tl.load(rule.slopes + h) * tl.abs(row + rule.shift - key).to(tl.float32)
    if rule.relative is not None:
        distance = tl.minimum(tl.maximum(key - row - rule.shift, -rule.reach), rule.reach)
        x += tl.load(rule.relative + h * rule.relative_head + distance + rule.reach)
    if rule.bias is not None:
        x += _pick(rule.bias, rule.bias_batch, rule.bias_head, rule.bias_row, b, h, row, key, rows, keys, 0.0) * LOG2_E
        x = tl.where(x < HIDDEN, HIDDEN, x)
    return x


@triton.jit
def hide(x, row, key, b, h, rule, rows, keys):
    """HIDDEN where a query may not see a key."""
    start = tl.load(rule.start + b * rule.span_batch + row, mask=row < rows, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + row, mask=row < rows, other=0)
    seen = (key >= start) & (key < stop)
    if rule.mask is not None:
        allowed = _pick(rule.mask, rule.mask_batch, rule.mask_head, rule.mask_row, b, h, row, key, rows, keys, 0)
        seen = seen & (allowed != 0)
    return tl.where(seen, x, HIDDEN)
