"""The survey's kernels. Tiles of q·k are computed, read and forgotten; no weight is ever written to memory.

Everything is in powers of two: x = log2(weight) = (score - lse) · log2(e), and exp2(x) is the weight. Tiles are
(query, key), so that what is summed along a row stays in one warp, which is cheap; what is summed along a column is
kept for each element of the tile until the program's last row, which costs no sum at all.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)  # log2 of a weight that is not there. Finite: exp2 of it is 0, and so is 0 · HIDDEN
NOWHERE = tl.constexpr(-1e29)  # below every log2 of a weight, above HIDDEN
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
EMPTY = tl.constexpr(-(2**63) + 1)


class Heads(NamedTuple):
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


class Tiles(NamedTuple):
    """The spans of a tile of rows together: from `first` to `stop` somebody looks, between the inner two everyone."""

    first: Any
    stop: Any
    inner_first: Any
    inner_stop: Any
    batch: Any


@triton.jit
def _load(heads, b, h, positions, count, width, D: tl.constexpr, WHOLE: tl.constexpr):
    """(position, feature), zeros beyond the last of both; WHOLE says that there is nothing beyond."""
    feature = tl.arange(0, D)
    at = heads.data + b * heads.batch + h * heads.head
    at += positions[:, None].to(tl.int64) * heads.position + feature[None, :]
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=(positions[:, None] < count) & (feature[None, :] < width), other=0.0)


@triton.jit
def _load_lse(LSE, at, there):
    """In powers of two; of a row that sees nothing, and of none, so large that every weight is 0."""
    lse = tl.load(LSE + at, mask=there, other=float("-inf"))
    return tl.where(lse == float("-inf"), -HIDDEN, lse * LOG2_E)


@triton.jit
def _pick(table, batch, head, position, b, h, row, key, rows, keys, other: tl.constexpr):
    at = table + b * batch + h * head + row.to(tl.int64) * position + key
    return tl.load(at, mask=(row < rows) & (key < keys), other=other)


@triton.jit
def _log2_weights(product, lse, row, key, b, h, rule, rows, keys):
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
def _hide(x, row, key, b, h, rule, rows, keys):
    """HIDDEN where a query may not see a key."""
    start = tl.load(rule.start + b * rule.span_batch + row, mask=row < rows, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + row, mask=row < rows, other=0)
    seen = (key >= start) & (key < stop)
    if rule.mask is not None:
        allowed = _pick(rule.mask, rule.mask_batch, rule.mask_head, rule.mask_row, b, h, row, key, rows, keys, 0)
        seen = seen & (allowed != 0)
    return tl.where(seen, x, HIDDEN)


@triton.jit
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
    asked = _load(q, b, h, rm, rows, width, D, WHOLE)
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
        offered = _load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
        x = _log2_weights(tl.dot(asked, offered, input_precision=PRECISION), 0.0, row, key, b, h, rule, rows, keys)
        if (n < inner_first) | (n + BN > inner_stop):
            x = _hide(x, row, key, b, h, rule, rows, keys)
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


@triton.jit
def statistics(
    q, k, LSE, rule, tiles, RECEIVED, ENTROPY, MAXIMA, MAP,
    rows, keys, heads, group, width, row_tiles, lse_head, cell_rows, cell_keys, map_columns, map_size, first_row,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What BN keys receive from these rows, and their part of each row's entropy, largest x and map."""
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    n = block * BN
    rn, cm = n + tl.arange(0, BN), tl.arange(0, BM)
    key = rn[None, :]
    offered = _load(k, b, h // group, rn, keys, width, D, WHOLE).T
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

    for m in range(begin, end):
        rm = m * BM + cm
        row = rm[:, None]
        asked = _load(q, b, h, rm, rows, width, D, WHOLE)
        lse = _load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
        product = tl.dot(asked, offered, input_precision=PRECISION)
        x = _log2_weights(product, lse, row, key, b, h, rule, rows, keys)
        if (m < clear) | (m >= clouded):
            x = _hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        received += weight
        tl.atomic_add(ENTROPY + bh * lse_head + rm, tl.sum(weight * x, 1) * -LN_2, mask=rm < rows, sem="relaxed")
        if MAXIMA is not None:
            tl.store(
                MAXIMA + (bh * tl.num_programs(0) + block) * row_tiles * BM + rm,
                tl.max(x, 1).to(MAXIMA.dtype.element_ty),
            )
        if MAP is not None:
            pooled += tl.sum(weight, 1)
            if ((first_row + (m + 1) * BM) % cell_rows == 0) | (m == end - 1):
                cell = (first_row + m * BM) // cell_rows * map_columns + n // cell_keys
                part = tl.sum(tl.reshape(pooled, [BM // 16, 16]), 1)  # 16 rows are one warp's: nobody has to wait
                tl.atomic_add(MAP + bh * map_size + cell + tl.zeros_like(part).to(tl.int32), part, sem="relaxed")
                pooled = tl.zeros([BM], tl.float32)
    at = RECEIVED + bh * keys + rn
    before = tl.load(at, mask=rn < keys, other=0.0)
    tl.store(at, before + tl.sum(received, 0), mask=rn < keys)


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
        asked = _load(q, b, h, rm, rows, width, D, WHOLE)
        lse = _load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
        best = tl.full([BM, BN], HIDDEN, tl.float32)
        for i in range(busy):
            n = tl.load(BUSY + 1 + i) * BN
            key = (n + cn)[None, :]
            offered = _load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = _log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            best = tl.maximum(best, _hide(x, row, key, b, h, rule, rows, keys))
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
        offered = _load(k, b, h // group, n + cn, keys, width, D, WHOLE).T
        bit = tl.full([1], 1, tl.int32) << (cn % 32)
        for i in range(start, stop, tl.num_programs(1) * BM):
            some = i + tl.arange(0, BM)
            entry = tl.load(ENTRIES + some, mask=some < stop, other=0)
            rm = tl.where(some < stop, entry // ROOM, rows)
            row = rm[:, None]
            asked = _load(q, b, h, rm, rows, width, D, False)
            lse = _load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
            line = bh * row_tiles * BM
            threshold = tl.load(THRESHOLD + line + rm, mask=rm < rows, other=0.0)[:, None]
            # elsewhere the same product may have been rounded otherwise, and the maxima were rounded to eight bits
            threshold = tl.maximum(threshold - 1e-4 - tl.abs(threshold) / 128 - 1e-6 * tl.abs(lse), NOWHERE)
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = _log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = _hide(x, row, key, b, h, rule, rows, keys)
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
    asked = _load(q, b, h, rm, rows, width, D, False).to(tl.float32)
    lse = _load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
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
        x = _log2_weights(product, lse, row, key, b, h, rule, rows, keys)
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


@triton.jit
def _note(cell, gathered, SHARE: tl.constexpr):
    if SHARE:
        tl.atomic_add(cell, tl.sum(tl.sum(gathered, 1), 0), sem="relaxed")
    else:
        tl.atomic_max(cell, tl.exp2(tl.max(tl.max(gathered, 1), 0)), sem="relaxed")


@triton.jit
def pool(
    q, k, LSE, rule, rows_of, keys_of, KEY_ITEM, MAP,
    rows, keys, heads, group, width, lse_head, map_columns, map_size,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """The cells of a map that at most BM queries of one of its rows fill. `rows_of` and `keys_of` are the stretches of
    neighbours that fall into one cell: (first, stop, cell). KEY_ITEM says in which of them a key is."""
    item = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    rm, cn = tl.load(rows_of[0] + item) + tl.arange(0, BM), tl.arange(0, BN)
    row, count = rm[:, None], tl.load(rows_of[1] + item)
    MAP += bh * map_size + tl.load(rows_of[2] + item) * map_columns
    asked = _load(q, b, h, rm, count, width, D, False)
    lse = _load_lse(LSE, bh * lse_head + rm, rm < count)[:, None]
    start = tl.load(rule.start + b * rule.span_batch + rm, mask=rm < count, other=0)
    stop = tl.load(rule.stop + b * rule.span_batch + rm, mask=rm < count, other=0)
    first = tl.min(tl.where(start < stop, start, keys), 0)
    last = tl.max(stop, 0) - 1
    if first <= last:
        begin, end = tl.load(KEY_ITEM + first), tl.load(KEY_ITEM + last)
        cell = tl.load(keys_of[2] + begin)
        nothing: tl.constexpr = 0.0 if SHARE else HIDDEN
        gathered = tl.full([BM, BN], nothing, tl.float32)
        for i in range(begin, end + 1):
            n = tl.load(keys_of[0] + i)
            key = (n + cn)[None, :]
            offered = _load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = _log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = _hide(x, row, key, b, h, rule, rows, keys)
            x = tl.where(key < tl.load(keys_of[1] + i), x, HIDDEN)
            here = tl.load(keys_of[2] + i)
            if here != cell:
                _note(MAP + cell, gathered, SHARE)
                gathered = tl.full([BM, BN], nothing, tl.float32)
                cell = here
            gathered = gathered + tl.exp2(x) if SHARE else tl.maximum(gathered, x)
        _note(MAP + cell, gathered, SHARE)
