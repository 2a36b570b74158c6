"""The largest weights of each row. The largest of each block of keys bound them, so few blocks are looked into."""

import triton
import triton.language as tl

from .tiles import EMPTY, HIDDEN, LOWEST, NOWHERE, hide, kernel, load, load_lse, log2_weights


@triton.jit
def _nth_largest(values, NTH: tl.constexpr, AXIS: tl.constexpr):
    """The NTH largest value along an axis, equal ones counted once; NOWHERE if there are not so many."""
    nth = tl.max(values, AXIS)
    for _ in range(1, NTH):
        values = tl.where(values == tl.expand_dims(nth, AXIS), HIDDEN, values)
        nth = tl.max(values, AXIS)
    return tl.maximum(nth, NOWHERE)


@kernel
def candidates(
    MAXIMA, tiles, THRESHOLD, ASKED, COUNT, NOTED, BUSY, heads, row_tiles, key_blocks,
    TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CLASSES: tl.constexpr, ROOM: tl.constexpr,
    MOST_BUSY: tl.constexpr,
):  # fmt: skip
    """From the largest x of each row in each block of keys: a threshold that the TOP largest of the row reach; how many
    blocks of each row reach it, and which, the first ROOM of them; how many rows ask for a block, and the how manieth
    of them each is; and the blocks that most rows of the tile have.

    The threshold is the TOP-th largest among the largest of CLASSES disjoint sets, so at least TOP keys reach it.
    """
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    row = m * BM + tl.arange(0, BM)
    lines = row_tiles * BM  # of one head, whose notes are near enough to each other to be told apart by 32 bits
    MAXIMA += bh * key_blocks * lines
    NOTED += bh * lines * ROOM
    tile = (bh // heads) * tiles.batch + m
    first, stop = tl.load(tiles.first + tile) // BN, tl.cdiv(tl.load(tiles.stop + tile), BN)
    own = tl.arange(0, CLASSES)
    best = tl.full([CLASSES, BM], HIDDEN, tl.float32)
    for n in range(first, stop, CLASSES):
        at = (n + own)[:, None] * lines + row[None, :]
        there = (n + own)[:, None] < stop
        best = tl.maximum(best, tl.load(MAXIMA + at, mask=there, other=float("-inf")).to(tl.float32))
    # A maximum of sixteen bits leaves thirteen free: with its class in them none equals another, and each one counts.
    apart = (best.to(tl.int32, bitcast=True) | own[:, None]).to(tl.float32, bitcast=True)
    nth = _nth_largest(apart, TOP, 0)
    threshold = (nth.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    threshold = tl.where(threshold > LOWEST + 64, threshold, NOWHERE)
    tl.store(THRESHOLD + bh * lines + row, threshold)

    busy, count = 0, tl.zeros([BM], tl.int32)
    BUSY += (bh * row_tiles + m) * (MOST_BUSY + 1)
    for n in range(first, stop, CLASSES):
        block = n + own
        at = block[:, None] * lines + row[None, :]
        largest = tl.load(MAXIMA + at, mask=block[:, None] < stop, other=float("-inf")).to(tl.float32)
        reaching = (largest >= threshold[None, :]).to(tl.int32)
        place = count[None, :] + tl.cumsum(reaching, 0) - reaching
        asking = reaching * (place < ROOM)
        asked = tl.sum(asking, 1)
        before = tl.atomic_add(ASKED + bh * key_blocks + block, asked, mask=asked > 0, sem="relaxed")
        turn = before[:, None] + tl.cumsum(asking, 1) - asking
        entry = (block[:, None].to(tl.int64) << 32) | turn.to(tl.int64)
        tl.store(NOTED + row[None, :] * ROOM + place, entry, mask=asking > 0)
        count += tl.sum(reaching, 0)
        many = (2 * tl.sum(reaching, 1) > BM).to(tl.int32)
        place_busy = busy + tl.cumsum(many, 0)
        tl.store(BUSY + place_busy, block, mask=(many > 0) & (place_busy <= MOST_BUSY))
        busy += tl.sum(many, 0)
    tl.store(BUSY, tl.minimum(busy, MOST_BUSY))
    tl.store(COUNT + bh * lines + row, count)


@kernel
def enlist(
    COUNT, NOTED, FIRST, ENTRIES, lines, key_blocks,
    BM: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """The rows that ask for a block of keys, one after the other from where FIRST says."""
    bh = tl.program_id(1).to(tl.int64)
    row, place = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.arange(0, ROOM)[None, :]
    there = place < tl.load(COUNT + bh * lines + row)
    entry = tl.load(NOTED + (bh * lines + row) * ROOM + place, mask=there, other=0)
    first = tl.load(FIRST + bh * key_blocks + (entry >> 32), mask=there, other=0)
    tl.store(ENTRIES + first + entry.to(tl.int32), row + 0 * place, mask=there)


@kernel
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
def _lowest(bits):
    """The lowest bit that is set, and its place."""
    low = bits & -bits
    power = low.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    return low, ((power >> 23) & 255) - 127


@triton.jit
def _how_many(bits):
    """Of the bits of each word are set."""
    bits -= (bits >> 1) & 0x55555555
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 63


@triton.jit
def _first(count):
    """A word in which the first bits are set, so many."""
    return tl.where(count >= 32, -1, (1 << tl.minimum(tl.maximum(count, 0), 31)) - 1)


@kernel
def mark(
    q, k, LSE, rule, THRESHOLD, FIRST, ASKED, ENTRIES, MARKED, NOTED,
    rows, keys, heads, group, width, lines, lse_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """For the rows that ask a block of keys: which of its keys reach the row's threshold. The row notes the first SLOTS
    of them, with their x, and how many there are.

    Only the rows that ask are multiplied, BM of them at a time, from wherever they stand."""
    block = tl.program_id(0)
    bh = tl.program_id(2).to(tl.int64)
    b, h = bh // heads, bh % heads
    n = block * BN
    cn = tl.arange(0, BN)
    word = (n + 32 * tl.arange(0, BN // 32))[None, :]
    key = (n + cn)[None, :]
    at = bh * tl.num_programs(0) + block
    start = tl.load(FIRST + at)
    stop = start + tl.load(ASKED + at)
    start += tl.program_id(1) * BM
    line = bh * lines
    if start < stop:
        offered = load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
        bit = tl.full([1], 1, tl.int32) << (cn % 32)
        for i in range(start, stop, tl.num_programs(1) * BM):
            some = i + tl.arange(0, BM)
            rm = tl.load(ENTRIES + some, mask=some < stop, other=rows)
            row = rm[:, None]
            asked = load(q, b, h, rm, rows, width, D, False)
            lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
            threshold = tl.load(THRESHOLD + line + rm, mask=rm < rows, other=0.0)[:, None]
            # elsewhere the same product may have been rounded otherwise, and the maxima were rounded to eleven bits
            threshold = tl.maximum(threshold - 1e-4 - tl.abs(threshold) / 1024 - 1e-6 * tl.abs(lse), NOWHERE)
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            if rule.mask is not None:
                x = hide(x, row, key, b, h, rule, rows, keys)
            words = tl.sum(tl.reshape(tl.where(x >= threshold, bit[None, :], 0), [BM, BN // 32, 32]), 2)
            x = tl.reshape(x, [BM, BN // 32, 32])
            begin = tl.load(rule.start + b * rule.span_batch + row, mask=row < rows, other=0)
            end = tl.load(rule.stop + b * rule.span_batch + row, mask=row < rows, other=0)
            words &= _first(end - word) & ~_first(begin - word)
            marks = _how_many(words)
            before = tl.atomic_add(MARKED + line + rm, tl.sum(marks, 1), mask=rm < rows, sem="relaxed")
            slot = before[:, None] + tl.cumsum(marks, 1) - marks
            while tl.max(tl.max((words != 0).to(tl.int32), 1), 0) > 0:
                low, place = _lowest(words)
                at_slot, there = (line + row) * SLOTS + slot, (words != 0) & (slot < SLOTS)
                here = tl.sum(tl.where(tl.arange(0, 32)[None, None, :] == place[:, :, None], x, 0.0), 2)
                tl.store(NOTED + at_slot, _in_one(here, (word + place).to(tl.int64)), mask=there)
                words ^= low
                slot += 1


@kernel
def rank(
    COUNT, MARKED, NOTED, WEIGHTS, KEYS, OVERFULL, rows, lines, lse_head,
    BM: tl.constexpr, TOP: tl.constexpr, TOP_WIDE: tl.constexpr, ROOM: tl.constexpr, SLOTS: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """Among the noted keys of each row the TOP largest, in order. A row that could not note all is overfull."""
    bh = tl.program_id(1).to(tl.int64)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    row = rm[:, None]
    count = tl.load(COUNT + bh * lines + rm, mask=rm < rows, other=0)
    marked = tl.load(MARKED + bh * lines + rm, mask=rm < rows, other=0)
    tl.store(OVERFULL + bh * lse_head + rm, (count > ROOM) | (marked > SLOTS), mask=rm < rows)
    NOTED += (bh * lines + row) * SLOTS
    at, there = bh * lse_head + row, row < rows
    if tl.max(marked, 0) <= FEW:  # as almost always
        _write(_noted(NOTED, marked, FEW), WEIGHTS, KEYS, at, there, TOP, TOP_WIDE)
    else:
        _write(_noted(NOTED, marked, SLOTS), WEIGHTS, KEYS, at, there, TOP, TOP_WIDE)


@triton.jit
def _noted(NOTED, marked, SLOTS: tl.constexpr):
    slot = tl.arange(0, SLOTS)[None, :]
    return tl.load(NOTED + slot, mask=slot < marked[:, None], other=EMPTY)


@kernel
def search(
    q, k, LSE, rule, tiles, OVERFULL, WEIGHTS, KEYS, rows, keys, heads, group, width, lse_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, PER: tl.constexpr,
    TOP: tl.constexpr, TOP_WIDE: tl.constexpr,
):  # fmt: skip
    """The TOP largest of overfull rows, from all their keys. Elsewhere there is nothing to do. PER programs: a tile."""
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    rm, cn = m * BM + tl.arange(0, BM), tl.arange(0, BN)
    overfull = tl.load(OVERFULL + bh * lse_head + rm, mask=rm < rows, other=0).to(tl.int32)
    if tl.max(overfull, 0) > 0:
        row = rm[:, None]
        asked = load(q, b, h, rm, rows, width, D, False)
        lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
        tile = b * tiles.batch + m // PER
        place = tl.arange(0, TOP_WIDE)[None, :]
        nothing = EMPTY + place.to(tl.int64)  # unlike each other, so that one at a time is replaced
        best = tl.where(place < TOP, nothing, -EMPTY) + tl.zeros([BM, 1], tl.int64)
        for n in range(tl.load(tiles.first + tile) // BN * BN, tl.load(tiles.stop + tile), BN):
            key = (n + cn)[None, :]
            offered = load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = hide(x, row, key, b, h, rule, rows, keys)
            new = tl.where(x > NOWHERE, _in_one(x, key.to(tl.int64)), EMPTY)
            least = tl.min(best, 1)[:, None]
            while tl.max(tl.max((new > least).to(tl.int32), 1), 0) > 0:
                largest = tl.max(new, 1)[:, None]
                new = tl.where(new == largest, EMPTY, new)
                best = tl.where((best == least) & (largest > least), largest, best)
                least = tl.min(best, 1)[:, None]
        best = tl.where((place < TOP) & (best != nothing), best, EMPTY)
        _write(best, WEIGHTS, KEYS, bh * lse_head + row, overfull[:, None] > 0, TOP, TOP_WIDE)


@triton.jit
def _in_one(x, key):
    """One whole number that grows with x and, where x is equal, falls with the key."""
    pattern = x.to(tl.int32, bitcast=True)
    order = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - key)


@triton.jit
def _write(noted, WEIGHTS, KEYS, at, there, TOP: tl.constexpr, TOP_WIDE: tl.constexpr):
    """The TOP largest of each row, in order, as weights and keys."""
    place = tl.arange(0, TOP_WIDE)[None, :]
    best = tl.zeros([noted.shape[0], TOP_WIDE], tl.int64) + EMPTY
    for i in range(TOP):
        largest = tl.max(noted, 1)[:, None]
        noted = tl.where(noted == largest, EMPTY, noted)
        best = tl.where(place == i, largest, best)
    some = best != EMPTY
    order = (best >> 32).to(tl.int32)
    x = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    shown = (place < TOP) & there
    tl.store(WEIGHTS + at * TOP + place, tl.where(some, tl.exp2(x), 0.0), mask=shown)
    tl.store(KEYS + at * TOP + place, tl.where(some, 0x7FFFFFFF - (best & 0xFFFFFFFF), -1), mask=shown)
