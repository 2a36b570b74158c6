"""Sum over the matrix: the log-sum-exp of each row, and its check; received weights, entropies, and
a map.
"""

import triton.language as tl

from . import (
    HIDDEN,
    LN_2,
    LOG2_E,
    LOWEST,
    NOWHERE,
    helper,
    hide,
    kernel,
    load,
    load_lse,
    log2_weights,
    visible_rows,
)


@kernel
def log_sum_exp(
    q, k, rule, tiles, SINKS, LSE,
    rows, keys, heads, group, width, row_tiles, lse_stride, has_sinks, part_keys,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write ln Σ exp(score) of BM rows, which are TILES tiles; with has_sinks, SINKS (heads,)
    included.

    Where rows are few, several programs share their keys: each takes part_keys of them, and writes
    to LSE (part, bh, row).
    """
    # The last rows first: under a causal mask they take longest.
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    rm = m * BM + tl.arange(0, BM)
    row = rm[:, None]
    cn = tl.arange(0, BN)
    query_tile = load(q, b, h, rm, rows, width, D, EVEN)
    # The keys that some of these rows see, and those that all of them see.
    tile = m * TILES + tl.arange(0, TILES)
    at = b * tiles.batch + tile
    valid = tile < row_tiles
    part = tl.program_id(2)
    first = tl.maximum(
        tl.min(tl.load(tiles.first + at, mask=valid, other=keys), 0) // BN * BN, part * part_keys
    )
    stop = tl.minimum(
        tl.max(tl.load(tiles.stop + at, mask=valid, other=0), 0), (part + 1) * part_keys
    )
    inner_first = tl.max(tl.load(tiles.inner_first + at, mask=valid, other=0), 0)
    inner_stop = tl.min(tl.load(tiles.inner_stop + at, mask=valid, other=keys), 0)
    # Add up 2^(x - largest), and rescale the sum when the largest x so far grows.
    largest = tl.full([BM], NOWHERE, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for n in range(first, stop, BN):
        key = (n + cn)[None, :]
        key_tile = load(k, b, h // group, n + cn, keys, width, D, EVEN).T
        product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
        x = log2_weights(product, 0.0, row, key, b, h, rule, rows, keys)
        if (n < inner_first) | (n + BN > inner_stop):
            x = hide(x, row, key, b, h, rule, rows, keys)
        new_largest = tl.maximum(largest, tl.max(x, 1))
        total = total * tl.exp2(largest - new_largest) + tl.sum(
            tl.exp2(x - new_largest[:, None]), 1
        )
        largest = new_largest
    # The sink is one more score; the first part of the keys has it.
    if (has_sinks != 0) & (part == 0):
        sink = tl.load(SINKS + h)
        new_largest = tl.maximum(largest, sink)
        total = total * tl.exp2(largest - new_largest) + tl.exp2(sink - new_largest)
        largest = new_largest
    # A row that sees nothing has lse -inf.
    nothing = total == 0.0
    lse = tl.where(
        nothing, float("-inf"), (largest + tl.log2(tl.where(nothing, 1.0, total))) * LN_2
    )
    tl.store(LSE + (part * tl.num_programs(1) + bh) * lse_stride + rm, lse, mask=rm < rows)


@kernel
def check_rows(
    q, k, LSE, rule, SINKS, NUMBERS,
    rows, keys, heads, group, width, lse_stride, has_sinks, batch_step, head_step, row_step,
    row_count, part_keys,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Bring what part_keys of the keys contribute to NUMBERS (4, batch, heads, row_count), which
    are 0 at first: for row_count rows of a head, with the sink as one more score, the sum of their
    weights, the sum if LSE were to base two, the largest absolute score, and 1 if there is a score.
    """
    part = tl.program_id(2)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    b = tl.program_id(1).to(tl.int64) * batch_step
    h = tl.program_id(0) * head_step
    slot = tl.arange(0, BM)
    cn = tl.arange(0, BN)
    rm = slot * row_step
    row = rm[:, None]
    valid = slot < row_count
    query_tile = load(q, b, h, rm, rows, width, D, False)
    lse = tl.load(LSE + (b * heads + h) * lse_stride + rm, mask=valid, other=0.0)
    # The first part starts with the sink, if there is one.
    total = tl.zeros([BM], tl.float32)
    total_base_2 = tl.zeros([BM], tl.float32)
    absolute = tl.zeros([BM], tl.float32)
    seen = tl.zeros([BM], tl.float32)
    if (has_sinks != 0) & (part == 0):
        sink = tl.load(SINKS + h)
        total += tl.exp2(sink - lse * LOG2_E)
        total_base_2 += tl.exp2(sink - lse)
        absolute = tl.maximum(absolute, tl.abs(sink))
        seen = tl.where(sink > NOWHERE, 1.0, seen)
    for n in range(part * part_keys, tl.minimum(keys, (part + 1) * part_keys), BN):
        key = (n + cn)[None, :]
        key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
        product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
        x = log2_weights(product, 0.0, row, key, b, h, rule, rows, keys)
        x = hide(x, row, key, b, h, rule, rows, keys)
        # Here x is the score itself, to base two: both readings of LSE are subtracted from it.
        total += tl.sum(tl.exp2(x - (lse * LOG2_E)[:, None]), 1)
        total_base_2 += tl.sum(tl.exp2(x - lse[:, None]), 1)
        absolute = tl.maximum(absolute, tl.max(tl.where(x > NOWHERE, tl.abs(x), 0.0), 1))
        seen = tl.where(tl.max(x, 1) > NOWHERE, 1.0, seen)
    # Join the four numbers with those of the other parts, scores in natural units.
    at = NUMBERS + program * row_count + slot
    step = tl.num_programs(0) * tl.num_programs(1) * row_count
    tl.atomic_add(at, total, mask=valid, sem="relaxed")
    tl.atomic_add(at + step, total_base_2, mask=valid, sem="relaxed")
    tl.atomic_max(at + 2 * step, absolute * LN_2, mask=valid, sem="relaxed")
    tl.atomic_max(at + 3 * step, seen, mask=valid, sem="relaxed")


@helper
def _add_to_map(
    MAP, sums, first_row, first_key, cell_rows, cell_keys, map_columns, map_size,
    BM: tl.constexpr, BN: tl.constexpr, CELL: tl.constexpr,
):  # fmt: skip
    """Add a tile's share of each cell to the MAP, averaged over the rows of a cell; `sums` (BM //
    16, 8, BN) are the weights of the tile, added in pairs of rows.

    16 rows, which are one warp's, lie in one cell, and so do CELL keys: no warp waits for another.
    """
    part = tl.sum(tl.reshape(sums, [BM // 16, 8, BN // CELL, CELL]), 3)
    part = tl.sum(part, 1) / cell_rows.to(tl.float32)
    cell = (first_row + 16 * tl.arange(0, BM // 16))[:, None] // cell_rows * map_columns
    cell += (first_key + CELL * tl.arange(0, BN // CELL))[None, :] // cell_keys
    # Beyond the last row is no cell; beyond the last key weights are 0.
    tl.atomic_add(MAP + cell, part, mask=cell < map_size, sem="relaxed")


@kernel
def statistics(
    q, k, LSE, rule, tiles, RECEIVED, ENTROPY, MAXIMA, MAP, NORMS, CARRIED, LARGEST, LARGEST_ROW,
    rows, keys, heads, group, width, row_tiles, lse_stride, cell_rows, cell_keys, map_columns,
    map_size, first_row,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, CELL: tl.constexpr,
):  # fmt: skip
    """Add what BN keys contribute: to RECEIVED, to the ENTROPY of every row, and to the MAP unless
    that is None. A cell of the MAP has a multiple of 16 rows, and a multiple of CELL keys.

    Write into MAXIMA, unless None, the largest x of each row in each BLOCK of these keys. Add NORMS
    · weight, unless None, to CARRIED of every row. Raise LARGEST, unless None, to the largest
    weight of each key; LARGEST_ROW is the first row of the GROUP of tiles that has it. A program
    has these keys to itself, so only ENTROPY, MAP and CARRIED need atomic additions.
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
    # Sums along columns are kept for each element of half a tile, and reduced at the end.
    received = tl.zeros([BM // 16, 8, BN], tl.float32)
    if NORMS is not None:
        norm = tl.load(NORMS + bh * keys + rn, mask=rn < keys, other=0.0)[None, :]
    begin, end, unmasked_begin, unmasked_end = visible_rows(tiles, b, n, keys, row_tiles, BN)
    if MAP is not None:
        MAP += bh * map_size
    # A loop within a loop: a condition in the inner one costs more.
    for first_tile in range(begin, end, GROUP):
        if LARGEST is not None:
            largest_weight = tl.zeros([BM // 16, 8, BN], tl.float32)
        for m in range(first_tile, tl.minimum(first_tile + GROUP, end)):
            rm = m * BM + cm
            row = rm[:, None]
            query_tile = load(q, b, h, rm, rows, width, D, EVEN)
            lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            if (m < unmasked_begin) | (m >= unmasked_end):
                x = hide(x, row, key, b, h, rule, rows, keys)
            # Columns: a thread has both rows of a pair, so that half of the registers suffice.
            weight = tl.exp2(x)
            pairs = tl.reshape(weight, [BM // 16, 2, 8, BN])
            sums = tl.sum(pairs, 1)
            received += sums
            # Rows: other programs add to the same rows.
            tl.atomic_add(
                ENTROPY + bh * lse_stride + rm,
                tl.sum(weight * x, 1) * -LN_2,
                mask=rm < rows,
                sem="relaxed",
            )
            if NORMS is not None:
                # Too few registers to hold the norms: volatile, or the compiler would hold them.
                if (LARGEST is not None) & (MAXIMA is not None):
                    norm = tl.load(
                        NORMS + bh * keys + rn, mask=rn < keys, other=0.0, volatile=True
                    )[None, :]
                tl.atomic_add(
                    CARRIED + bh * lse_stride + rm,
                    tl.sum(weight * norm, 1),
                    mask=rm < rows,
                    sem="relaxed",
                )
            if LARGEST is not None:
                largest_weight = tl.maximum(largest_weight, tl.max(pairs, 1))
            # The largest x of each row in each block: the top is searched by them.
            if MAXIMA is not None:
                largest = tl.max(tl.reshape(x, [BM, BN // BLOCK, BLOCK]), 2)
                largest = tl.where(largest > NOWHERE, tl.maximum(largest, LOWEST), float("-inf"))
                where = (bh * tl.num_programs(0) + block) * (BN // BLOCK) + tl.arange(
                    0, BN // BLOCK
                )[None, :]
                tl.store(MAXIMA + where * row_tiles * BM + row, largest.to(MAXIMA.dtype.element_ty))
            if MAP is not None:
                _add_to_map(
                    MAP, sums, first_row + m * BM, n, cell_rows, cell_keys, map_columns, map_size,
                    BM, BN, CELL,
                )  # fmt: skip
        if LARGEST is not None:
            # LARGEST is in memory: the loop over tiles needs the registers.
            largest_weight = tl.max(tl.max(largest_weight, 0), 0)
            at = bh * keys + rn
            better = (largest_weight > tl.load(LARGEST + at, mask=rn < keys, other=0.0)) & (
                rn < keys
            )
            tl.store(LARGEST + at, largest_weight, mask=better)
            tl.store(LARGEST_ROW + at, tl.zeros_like(rn) + first_row + first_tile * BM, mask=better)
    # Bands of rows follow one another, so that this addition needs no atomics.
    at = RECEIVED + bh * keys + rn
    before = tl.load(at, mask=rn < keys, other=0.0)
    tl.store(at, before + tl.sum(tl.sum(received, 0), 0), mask=rn < keys)


@kernel
def find_largest_rows(
    q, k, LSE, rule, tiles, ORDER, LARGEST_ROW,
    rows, keys, heads, group, width, lse_stride, first_row,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Replace the first row of a GROUP of tiles in LARGEST_ROW by the row that gives the key its
    largest weight.

    ORDER (bh, key) has the keys by LARGEST_ROW, so that the BN keys of a program have few groups.
    Keys whose group is in another band of rows are left alone.
    """
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    cm = tl.arange(0, BM)
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    rn = tl.load(ORDER + bh * keys + at, mask=at < keys, other=keys).to(tl.int32)
    # The tiles of rows that the groups of these keys span.
    first = tl.load(LARGEST_ROW + bh * keys + rn, mask=rn < keys, other=-1) - first_row
    own = (rn < keys) & (first >= 0) & (first < rows)
    first = first // BM
    begin = tl.min(tl.where(own, first, tl.cdiv(rows, BM)), 0)
    end = tl.max(tl.where(own, first + GROUP, 0), 0)
    if begin < end:
        key = rn[None, :]
        lowest = tl.min(rn, 0)
        highest = tl.max(rn, 0)
        key_tile = load(k, b, h // group, rn, keys, width, D, EVEN).T
        best = tl.full([BM, BN], HIDDEN, tl.float32)
        best_tile = tl.zeros([BM, BN], tl.int32)
        for m in range(begin, tl.minimum(end, tl.cdiv(rows, BM))):
            rm = m * BM + cm
            row = rm[:, None]
            query_tile = load(q, b, h, rm, rows, width, D, EVEN)
            lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            seen = tl.load(tiles.inner_first + b * tiles.batch + m) <= lowest
            if (tl.load(tiles.inner_stop + b * tiles.batch + m) <= highest) | (seen == 0):
                x = hide(x, row, key, b, h, rule, rows, keys)
            # Only the tiles of a key's own group count.
            x += tl.where((m >= first) & (m < first + GROUP), 0.0, HIDDEN)[None, :]
            better = x > best
            best = tl.where(better, x, best)
            best_tile = tl.where(better, m, best_tile)
        # The lowest of the rows that have it.
        largest = tl.max(best, 0)[None, :]
        found = tl.min(tl.where(best == largest, best_tile * BM + cm[:, None], rows), 0)
        tl.store(LARGEST_ROW + bh * keys + rn, first_row + found, mask=own)
