"""The matrix pooled to a map of any cells."""

import triton
import triton.language as tl

from .tiles import HIDDEN, NOWHERE, hide, kernel, load, load_lse, log2_weights


@triton.jit
def _note(cell, gathered, SHARE: tl.constexpr):
    if SHARE:
        tl.atomic_add(cell, tl.sum(tl.sum(gathered, 1), 0), sem="relaxed")
    else:
        tl.atomic_max(cell, tl.exp2(tl.max(tl.max(gathered, 1), 0)), sem="relaxed")


@kernel
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
    asked = load(q, b, h, rm, count, width, D, False)
    lse = load_lse(LSE, bh * lse_head + rm, rm < count)[:, None]
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
            offered = load(k, b, h // group, n + cn, keys, width, D, False).T
            product = tl.dot(asked, offered, input_precision=PRECISION)
            x = log2_weights(product, lse, row, key, b, h, rule, rows, keys)
            x = hide(x, row, key, b, h, rule, rows, keys)
            x = tl.where(key < tl.load(keys_of[1] + i), x, HIDDEN)
            here = tl.load(keys_of[2] + i)
            if here != cell:
                _note(MAP + cell, gathered, SHARE)
                gathered = tl.full([BM, BN], nothing, tl.float32)
                cell = here
            gathered = gathered + tl.exp2(x) if SHARE else tl.maximum(gathered, x)
        _note(MAP + cell, gathered, SHARE)


@kernel
def stretches(
    q, k, LSE, rule, ROWS, KEYS, START, STOP, SHARES, SEEN,
    rows, keys, row_slots, key_slots, row_batch, key_batch, span_batch, span_set, heads, group, width, lse_head,
    result_set,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, SETS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Rows are listed by ROWS and keys by KEYS; the row in a slot has, in each of the SETS, the keys in the slots from
    START to STOP. SHARES is the weight that falls to them, and SEEN, unless it
    is None, whether the row may see one of the first set."""
    m = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    slot, cn = m * BM + tl.arange(0, BM), tl.arange(0, BN)
    there = slot < row_slots
    rm = tl.load(ROWS + b * row_batch + slot, mask=there, other=rows)
    row = rm[:, None]
    asked = load(q, b, h, rm, rows, width, D, False)
    lse = load_lse(LSE, bh * lse_head + rm, rm < rows)[:, None]
    START += b * span_batch + slot
    STOP += b * span_batch + slot
    first, last = key_slots, 0
    for s in tl.static_range(SETS):
        start = tl.load(START + s * span_set, mask=there, other=0)
        stop = tl.load(STOP + s * span_set, mask=there, other=0)
        first = tl.minimum(first, tl.min(tl.where(start < stop, start, key_slots), 0))
        last = tl.maximum(last, tl.max(tl.where(start < stop, stop, 0), 0))
    column = tl.arange(0, WIDE)[None, :]
    share = tl.zeros([BM, WIDE], tl.float32)
    seen = tl.zeros([BM], tl.int32)
    for n in range(first // BN * BN, last, BN):
        place = n + cn
        kn = tl.load(KEYS + b * key_batch + place, mask=place < key_slots, other=keys)
        key = kn[None, :]
        offered = load(k, b, h // group, kn, keys, width, D, False).T
        x = log2_weights(tl.dot(asked, offered, input_precision=PRECISION), lse, row, key, b, h, rule, rows, keys)
        x = hide(x, row, key, b, h, rule, rows, keys)
        weight = tl.exp2(x)
        for s in tl.static_range(SETS):
            begin = tl.load(START + s * span_set, mask=there, other=0)[:, None]
            end = tl.load(STOP + s * span_set, mask=there, other=0)[:, None]
            inside = (place[None, :] >= begin) & (place[None, :] < end)
            share += tl.where(column == s, tl.sum(tl.where(inside, weight, 0.0), 1)[:, None], 0.0)
            if (SEEN is not None) and (s == 0):
                seen = tl.maximum(seen, tl.max((inside & (x > NOWHERE)).to(tl.int32), 1))
    at = column.to(tl.int64) * result_set + bh * lse_head + row
    shown = there[:, None] & (column < SETS)
    tl.store(SHARES + at, share, mask=shown)
    if SEEN is not None:
        tl.store(SEEN + bh * lse_head + rm, seen.to(SEEN.dtype.element_ty), mask=there)
