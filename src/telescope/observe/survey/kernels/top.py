"""The largest weights of each row. The largest of each block of keys bound them, so few blocks are looked into."""

import triton
import triton.language as tl

from .tiles import EMPTY, HIDDEN, NOWHERE, hide, load, load_lse, log2_weights


@triton.jit
def _nth_largest(values, NTH: tl.constexpr, AXIS: tl.constexpr):
    """The NTH largest value along an axis, equal ones counted once; NOWHERE if there are not so many."""
    nth = tl.max(values, AXIS)
    for _ in range(1, NTH):
        values = tl.where(values == tl.expand_dims(nth, AXIS), HIDDEN, values)
        nth = tl.max(values, AXIS)
    return tl.maximum(nth, NOWHERE)


@triton.jit
def candidates(
    MAXIMA, tiles, THRESHOLD, ASKED, COUNT, BUSY, heads, row_tiles, key_blocks,
    TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, ROOM: tl.constexpr,
    MOST_BUSY: tl.constexpr,
):  # fmt: skip
    """From the largest x of each row in each block of keys: a threshold that the TOP largest of the row reach; how many
    blocks of each row reach it; how many rows ask for a block, each for the first ROOM of its own; and the blocks that
    most rows of the tile have.

    The threshold is the TOP-th largest among the largest of CLASSES disjoint sets, so at least TOP keys reach it.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    row = m * BM + tl.arange(0, BM)
    tile = (bh // heads) * tiles.batch + m
    first, stop = tl.load(tiles.first + tile) // BN, tl.cdiv(tl.load(tiles.stop + tile), BN)
    best = tl.full([CLASSES, BM], HIDDEN, tl.float32)
    for n in range(first, stop, CLASSES):
        block = n + tl.arange(0, CLASSES)
        at = (bh * key_blocks + block)[:, None] * row_tiles * BM + row[None, :]
        best = tl.maximum(best, tl.load(MAXIMA + at, mask=block[:, None] < stop, other=HIDDEN).to(tl.float32))
    threshold = _nth_largest(best, TOP, 0)
    tl.store(THRESHOLD + bh * row_tiles * BM + row, threshold)

    busy, count = 0, tl.zeros([BM], tl.int32)
    BUSY += (bh * row_tiles + m) * (MOST_BUSY + 1)
    for n in range(first, stop, CLASSES):
        block = n + tl.arange(0, CLASSES)
        at = (bh * key_blocks + block)[:, None] * row_tiles * BM + row[None, :]
        largest = tl.load(MAXIMA + at, mask=block[:, None] < stop, other=HIDDEN).to(tl.float32)
        reaching = (largest >= threshold[None, :]).to(tl.int32)
        asking = reaching * (count[None, :] + tl.cumsum(reaching, 0) <= ROOM)
        asked = tl.sum(asking, 1)
        tl.atomic_add(ASKED + bh * key_blocks + block, asked, mask=asked > 0, sem="relaxed")
        count += tl.sum(reaching, 0)
        many = (2 * tl.sum(reaching, 1) > BM).to(tl.int32)
        place = busy + tl.cumsum(many, 0)
        tl.store(BUSY + place, block, mask=(many > 0) & (place <= MOST_BUSY))
        busy += tl.sum(many, 0)
    tl.store(BUSY, tl.minimum(busy, MOST_BUSY))
    tl.store(COUNT + bh * row_tiles * BM + row, count)


@triton.jit
def enlist(
    MAXIMA, tiles, THRESHOLD, NEXT, ENTRIES, FIRST, heads, row_tiles, key_blocks,
    BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Each row with the blocks in which its top may be: the row notes their first keys, ROOM of them at most, and the
    block, from where NEXT says on, which row asks and at which place of its notes."""
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    row = m * BM + tl.arange(0, BM)
    line = bh * row_tiles * BM + row
    tile = (bh // heads) * tiles.batch + m
    first, stop = tl.load(tiles.first + tile) // BN, tl.cdiv(tl.load(tiles.stop + tile), BN)
    threshold = tl.load(THRESHOLD + line)
    count = tl.zeros([BM], tl.int32)
    for n in range(first, stop, CLASSES):
        block = n + tl.arange(0, CLASSES)
        at = (bh * key_blocks + block)[:, None] * row_tiles * BM + row[None, :]
        largest = tl.load(MAXIMA + at, mask=block[:, None] < stop, other=HIDDEN).to(tl.float32)
        reaching = (largest >= threshold[None, :]).to(tl.int32)
        place = count[None, :] + tl.cumsum(reaching, 0) - reaching
        there = (reaching > 0) & (place < ROOM)
        tl.store(FIRST + line[None, :] * ROOM + place, (block * BN)[:, None] + 0 * place, mask=there)
        asking = there.to(tl.int32)
        following = tl.atomic_add(
            NEXT + bh * key_blocks + block, tl.sum(asking, 1), mask=tl.max(asking, 1) > 0, sem="relaxed"
        )
        at_entry = following[:, None] + tl.cumsum(asking, 1) - asking
        tl.store(ENTRIES + at_entry, row[None, :] * ROOM + place, mask=there)
        count += tl.sum(reaching, 0)


@triton.jit
def sharpen(
    q, k, LSE, rule, THRESHOLD, BUSY, rows, keys, heads, group, width, row_tiles, lse_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    TOP: tl.constexpr, MOST_BUSY: tl.constexpr,
):  # fmt: skip
    """Where most rows of a tile look into the same blocks, these raise the threshold: to the TOP-th largest among the
    largest of BN classes of their keys. Elsewhere there is nothing to do."""
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    program = bh * row_tiles + m
    BUSY += program * (MOST_BUSY + 1)
    busy = tl.load(BUSY)
    if busy > 0:
        b, h = bh // heads, bh % heads
        cm, cn = tl.arange(0, BM), tl.arange(0, BN)
        rm = m * BM + cm
        row = rm[:, None]
        asked = load(q, b, h, rm, rows, width, D, WHOLE)
        lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
        best = tl.full([BM, BN], HIDDEN, tl.float32)
        for i in range(busy):
            n = tl.load(BUSY + 1 + i) * BN
            key = (n + cn)[None, :]
            offered = load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            best = tl.maximum(best, hide(x, row, key, b, h, rule, rows, keys))
        at = THRESHOLD + program * BM + cm
        tl.store(at, tl.maximum(tl.load(at), _nth_largest(best, TOP, 1)))


@triton.jit
def mark(
    q, k, LSE, rule, THRESHOLD, START, STOP, ENTRIES, BITS,
    rows, keys, heads, group, width, row_tiles, lse_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    ROOM: tl.constexpr,
):  # fmt: skip
    """For the rows that ask a block of keys: which of its keys reach the row's threshold, a bit for each, 32 to a word.

    Only the rows that ask are multiplied, BM of them at a time, from wherever they stand."""
    block = tl.program_id(0)
    bh = tl.program_id(2).to(tl.int64)
    b, h = bh // heads, bh % heads
    n = block * BN
    cn, word = tl.arange(0, BN), tl.arange(0, BN // 32)[None, :]
    key = (n + cn)[None, :]
    at = bh * tl.num_programs(0) + block
    start, stop = tl.load(START + at), tl.load(STOP + at)
    start += tl.program_id(1) * BM
    if start < stop:
        offered = load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
        bit = tl.full([1], 1, tl.int32) << (cn % 32)
        for i in range(start, stop, tl.num_programs(1) * BM):
            some = i + tl.arange(0, BM)
            entry = tl.load(ENTRIES + some, mask=some < stop, other=0)
            rm = tl.where(some < stop, entry // ROOM, rows)
            row = rm[:, None]
            asked = load(q, b, h, rm, rows, width, D, False)
            lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
            line = bh * row_tiles * BM
            threshold = tl.load(THRESHOLD + line + rm, mask=rm < rows, other=0.0)[:, None]
            # elsewhere the same product may have been rounded otherwise, and the maxima were rounded to eight bits
            threshold = tl.maximum(threshold - 1e-4 - tl.abs(threshold) / 128 - 1e-6 * tl.abs(lse), NOWHERE)
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = hide(x, row, key, b, h, rule, rows, keys)
            words = tl.sum(tl.reshape(tl.where(x >= threshold, bit[None, :], 0), [BM, BN // 32, 32]), 2)
            at_word = (line * ROOM + entry)[:, None] * (BN // 32) + word
            tl.store(BITS + at_word, words, mask=(some < stop)[:, None])


@triton.jit
def _keep_largest(NOTED, at, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Of the noted keys of each row the TOP largest, in order, come first."""
    tl.debug_barrier()  # what other threads have noted is in memory
    slot = tl.arange(0, SLOTS)
    noted = tl.load(NOTED + at[:, None] + slot[None, :], volatile=True)
    tl.debug_barrier()
    for i in range(TOP):
        best = tl.max(noted, 1)
        noted = tl.where(noted == best[:, None], EMPTY, noted)
        tl.store(NOTED + at + i, best)
    tl.debug_barrier()


@triton.jit
def rank(
    q, k, LSE, rule, FIRST, BITS, COUNT, NOTED, WEIGHTS, KEYS,
    rows, keys, heads, group, width, count_head, lse_head,
    D: tl.constexpr, BM: tl.constexpr, TOP: tl.constexpr, TOP_WIDE: tl.constexpr, ROOM: tl.constexpr,
    WORDS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Among the marked keys of each row the TOP largest, in order; their x is computed once more, in float32."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    rm, feature = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)[None, :]
    row = rm[:, None]
    asked = load(q, b, h, rm, rows, width, D, False).to(tl.float32)
    lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
    line = bh * count_head + rm
    entries = tl.minimum(tl.load(COUNT + line, mask=rm < rows, other=0), ROOM)
    where = k.data + b * k.batch + (h // group) * k.head + feature
    slots, cw = line * SLOTS, tl.arange(0, WORDS)[None, :]
    entry = tl.zeros([BM], tl.int32)
    marked = tl.load(BITS + line[:, None] * ROOM * WORDS + cw, mask=entries[:, None] > 0, other=0)
    count = 0
    while tl.max((entry < entries).to(tl.int32), 0) > 0:
        if count == SLOTS:
            _keep_largest(NOTED, slots, TOP, SLOTS)
            count = TOP
        some = tl.max((marked != 0).to(tl.int32), 1) > 0  # a threshold that was raised may have left a block without
        word = tl.min(tl.where(marked != 0, cw, WORDS - 1), 1)[:, None]
        bits = tl.sum(tl.where(cw == word, marked, 0), 1)
        low = bits & -bits  # the next marked key
        power = low.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
        first = tl.load(FIRST + line * ROOM + entry, mask=some, other=0)[:, None] + word * 32
        key = tl.where(some[:, None], first + (((power >> 23) & 255) - 127)[:, None], 0)
        offered = tl.load(where + key.to(tl.int64) * k.position, mask=some[:, None] & (feature < width), other=0.0)
        product = tl.sum(asked * offered.to(tl.float32), 1)[:, None]
        x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        # one whole number that grows with x and, where x is equal, falls with the key
        pattern = x.to(tl.int32, bitcast=True)
        order = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
        new = (order.to(tl.int64) << 32) | (0x7FFFFFFF - key).to(tl.int64)
        tl.store(NOTED + slots[:, None] + count, tl.where(some[:, None], new, EMPTY))
        count += 1
        marked = tl.where(cw == word, marked ^ low[:, None], marked)
        read = tl.max((marked != 0).to(tl.int32), 1) == 0
        entry += (read & (entry < entries)).to(tl.int32)
        following = BITS + (line * ROOM + entry)[:, None] * WORDS + cw
        marked = tl.where(read[:, None], tl.load(following, mask=(entry < entries)[:, None], other=0), marked)
    while count < SLOTS:
        tl.store(NOTED + slots + count, tl.full([BM], EMPTY, tl.int64))
        count += 1
    _keep_largest(NOTED, slots, TOP, SLOTS)
    place = tl.arange(0, TOP_WIDE)[None, :]
    there = (place < TOP) & (row < rows)
    best = tl.load(NOTED + slots[:, None] + place, mask=there, other=EMPTY, volatile=True)
    some = best != EMPTY
    order = (best >> 32).to(tl.int32)
    x_of_best = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    out = (bh * lse_head + row) * TOP + place
    tl.store(WEIGHTS + out, tl.where(some, tl.exp2(x_of_best), 0.0), mask=there)
    tl.store(KEYS + out, tl.where(some, 0x7FFFFFFF - (best & 0xFFFFFFFF), -1), mask=there)
