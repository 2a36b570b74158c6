"""Sum or pool the matrix otherwise than by rows and keys: to a map of any cells, over lists of
keys, and over weighted queries.
"""

import triton.language as tl

from . import HIDDEN, NOWHERE, helper, hide, kernel, load, load_lse, log2_weights, visible_rows


@helper
def _first_of_cell(cell, positions, cells):
    """Return the first position of a cell, where `positions` fall into so many even cells."""
    return tl.cdiv(cell * positions, cells)


@kernel
def pool(
    q, k, LSE, rule, ROW_CELL, KEY_FIRST, KEY_STOP, KEY_CELL, RUN_OF_KEY, MAP,
    rows, keys, heads, group, width, lse_stride, first_row, map_rows, map_columns, runs_per_cell,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    SHARE: tl.constexpr,
):  # fmt: skip
    """Pool BM rows into the MAP: sums of weights if SHARE, else the largest weight. Several
    programs take turns with the keys of a row.

    Keys come in runs of at most BN neighbours in one cell. Without ROW_CELL, cells are even: row i
    of n is in row i · map_rows // n of the MAP, keys likewise, each with runs_per_cell runs; sums
    are averaged over the rows of a cell. Otherwise ROW_CELL has the cell of each row, and the runs
    are listed: KEY_FIRST, KEY_STOP, KEY_CELL of each, and RUN_OF_KEY.
    """
    bh = tl.program_id(2).to(tl.int64)
    b = bh // heads
    h = bh % heads
    # The last rows first: under a causal mask they take longest.
    rm = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM + tl.arange(0, BM)
    cn = tl.arange(0, BN)
    row = rm[:, None]
    valid = rm < rows
    query_tile = load(q, b, h, rm, rows, width, D, False)
    lse = load_lse(LSE, bh * lse_stride + rm, valid)[:, None]
    # The row of the MAP that each row falls into.
    if ROW_CELL is None:
        place = (rm + first_row) * map_rows // lse_stride
        cell_rows = _first_of_cell(place + 1, lse_stride, map_rows) - _first_of_cell(
            place, lse_stride, map_rows
        )
        share = 1.0 / cell_rows.to(tl.float32)
    else:
        place = tl.load(ROW_CELL + rm, mask=valid, other=0)
        share = 1.0
    MAP += (bh * map_rows + place) * map_columns
    # The keys that some of these rows see, and from them the runs of keys.
    start = tl.load(rule.start + b * rule.span_batch + rm, mask=valid, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + rm, mask=valid, other=0)
    first = tl.min(tl.where(start < stop, start, keys), 0)
    last = tl.max(stop, 0) - 1
    if ROW_CELL is None:
        begin = first * map_columns // keys * runs_per_cell
        end = (last * map_columns // keys + 1) * runs_per_cell
    else:
        seen = first <= last
        begin = tl.load(RUN_OF_KEY + first, mask=seen, other=0)
        end = tl.load(RUN_OF_KEY + last, mask=seen, other=-1) + 1
    for i in range(begin + tl.program_id(1), end, tl.num_programs(1)):
        if ROW_CELL is None:
            cell = i // runs_per_cell
            n = _first_of_cell(cell, keys, map_columns) + i % runs_per_cell * BN
            run_stop = _first_of_cell(cell + 1, keys, map_columns)
        else:
            cell = tl.load(KEY_CELL + i)
            n = tl.load(KEY_FIRST + i)
            run_stop = tl.load(KEY_STOP + i)
        key = (n + cn)[None, :]
        key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
        product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        x = hide(x, row, key, b, h, rule, rows, keys)
        x = tl.where(key < run_stop, x, HIDDEN)
        if SHARE:
            tl.atomic_add(MAP + cell, tl.sum(tl.exp2(x), 1) * share, mask=valid, sem="relaxed")
        else:
            tl.atomic_max(MAP + cell, tl.exp2(tl.max(x, 1)), mask=valid, sem="relaxed")


@kernel
def sum_listed(
    q, k, LSE, rule, ROWS, KEYS, START, STOP, SHARES, SEEN,
    rows, keys, row_slots, key_slots, row_batch, key_batch, span_batch, span_set, heads, group,
    width, lse_stride, share_set,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    SETS: tl.constexpr, SETS_PADDED: tl.constexpr,
):  # fmt: skip
    """Sum the weights that the rows listed in ROWS give to keys listed in KEYS.

    In each of the SETS, the keys of the row in a slot are those in the slots from START to STOP.
    SHARES is the sum of their weights; SEEN, unless None, whether the row may see a key of the
    first set.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    slot = m * BM + tl.arange(0, BM)
    cn = tl.arange(0, BN)
    valid = slot < row_slots
    rm = tl.load(ROWS + b * row_batch + slot, mask=valid, other=rows)
    row = rm[:, None]
    query_tile = load(q, b, h, rm, rows, width, D, False)
    lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
    START += b * span_batch + slot
    STOP += b * span_batch + slot
    # The slots of keys that these rows have in any set.
    first = key_slots
    last = 0
    for s in tl.static_range(SETS):
        start = tl.load(START + s * span_set, mask=valid, other=0)
        stop = tl.load(STOP + s * span_set, mask=valid, other=0)
        first = tl.minimum(first, tl.min(tl.where(start < stop, start, key_slots), 0))
        last = tl.maximum(last, tl.max(tl.where(start < stop, stop, 0), 0))
    column = tl.arange(0, SETS_PADDED)[None, :]
    share = tl.zeros([BM, SETS_PADDED], tl.float32)
    seen = tl.zeros([BM], tl.int32)
    for n in range(first // BN * BN, last, BN):
        key_slot = n + cn
        kn = tl.load(KEYS + b * key_batch + key_slot, mask=key_slot < key_slots, other=keys)
        key = kn[None, :]
        key_tile = load(k, b, h // group, kn, keys, width, D, False).T
        product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        x = hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        # Of each set, the weights between its START and STOP; a column of `share` is a set.
        for s in tl.static_range(SETS):
            begin = tl.load(START + s * span_set, mask=valid, other=0)[:, None]
            end = tl.load(STOP + s * span_set, mask=valid, other=0)[:, None]
            inside = (key_slot[None, :] >= begin) & (key_slot[None, :] < end)
            share += tl.where(column == s, tl.sum(tl.where(inside, weight, 0.0), 1)[:, None], 0.0)
            if (SEEN is not None) and (s == 0):
                seen = tl.maximum(seen, tl.max((inside & (x > NOWHERE)).to(tl.int32), 1))
    # The rows were gathered: each is written to its own place.
    at = column.to(tl.int64) * share_set + bh * lse_stride + row
    stored = valid[:, None] & (column < SETS)
    tl.store(SHARES + at, share, mask=stored)
    if SEEN is not None:
        tl.store(SEEN + bh * lse_stride + rm, seen.to(SEEN.dtype.element_ty), mask=valid)


@kernel
def weigh_once(
    q, k, LSE, rule, tiles, QUERY_WEIGHTS, WEIGHTED,
    rows, keys, heads, group, width, row_tiles, lse_stride, weight_batch, weight_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
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
    # These keys stay; the tiles of rows that see some of them pass by.
    key_tile = load(k, b, h // group, rn, keys, width, D, EVEN).T
    QUERY_WEIGHTS += b * weight_batch + h * weight_head
    # Kept for each element of the tile, and summed over the rows once.
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
    # Bands of rows follow one another, so that this addition needs no atomics.
    at = WEIGHTED + bh * keys + rn
    tl.store(at, tl.load(at, mask=rn < keys, other=0.0) + tl.sum(total, 0), mask=rn < keys)


@kernel
def weigh(
    q, k, LSE2, rule, tiles, FACTORS, WEIGHTED,
    rows, keys, heads, group, width, row_tiles, lse_stride, sets, factor_batch, factor_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, SETS: tl.constexpr, PARTS: tl.constexpr,
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
        # Read ahead: nothing else hides its latency.
        next_lse = tl.load(LSE2 + after, mask=after < rows, other=-HIDDEN)
        query_tile = load(q, b, h, rm, rows, width, D, EVEN)
        product = tl.dot(key_tile, query_tile.T, input_precision=PRECISION)
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < unmasked_begin) | (m >= unmasked_end):
            x = hide(x, row, key, b, h, rule, rows, keys)
        # Multiply with the factors of these rows, in one product or, split, in two.
        weight = tl.exp2(x)
        at = FACTORS + rm[:, None].to(tl.int64) * (PARTS * SETS) + cs[None, :]
        factor = tl.load(at) if EVEN else tl.load(at, mask=rm[:, None] < rows, other=0.0)
        if PARTS == 1:
            total += tl.dot(weight, factor, input_precision="ieee")
        else:
            # Cut off the upper half of the bits: rounding is slow.
            high = (weight.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
            low = (weight - high).to(factor.dtype)
            total += tl.dot(low, factor, tl.dot(high.to(factor.dtype), factor))
    # Add the parts of each set; no other program writes to these keys.
    total = tl.sum(tl.reshape(total, [BN, PARTS, SETS]), 1)
    cs = tl.arange(0, SETS)
    at = WEIGHTED + (bh * sets + cs[None, :]) * keys + key
    valid = (cs[None, :] < sets) & (key < keys)
    tl.store(at, tl.load(at, mask=valid, other=0.0) + total, mask=valid)
