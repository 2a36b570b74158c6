"""What is summed: the log-sum-exp of each row; what each key receives, each row's entropy, and a map of tiles."""

import triton.language as tl

from .tiles import LN_2, LOWEST, NOWHERE, hide, kernel, load, load_lse, log2_weights


@kernel
def log_sum_exp(
    q, k, rule, tiles, sinks, LSE, rows, keys, heads, group, width, row_tiles, lse_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    PER: tl.constexpr,
):  # fmt: skip
    """ln Σ exp(score) of BM rows, which are PER tiles, the sink included."""
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    rm = m * BM + tl.arange(0, BM)
    row, cn = rm[:, None], tl.arange(0, BN)
    asked = load(q, b, h, rm, rows, width, D, WHOLE)
    tile = m * PER + tl.arange(0, PER)
    at, there = b * tiles.batch + tile, tile < row_tiles
    first = tl.min(tl.load(tiles.first + at, mask=there, other=keys), 0) // BN * BN
    stop = tl.max(tl.load(tiles.stop + at, mask=there, other=0), 0)
    inner_first = tl.max(tl.load(tiles.inner_first + at, mask=there, other=0), 0)
    inner_stop = tl.min(tl.load(tiles.inner_stop + at, mask=there, other=keys), 0)
    largest = tl.full([BM], NOWHERE, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for n in range(first, stop, BN):
        key = (n + cn)[None, :]
        offered = load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
        x = log2_weights(tl.dot(asked, offered, input_precision=PRECISION), 0.0, row, key, b, h, rule, rows, keys)
        if (n < inner_first) | (n + BN > inner_stop):
            x = hide(x, row, key, b, h, rule, rows, keys)
        grown = tl.maximum(largest, tl.max(x, 1))
        total = total * tl.exp2(largest - grown) + tl.sum(tl.exp2(x - grown[:, None]), 1)
        largest = grown
    if sinks is not None:
        sink = tl.load(sinks + h)
        grown = tl.maximum(largest, sink)
        total = total * tl.exp2(largest - grown) + tl.exp2(sink - grown)
        largest = grown
    nothing = total == 0.0
    lse = tl.where(nothing, float("-inf"), (largest + tl.log2(tl.where(nothing, 1.0, total))) * LN_2)
    tl.store(LSE + bh * lse_head + rm, lse, mask=rm < rows)


@kernel
def statistics(
    q, k, LSE, rule, tiles, RECEIVED, ENTROPY, MAXIMA, MAP,
    rows, keys, heads, group, width, row_tiles, lse_head, cell_rows, cell_keys, map_columns, map_size, first_row,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """What BN keys receive from these rows, and their part of each row's entropy and map; and the largest x of each row
    in each PART of these keys."""
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    n = block * BN
    rn, cm = n + tl.arange(0, BN), tl.arange(0, BM)
    key = rn[None, :]
    offered = load(k, b, h // group, rn, keys, width, D, WHOLE).T
    received = tl.zeros([BM, BN], tl.float32)
    pooled = tl.zeros([BM], tl.float32)

    # Which tiles of rows look here: from `begin` to `end`; from `clear` to `clouded` they need no mask.
    begin, end, clear, clouded = row_tiles, 0, row_tiles, row_tiles
    for m0 in range(0, row_tiles, 256):
        tile = m0 + tl.arange(0, 256)
        at, there = b * tiles.batch + tile, tile < row_tiles
        looks = (tl.load(tiles.first + at, mask=there, other=keys) < n + BN) & (
            tl.load(tiles.stop + at, mask=there, other=0) > n
        )
        everyone = (tl.load(tiles.inner_first + at, mask=there, other=keys) <= n) & (
            tl.load(tiles.inner_stop + at, mask=there, other=0) >= n + BN
        )
        begin = tl.minimum(begin, tl.min(tl.where(looks, tile, row_tiles), 0))
        end = tl.maximum(end, tl.max(tl.where(looks, tile + 1, 0), 0))
        clear = tl.minimum(clear, tl.min(tl.where(everyone, tile, row_tiles), 0))
    for m0 in range(clear // 256 * 256, row_tiles, 256):
        tile = m0 + tl.arange(0, 256)
        at, there = b * tiles.batch + tile, tile < row_tiles
        everyone = (tl.load(tiles.inner_first + at, mask=there, other=0) <= n) & (
            tl.load(tiles.inner_stop + at, mask=there, other=keys) >= n + BN
        )
        clouded = tl.minimum(clouded, tl.min(tl.where(everyone | (tile < clear), row_tiles, tile), 0))

    if MAP is not None:
        per_cell = cell_rows // BM
        cell = (first_row // BM + begin) // per_cell
        left = (cell + 1) * per_cell - first_row // BM - begin  # tiles of rows that the cell still takes
        cell = cell * map_columns + n // cell_keys
    for m in range(begin, end):
        rm = m * BM + cm
        row = rm[:, None]
        asked = load(q, b, h, rm, rows, width, D, WHOLE)
        lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
        product = tl.dot(asked, offered, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < clear) | (m >= clouded):
            x = hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        received += weight
        tl.atomic_add(ENTROPY + bh * lse_head + rm, tl.sum(weight * x, 1) * -LN_2, mask=rm < rows, sem="relaxed")
        if MAXIMA is not None:
            largest = tl.max(tl.reshape(x, [BM, BN // PART, PART]), 2)
            largest = tl.where(largest > NOWHERE, tl.maximum(largest, LOWEST), float("-inf"))
            where = (bh * tl.num_programs(0) + block) * (BN // PART) + tl.arange(0, BN // PART)[None, :]
            tl.store(MAXIMA + where * row_tiles * BM + row, largest.to(MAXIMA.dtype.element_ty))
        if MAP is not None:
            pooled += tl.sum(weight, 1)
            left -= 1
            if (left == 0) | (m == end - 1):
                part = tl.sum(tl.reshape(pooled, [BM // 16, 16]), 1)  # 16 rows are one warp's: nobody has to wait
                tl.atomic_add(MAP + bh * map_size + cell + tl.zeros_like(part).to(tl.int32), part, sem="relaxed")
                pooled = tl.zeros([BM], tl.float32)
                left, cell = per_cell, cell + map_columns
    at = RECEIVED + bh * keys + rn
    before = tl.load(at, mask=rn < keys, other=0.0)
    tl.store(at, before + tl.sum(received, 0), mask=rn < keys)
