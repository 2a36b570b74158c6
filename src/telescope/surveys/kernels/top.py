"""Find the `top` largest weights of each row, largest first.

`statistics` wrote down the largest x = log2(weight) of each row in each block of keys. In this
order:
find_blocks       bounds the `top` largest x of a row from below by a threshold, and lists the
                  blocks that reach it
place_rows        reserves room for the rows of each block
group_rows        sorts these (row, block) pairs by block
raise_thresholds  raises the thresholds of tiles whose rows share many blocks
collect_keys      multiplies the listed rows with their blocks again, and collects the keys that
                  reach the threshold
rank_keys         sorts the collected keys of each row
search_all_keys   searches the few rows whose lists were too short, from the first key to the last
"""

import triton.language as tl

from . import (
    EMPTY,
    HIDDEN,
    LOWEST,
    NOWHERE,
    helper,
    hide,
    kernel,
    load,
    load_lse,
    log2_weights,
)


@helper
def _nth_largest(values, n, AXIS: tl.constexpr):
    """Return the n-th largest value along an axis, equal values counted once; NOWHERE if there are
    fewer.
    """
    # Remove the largest n - 1 times.
    nth = tl.max(values, AXIS)
    for _ in range(1, n):
        values = tl.where(values == tl.expand_dims(nth, AXIS), HIDDEN, values)
        nth = tl.max(values, AXIS)
    return tl.maximum(nth, NOWHERE)


@kernel
def find_blocks(
    MAXIMA, tiles, THRESHOLD, ROW_COUNT, BLOCK_COUNT, ROW_BLOCKS, COMMON,
    heads, row_tiles, key_blocks, top,
    BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, BLOCK_CAPACITY: tl.constexpr,
    MOST_COMMON: tl.constexpr,
):  # fmt: skip
    """Write, for BM rows: a THRESHOLD that the `top` largest x of a row reach; the BLOCK_COUNT of
    blocks that reach it; ROW_BLOCKS, the first BLOCK_CAPACITY of them, each with the row's rank
    among the rows that list the block; and the COMMON blocks, which more than half of the rows
    reach. Add to ROW_COUNT how many rows list each block.

    The threshold is the `top`-th largest among the maxima of CLASSES disjoint sets of keys: at
    least `top` keys reach it. COMMON holds a count, then at most MOST_COMMON blocks.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    row = m * BM + tl.arange(0, BM)
    padded_rows = row_tiles * BM  # of one head: offsets within a head fit 32 bits
    MAXIMA += bh * key_blocks * padded_rows
    ROW_BLOCKS += bh * padded_rows * BLOCK_CAPACITY
    tile = (bh // heads) * tiles.batch + m
    first = tl.load(tiles.first + tile) // BN
    stop = tl.cdiv(tl.load(tiles.stop + tile), BN)
    # The largest x of each class of blocks: block n is in class n % CLASSES.
    class_id = tl.arange(0, CLASSES)
    best = tl.full([CLASSES, BM], HIDDEN, tl.float32)
    for n in range(first, stop, CLASSES):
        at = (n + class_id)[:, None] * padded_rows + row[None, :]
        valid = (n + class_id)[:, None] < stop
        best = tl.maximum(
            best, tl.load(MAXIMA + at, mask=valid, other=float("-inf")).to(tl.float32)
        )
    # A float16 leaves the lowest 13 bits of a float32 zero. The class goes there, so that no two
    # maxima are equal.
    distinct = (best.to(tl.int32, bitcast=True) | class_id[:, None]).to(tl.float32, bitcast=True)
    nth = _nth_largest(distinct, top, 0)
    # Without the class; below LOWEST all maxima are stored as equal, and every key reaches.
    threshold = (nth.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    threshold = tl.where(threshold > LOWEST + 64, threshold, NOWHERE)
    tl.store(THRESHOLD + bh * padded_rows + row, threshold)

    # List the blocks that reach it, and count the rows of each block.
    common = 0
    count = tl.zeros([BM], tl.int32)
    COMMON += (bh * row_tiles + m) * (MOST_COMMON + 1)
    for n in range(first, stop, CLASSES):
        block = n + class_id
        at = block[:, None] * padded_rows + row[None, :]
        largest = tl.load(MAXIMA + at, mask=block[:, None] < stop, other=float("-inf")).to(
            tl.float32
        )
        reaching = (largest >= threshold[None, :]).to(tl.int32)
        place = count[None, :] + tl.cumsum(reaching, 0) - reaching
        listed = reaching * (place < BLOCK_CAPACITY)
        # Each row that lists a block gets a rank among them.
        added = tl.sum(listed, 1)
        before = tl.atomic_add(
            ROW_COUNT + bh * key_blocks + block, added, mask=added > 0, sem="relaxed"
        )
        rank_in_block = before[:, None] + tl.cumsum(listed, 1) - listed
        entry = (block[:, None].to(tl.int64) << 32) | rank_in_block.to(tl.int64)
        tl.store(ROW_BLOCKS + row[None, :] * BLOCK_CAPACITY + place, entry, mask=listed > 0)
        count += tl.sum(reaching, 0)
        # Blocks that more than half of these rows reach.
        shared = (2 * tl.sum(reaching, 1) > BM).to(tl.int32)
        common_place = common + tl.cumsum(shared, 0)
        tl.store(COMMON + common_place, block, mask=(shared > 0) & (common_place <= MOST_COMMON))
        common += tl.sum(shared, 0)
    tl.store(COMMON, tl.minimum(common, MOST_COMMON))
    tl.store(BLOCK_COUNT + bh * padded_rows + row, count)


@kernel
def place_rows(
    ROW_COUNT, FIRST_ROW, padded_rows, key_blocks,
    BLOCK_CAPACITY: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write into FIRST_ROW where the rows of each block of keys begin: one block after the other,
    ROW_COUNT rows for each. Every matrix has room for BLOCK_CAPACITY blocks of each row.
    """
    bh = tl.program_id(0)
    before = bh * padded_rows * BLOCK_CAPACITY
    for n in range(0, key_blocks, BLOCKS):
        block = n + tl.arange(0, BLOCKS)
        at = bh * key_blocks + block
        count = tl.load(ROW_COUNT + at, mask=block < key_blocks, other=0)
        tl.store(FIRST_ROW + at, before + tl.cumsum(count, 0) - count, mask=block < key_blocks)
        before += tl.sum(count, 0)


@kernel
def group_rows(
    BLOCK_COUNT, ROW_BLOCKS, FIRST_ROW, BLOCK_ROWS, padded_rows, key_blocks,
    BM: tl.constexpr, BLOCK_CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write the rows that list a block of keys into BLOCK_ROWS, one after the other from FIRST_ROW
    of the block on.
    """
    bh = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    place = tl.arange(0, BLOCK_CAPACITY)[None, :]
    valid = place < tl.load(BLOCK_COUNT + bh * padded_rows + row)
    entry = tl.load(
        ROW_BLOCKS + (bh * padded_rows + row) * BLOCK_CAPACITY + place, mask=valid, other=0
    )
    first = tl.load(FIRST_ROW + bh * key_blocks + (entry >> 32), mask=valid, other=0)
    tl.store(BLOCK_ROWS + first + entry.to(tl.int32), row + 0 * place, mask=valid)


@kernel
def raise_thresholds(
    q, k, LSE, rule, THRESHOLD, COMMON,
    rows, keys, heads, group, width, row_tiles, lse_stride, top,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    MOST_COMMON: tl.constexpr,
):  # fmt: skip
    """Raise the THRESHOLD of BM rows that have COMMON blocks, to the `top`-th largest among the
    maxima of BN classes of these blocks' keys.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    program = bh * row_tiles + m
    COMMON += program * (MOST_COMMON + 1)
    common = tl.load(COMMON)
    if common > 0:
        b = bh // heads
        h = bh % heads
        cm = tl.arange(0, BM)
        cn = tl.arange(0, BN)
        rm = m * BM + cm
        row = rm[:, None]
        query_tile = load(q, b, h, rm, rows, width, D, False)
        lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
        # The largest x of each class, the keys at one place of all these blocks.
        best = tl.full([BM, BN], HIDDEN, tl.float32)
        for i in range(common):
            n = tl.load(COMMON + 1 + i) * BN
            key = (n + cn)[None, :]
            key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            best = tl.maximum(best, hide(x, row, key, b, h, rule, rows, keys))
        at = THRESHOLD + program * BM + cm
        tl.store(at, tl.maximum(tl.load(at), _nth_largest(best, top, 1)))


@helper
def _lowest_bit(bits):
    """Return the lowest bit that is set, and its index."""
    low = bits & -bits
    # As a float, a power of two has its index in the exponent.
    power = low.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    return low, ((power >> 23) & 255) - 127


@helper
def _popcount(bits):
    """Return the number of bits that are set in each 32-bit word."""
    # Pairs, then nibbles, then bytes, which a product adds up in its highest byte.
    bits -= (bits >> 1) & 0x55555555
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 63


@helper
def _low_bits(count):
    """Return a 32-bit word whose lowest `count` bits are set."""
    return tl.where(count >= 32, -1, (1 << tl.minimum(tl.maximum(count, 0), 31)) - 1)


@kernel
def collect_keys(
    q, k, LSE, rule, THRESHOLD, FIRST_ROW, ROW_COUNT, BLOCK_ROWS, KEY_COUNT, CANDIDATES,
    rows, keys, heads, group, width, padded_rows, lse_stride,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    KEY_CAPACITY: tl.constexpr,
):  # fmt: skip
    """Collect the keys of one block that reach the THRESHOLD of a row, for the rows that list the
    block.

    KEY_COUNT grows by the number of these keys. CANDIDATES takes the first KEY_CAPACITY of a row,
    packed with their x. Only the rows that list the block are multiplied, gathered BM at a time.
    """
    block = tl.program_id(0)
    bh = tl.program_id(2).to(tl.int64)
    b = bh // heads
    h = bh % heads
    n = block * BN
    cn = tl.arange(0, BN)
    word = (n + 32 * tl.arange(0, BN // 32))[None, :]
    key = (n + cn)[None, :]
    # The rows that list this block; several programs take turns with them.
    at = bh * tl.num_programs(0) + block
    start = tl.load(FIRST_ROW + at)
    stop = start + tl.load(ROW_COUNT + at)
    start += tl.program_id(1) * BM
    offset = bh * padded_rows
    if start < stop:
        key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
        bit = tl.full([1], 1, tl.int32) << (cn % 32)
        for i in range(start, stop, tl.num_programs(1) * BM):
            entry_slot = i + tl.arange(0, BM)
            rm = tl.load(BLOCK_ROWS + entry_slot, mask=entry_slot < stop, other=rows)
            row = rm[:, None]
            query_tile = load(q, b, h, rm, rows, width, D, False)
            lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
            threshold = tl.load(THRESHOLD + offset + rm, mask=rm < rows, other=0.0)[:, None]
            # Lower: `statistics` may have rounded the same product otherwise, and rounded the
            # maxima to 11 bits.
            threshold = tl.maximum(
                threshold - 1e-4 - tl.abs(threshold) / 1024 - 1e-6 * tl.abs(lse), NOWHERE
            )
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            if rule.mask is not None:
                x = hide(x, row, key, b, h, rule, rows, keys)
            # One bit for each key that reaches it, 32 keys in a word.
            words = tl.sum(
                tl.reshape(tl.where(x >= threshold, bit[None, :], 0), [BM, BN // 32, 32]), 2
            )
            x = tl.reshape(x, [BM, BN // 32, 32])
            # Clear the bits of keys that the row does not see.
            begin = tl.load(rule.start + b * rule.span_batch + row, mask=row < rows, other=0)
            end = tl.load(rule.stop + b * rule.span_batch + row, mask=row < rows, other=0)
            words &= _low_bits(end - word) & ~_low_bits(begin - word)
            # Reserve slots for them, and fill the slots, a bit of every word at a time.
            counts = _popcount(words)
            before = tl.atomic_add(
                KEY_COUNT + offset + rm, tl.sum(counts, 1), mask=rm < rows, sem="relaxed"
            )
            slot = before[:, None] + tl.cumsum(counts, 1) - counts
            while tl.max(tl.max((words != 0).to(tl.int32), 1), 0) > 0:
                low, place = _lowest_bit(words)
                at_slot = (offset + row) * KEY_CAPACITY + slot
                valid = (words != 0) & (slot < KEY_CAPACITY)
                x_of_bit = tl.sum(
                    tl.where(tl.arange(0, 32)[None, None, :] == place[:, :, None], x, 0.0), 2
                )
                tl.store(
                    CANDIDATES + at_slot, _pack(x_of_bit, (word + place).to(tl.int64)), mask=valid
                )
                words ^= low
                slot += 1


@kernel
def rank_keys(
    BLOCK_COUNT, KEY_COUNT, CANDIDATES, WEIGHTS, KEYS, OVERFULL, rows, padded_rows, lse_stride, top,
    BM: tl.constexpr, TOP_PADDED: tl.constexpr, BLOCK_CAPACITY: tl.constexpr,
    KEY_CAPACITY: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Write the `top` largest CANDIDATES of each row, in order. OVERFULL is true for a row with
    more blocks or keys than there was room for.
    """
    bh = tl.program_id(1).to(tl.int64)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    row = rm[:, None]
    # Rows for whose blocks or keys there was no room are searched again, by search_all_keys.
    count = tl.load(BLOCK_COUNT + bh * padded_rows + rm, mask=rm < rows, other=0)
    key_count = tl.load(KEY_COUNT + bh * padded_rows + rm, mask=rm < rows, other=0)
    tl.store(
        OVERFULL + bh * lse_stride + rm,
        (count > BLOCK_CAPACITY) | (key_count > KEY_CAPACITY),
        mask=rm < rows,
    )
    CANDIDATES += (bh * padded_rows + row) * KEY_CAPACITY
    at = bh * lse_stride + row
    valid = row < rows
    if tl.max(key_count, 0) <= FEW:  # almost always
        packed = _load_candidates(CANDIDATES, key_count, FEW)
        _store_top(packed, WEIGHTS, KEYS, at, valid, top, TOP_PADDED)
    else:
        all_packed = _load_candidates(CANDIDATES, key_count, KEY_CAPACITY)
        _store_top(all_packed, WEIGHTS, KEYS, at, valid, top, TOP_PADDED)


@helper
def _load_candidates(CANDIDATES, key_count, KEY_CAPACITY: tl.constexpr):
    """Return the first KEY_CAPACITY candidates of each row; EMPTY beyond its last."""
    slot = tl.arange(0, KEY_CAPACITY)[None, :]
    return tl.load(CANDIDATES + slot, mask=slot < key_count[:, None], other=EMPTY)


@kernel
def search_all_keys(
    q, k, LSE, rule, tiles, OVERFULL, WEIGHTS, KEYS,
    rows, keys, heads, group, width, lse_stride, top,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    PROGRAMS: tl.constexpr, TOP_PADDED: tl.constexpr,
):  # fmt: skip
    """Write the `top` largest of overfull rows, from all of their keys. PROGRAMS programs share a
    tile of rows.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // heads
    h = bh % heads
    rm = m * BM + tl.arange(0, BM)
    cn = tl.arange(0, BN)
    # Most tiles have no such row, and their programs end here.
    overfull = tl.load(OVERFULL + bh * lse_stride + rm, mask=rm < rows, other=0).to(tl.int32)
    if tl.max(overfull, 0) > 0:
        row = rm[:, None]
        query_tile = load(q, b, h, rm, rows, width, D, False)
        lse = load_lse(LSE, bh * lse_stride + rm, rm < rows)[:, None]
        tile = b * tiles.batch + m // PROGRAMS
        place = tl.arange(0, TOP_PADDED)[None, :]
        nothing = EMPTY + place.to(tl.int64)  # all different, so that one at a time is replaced
        best = tl.where(place < top, nothing, -EMPTY) + tl.zeros([BM, 1], tl.int64)
        for n in range(tl.load(tiles.first + tile) // BN * BN, tl.load(tiles.stop + tile), BN):
            key = (n + cn)[None, :]
            key_tile = load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(query_tile, key_tile, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = hide(x, row, key, b, h, rule, rows, keys)
            # While a new key is larger than the least of the best, it takes its place.
            new = tl.where(x > NOWHERE, _pack(x, key.to(tl.int64)), EMPTY)
            least = tl.min(best, 1)[:, None]
            while tl.max(tl.max((new > least).to(tl.int32), 1), 0) > 0:
                largest = tl.max(new, 1)[:, None]
                new = tl.where(new == largest, EMPTY, new)
                best = tl.where((best == least) & (largest > least), largest, best)
                least = tl.min(best, 1)[:, None]
        best = tl.where((place < top) & (best != nothing), best, EMPTY)
        _store_top(
            best, WEIGHTS, KEYS, bh * lse_stride + row, overfull[:, None] > 0, top, TOP_PADDED
        )


@helper
def _pack(x, key):
    """Return one int64 that grows with x and, among equal x, falls with the key."""
    # The bits of floats have the order of the floats, once those of negative ones are inverted.
    pattern = x.to(tl.int32, bitcast=True)
    order = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - key)


@helper
def _store_top(packed, WEIGHTS, KEYS, at, valid, top, TOP_PADDED: tl.constexpr):
    """Write the `top` largest packed numbers of each row, in order, as weights and keys; 0 and -1
    for missing ones.
    """
    # Take the largest, and remove it, `top` times.
    place = tl.arange(0, TOP_PADDED)[None, :]
    best = tl.zeros([packed.shape[0], TOP_PADDED], tl.int64) + EMPTY
    for i in range(top):
        largest = tl.max(packed, 1)[:, None]
        packed = tl.where(packed == largest, EMPTY, packed)
        best = tl.where(place == i, largest, best)
    # Unpack x and key.
    filled = best != EMPTY
    order = (best >> 32).to(tl.int32)
    x = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    stored = (place < top) & valid
    tl.store(WEIGHTS + at * top + place, tl.where(filled, tl.exp2(x), 0.0), mask=stored)
    tl.store(
        KEYS + at * top + place, tl.where(filled, 0x7FFFFFFF - (best & 0xFFFFFFFF), -1), mask=stored
    )
