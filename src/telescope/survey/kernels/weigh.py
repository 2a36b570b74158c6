"""Sum the matrix over weighted queries: what each key gets, for several sets of weights at once.

Tiles are (key, query) here, unlike in the other kernels: a tile of weights is then multiplied with the queries' weights
from registers, as a forward pass multiplies it with the values.
"""

import triton.language as tl

from .tiles import hide, kernel, load, load_lse, log2_weights, visible_rows


@kernel
def weigh(
    q, k, LSE, rule, tiles, QUERY_WEIGHTS, WEIGHTED,
    rows, keys, heads, group, width, row_tiles, lse_stride, sets, weight_part, weight_batch, weight_head, weight_set,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    SETS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add Σ over the rows of QUERY_WEIGHTS · weight to WEIGHTED (bh, set, key), for BN keys, which are this program's.

    QUERY_WEIGHTS (part, batch, head, set, row) has one part in float32; or two in half precision, whose sum they are.
    Weights are then split likewise, and of the four products the smallest is left out."""
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    n = block * BN
    rn, cm, cs = n + tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, SETS)
    key = rn[:, None]
    key_tile = load(k, b, h // group, rn, keys, width, D, EVEN)
    QUERY_WEIGHTS += b * weight_batch + h * weight_head
    total = tl.zeros([BN, SETS], tl.float32)
    begin, end, unmasked_begin, unmasked_end = visible_rows(tiles, b, n, keys, row_tiles, BN)
    for m in range(begin, end):
        rm = m * BM + cm
        row = rm[None, :]
        query_tile = load(q, b, h, rm, rows, width, D, EVEN)
        lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[None, :]
        product = tl.dot(key_tile, query_tile.T, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < unmasked_begin) | (m >= unmasked_end):
            x = hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        at = QUERY_WEIGHTS + cs[None, :].to(tl.int64) * weight_set + rm[:, None]
        valid = (cs[None, :] < sets) & (rm[:, None] < rows)
        factor = tl.load(at, mask=valid, other=0.0)
        if PARTS == 1:
            total = tl.dot(weight, factor, total, input_precision="ieee")
        else:
            high = weight.to(factor.dtype)
            low = (weight - high.to(tl.float32)).to(factor.dtype)
            total = tl.dot(high, factor, total)
            total = tl.dot(low, factor, total)
            total = tl.dot(high, tl.load(at + weight_part, mask=valid, other=0.0), total)
    at = WEIGHTED + (bh * sets + cs[None, :]) * keys + key
    valid = (cs[None, :] < sets) & (key < keys)
    tl.store(at, tl.load(at, mask=valid, other=0.0) + total, mask=valid)
