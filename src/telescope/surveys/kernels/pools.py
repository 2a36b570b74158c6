"""Sum or pool the matrix otherwise than by rows and keys: to a map of any cells, over lists of
keys, and over weighted queries.
"""

import triton.language as tl

from . import HIDDEN, NOWHERE, helper, hide, kernel, load, load_lse, log2_weights, visible_rows


@helper
def _add_to_cell(cell, partial, valid, SHARE: tl.constexpr, BY_ROW: tl.constexpr):
    """Reduce what a tile has gathered for one cell of the map, or for one of each row, and add it
    to the cell.
    """
    if BY_ROW and SHARE:
        tl.atomic_add(cell, tl.sum(partial, 1), mask=valid, sem="relaxed")
    elif BY_ROW:
        tl.atomic_max(cell, tl.exp2(tl.max(partial, 1)), mask=valid, sem="relaxed")
    elif SHARE:
        tl.atomic_add(cell, tl.sum(tl.sum(partial, 1), 0), sem="relaxed")
    else:
        tl.atomic_max(cell, tl.exp2(tl.max(tl.max(partial, 1), 0)), sem="relaxed")


@kernel
def pool(
    q, k, LSE, rule, row_runs, key_runs, RUN_OF_KEY, MAP,
    rows, keys, heads, group, width, lse_stride, map_columns, map_size,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    SHARE: tl.constexpr, BY_ROW: tl.constexpr,
):  # fmt: skip
    """Add one run of rows, at most BM, to the MAP: sums of weights if SHARE, else the largest
    weight.

    If BY_ROW, every row of the run has a row of the MAP to itself, from that of the run on.

    row_runs and key_runs are the runs of neighbours in one cell: (first, stop, cell). RUN_OF_KEY is
    the run of each key. The weights of one cell are kept for each element of the tile, and added up
    once.
    """
    run = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    rm = tl.load(row_runs[0] + run) + tl.arange(0, BM)
    cn = tl.arange(0, BN)
    row = rm[:, None]
    count = tl.load(row_runs[1] + run)
    # Where the run's row of the MAP begins, or that of each of its rows.
    if BY_ROW:
        place = (tl.load(row_runs[2] + run) + tl.arange(0, BM)).to(tl.int64)
    else:
        place = tl.load(row_runs[2] + run).to(tl.int64)
    MAP += bh * map_size + place * map_columns
    query_tile = load(q, b, h, rm, count, width, D, False)
    lse = load_lse(LSE, bh * lse_stride + rm, rm < count)[:, None]
    # The keys that some of these rows see, and from them the runs of keys.
    start = tl.load(rule.start + b * rule.span_batch + rm, mask=rm < count, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + rm, mask=rm < count, other=0)
    first = tl.min(tl.where(start < stop, start, keys), 0)
    last = tl.max(stop, 0) - 1
    if first <= last:
        # Gather the weights of one cell, run by run.
        begin = tl.load(RUN_OF_KEY + first)
        end = tl.load(RUN_OF_KEY + last)
        cell = tl.load(key_runs[2] + begin)
        nothing: tl.constexpr = 0.0 if SHARE else HIDDEN
        partial = tl.full([BM, BN], nothing, tl.float32)
        for i in range(begin, end + 1):
            n = tl.load(key_runs[0] + i)
            key = (n + cn)[None, :]
            key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = hide(x, row, key, b, h, rule, rows, keys)
            x = tl.where(key < tl.load(key_runs[1] + i), x, HIDDEN)
            # At the border of a cell, add what was gathered for the one before.
            next_cell = tl.load(key_runs[2] + i)
            if next_cell != cell:
                _add_to_cell(MAP + cell, partial, rm < count, SHARE, BY_ROW)
                partial = tl.full([BM, BN], nothing, tl.float32)
                cell = next_cell
            partial = partial + tl.exp2(x) if SHARE else tl.maximum(partial, x)
        _add_to_cell(MAP + cell, partial, rm < count, SHARE, BY_ROW)


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
