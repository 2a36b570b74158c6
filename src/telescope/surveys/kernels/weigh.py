"""Sum the matrix over weighted queries: what each key gets, for one set of weights or for several
at once.
"""

import triton.language as tl

from .tiles import HIDDEN, hide, kernel, load, load_lse, log2_weights, visible_rows


@kernel
def weigh_once(
    q, k, LSE, rule, tiles, QUERY_WEIGHTS, WEIGHTED,
    rows, keys, heads, group, width, row_tiles, lse_stride, weight_batch, weight_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add Σ over the rows of QUERY_WEIGHTS (batch, head, row) · weight to WEIGHTED (bh, key), for
    BN keys, which are this program's.
    """
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    n = block * BN
    rn = n + tl.arange(0, BN)
    cm = tl.arange(0, BM)
    key = rn[None, :]
    key_tile = load(k, b, h // group, rn, keys, width, D, EVEN).T
    QUERY_WEIGHTS += b * weight_batch + h * weight_head
    total = tl.zeros([BM, BN], tl.float32)
    begin, end, unmasked_begin, unmasked_end = visible_rows(tiles, b, n, keys, row_tiles, BN)
    for m in range(begin, end):
        rm = m * BM + cm
        row = rm[:, None]
        query_tile = load(q, b, h, rm, rows, width, D, EVEN)
        lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
        product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < unmasked_begin) | (m >= unmasked_end):
            x = hide(x, row, key, b, h, rule, rows, keys)
        total += tl.exp2(x) * tl.load(QUERY_WEIGHTS + rm, mask=rm < rows, other=0.0)[:, None]
    at = WEIGHTED + bh * keys + rn
    tl.store(at, tl.load(at, mask=rn < keys, other=0.0) + tl.sum(total, 0), mask=rn < keys)


@kernel
def weigh(
    q, k, LSE2, rule, tiles, FACTORS, WEIGHTED,
    rows, keys, heads, group, width, row_tiles, lse_stride, sets, factor_batch, factor_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    SETS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add Σ over the rows of the queries' weights · weight to WEIGHTED (bh, set, key), for BN keys.

    FACTORS (batch, head, row, part, set) has one part in float32; or two in half precision, whose
    sum is the weight of a query. Weights are then split likewise. LSE2 is to base two, so large
    where a row sees nothing that its weights are 0. Tiles are (key, query) here, unlike in the
    other kernels: weights are multiplied with the factors from registers. Each tile is summed by
    itself: tensor cores cut off what they add up, always towards zero.
    """
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    n = block * BN
    rn = n + tl.arange(0, BN)
    cm = tl.arange(0, BM)
    cs = tl.arange(0, PARTS * SETS)
    key = rn[:, None]
    key_tile = load(k, b, h // group, rn, keys, width, D, EVEN)
    FACTORS += b * factor_batch + h * factor_head
    LSE2 += bh * lse_stride
    total = tl.zeros([BN, PARTS * SETS], tl.float32)
    begin, end, unmasked_begin, unmasked_end = visible_rows(tiles, b, n, keys, row_tiles, BN)
    next_lse = tl.load(LSE2 + begin * BM + cm, mask=begin * BM + cm < rows, other=-HIDDEN)
    for m in range(begin, end):
        rm = m * BM + cm
        after = (m + 1) * BM + cm
        row = rm[None, :]
        lse = next_lse[None, :]
        next_lse = tl.load(
            LSE2 + after, mask=after < rows, other=-HIDDEN
        )  # ahead: nothing else hides its latency
        query_tile = load(q, b, h, rm, rows, width, D, EVEN)
        product = tl.dot(key_tile, query_tile.T, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < unmasked_begin) | (m >= unmasked_end):
            x = hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        at = FACTORS + rm[:, None].to(tl.int64) * (PARTS * SETS) + cs[None, :]
        factor = tl.load(at) if EVEN else tl.load(at, mask=rm[:, None] < rows, other=0.0)
        if PARTS == 1:
            total += tl.dot(weight, factor, input_precision="ieee")
        else:
            high = (weight.to(tl.int32, bitcast=True) & -65536).to(
                tl.float32, bitcast=True
            )  # cut: rounding is slow
            low = (weight - high).to(factor.dtype)
            total += tl.dot(low, factor, tl.dot(high.to(factor.dtype), factor))
    total = tl.sum(tl.reshape(total, [BN, PARTS, SETS]), 1)
    cs = tl.arange(0, SETS)
    at = WEIGHTED + (bh * sets + cs[None, :]) * keys + key
    valid = (cs[None, :] < sets) & (key < keys)
    tl.store(at, tl.load(at, mask=valid, other=0.0) + total, mask=valid)
