"""Loops over vectors of scores, written in LLVM for numba: products, maxima, exponentials, sums.

numba's own loops do not vectorise a maximum, a tile of products or an exponential well. Everything
is in powers of two: a score is multiplied by log2(e) before it gets here. llvm_vectors.py has what
these loops are made of.
"""

from functools import reduce

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .llvm_vectors import I32, I64, LN_2, TILE_ROWS, TILE_VECTORS, vector_function

CHAINS = 4  # maxima that are found at a time
COLUMNS = 4  # vectors of columns that are summed at a time


def _number(number):
    return number


@vector_function()
def multiply_tile(vectors, queries, step, rows, keys, scale, scores, width, features):
    """Write queries · keys · scale: TILE_ROWS queries of which one begins `step` numbers after the
    other, a tile of keys (feature, key), rows of `width`.

    Where there are fewer than TILE_ROWS `rows`, the last one is written again to the rest. The
    scale is applied to the products, so that equal products stay equal.
    """
    build = vectors.build
    scale = vectors.splat(scale)
    sums = [[vectors.variable() for _ in range(TILE_VECTORS)] for _ in range(TILE_ROWS)]
    # Queries are read where they lie: a copy of each would take as long as a tenth of its products.
    last = build.sub(rows, ir.Constant(I64, 1))
    begins = []
    for r in range(TILE_ROWS):
        row = ir.Constant(I64, r)
        row = build.select(build.icmp_signed("<", row, last), row, last)
        begins.append(build.gep(queries, [build.mul(row, step)]))
    # One feature at a time, of all queries and keys of the tile.
    with cgutils.for_range(build, features) as loop:
        first = build.mul(loop.index, ir.Constant(I64, TILE_VECTORS * vectors.lanes))
        key = [vectors.load(keys, vectors.ahead(first, i)) for i in range(TILE_VECTORS)]
        for begin, row in zip(begins, sums, strict=True):
            query = vectors.splat_at(begin, loop.index)
            for i, total in enumerate(row):
                build.store(vectors.fma(query, key[i], build.load(total)), total)
    # Write the tile, scaled.
    for r, row in enumerate(sums):
        first = build.mul(ir.Constant(I64, r), width)
        for i, total in enumerate(row):
            vectors.store(build.fmul(build.load(total), scale), scores, vectors.ahead(first, i))


def _largest_by_lane(vectors, numbers, count):
    """Build the largest number of each lane over so many vectors."""
    build = vectors.build
    # Several maxima at a time: each waits for the one before it.
    chains = [vectors.variable(-np.inf) for _ in range(CHAINS)]

    def include(index, largest):
        build.store(vectors.larger(vectors.load(numbers, index), build.load(largest)), largest)

    with cgutils.for_range(build, build.sdiv(count, ir.Constant(I64, CHAINS))) as loop:
        first = build.mul(loop.index, ir.Constant(I64, CHAINS * vectors.lanes))
        for i, largest in enumerate(chains):
            include(vectors.ahead(first, i), largest)
    rest = build.srem(count, ir.Constant(I64, CHAINS))
    first = build.mul(build.sub(count, rest), ir.Constant(I64, vectors.lanes))
    with vectors.each(rest) as index:
        include(build.add(first, index), chains[0])
    return reduce(vectors.larger, map(build.load, chains))


@vector_function()
def lane_maxima(vectors, scores, count, maxima):
    """Write the largest score of each lane over so many vectors."""
    vectors.store(_largest_by_lane(vectors, scores, count), maxima, ir.Constant(I64, 0))


@vector_function(_number)
def largest_of(vectors, numbers, count):
    """Return the largest number in so many vectors."""
    return vectors.reduce(_largest_by_lane(vectors, numbers, count), vectors.larger)


@vector_function(_number)
def nth_largest(vectors, numbers, count, n):
    """Return the n-th largest number in so many vectors, or the smallest if there are fewer.

    It is the least of the numbers that fewer than n others exceed.
    """
    build = vectors.build
    n = vectors.splat_integer(n)
    least = vectors.variable(np.inf)
    exceeding = cgutils.alloca_once(build, vectors.integers)
    infinite = vectors.constant(np.inf)
    with vectors.each(count) as index:
        own = vectors.load(numbers, index)
        # Count the numbers above each of these: True is -1 as a signed number.
        build.store(vectors.integer(0), exceeding)
        with cgutils.for_range(build, build.mul(count, ir.Constant(I64, vectors.lanes))) as loop:
            other = vectors.splat_at(numbers, loop.index)
            more = build.sext(build.fcmp_ordered(">", other, own), vectors.integers)
            build.store(build.sub(build.load(exceeding), more), exceeding)
        counted = build.icmp_signed("<", build.load(exceeding), n)
        own = build.select(counted, own, infinite)
        build.store(vectors.smaller(own, build.load(least)), least)
    return vectors.reduce(build.load(least), vectors.smaller)


@vector_function(lambda number: types.intp)
def find_reaching(vectors, scores, count, bound, places):
    """Write the places of the scores that are not below the bound, in order, and return how many
    there are.
    """
    build = vectors.build
    bound = vectors.splat(bound)
    found = cgutils.alloca_once_value(build, ir.Constant(I64, 0))
    left = cgutils.alloca_once(build, I64)
    one = ir.Constant(I64, 1)

    def reaching(index):
        """Build a bit for each score of a vector."""
        bits = build.fcmp_ordered(">=", vectors.load(scores, index), bound)
        return build.zext(build.bitcast(bits, ir.IntType(vectors.lanes)), I64)

    def take_lowest(first, counted):
        """Build the place of the lowest bit that is set, and clear that bit."""
        now = build.load(left)
        place = build.add(first, build.cttz(now, ir.IntType(1)(0)))
        build.store(build.trunc(place, I32), build.gep(places, [build.load(found)]))
        build.store(build.add(build.load(found), counted), found)
        build.store(build.and_(now, build.sub(now, one)), left)

    def take(first, word):
        """Build the places of all bits that are set."""
        # The first two without a branch: mostly there are no more, and a branch that goes either
        # way costs more than a place that is overwritten.
        build.store(word, left)
        for _ in range(2):
            is_set = build.icmp_unsigned("!=", build.load(left), ir.Constant(I64, 0))
            take_lowest(first, build.zext(is_set, I64))
        with cgutils.for_range(build, build.ctpop(build.load(left))):
            take_lowest(first, one)

    # The bits of as many vectors as fill a word are taken together, then those of each vector left.
    joined = 64 // vectors.lanes
    with cgutils.for_range(build, build.sdiv(count, ir.Constant(I64, joined))) as loop:
        first = build.mul(loop.index, ir.Constant(I64, 64))
        word = ir.Constant(I64, 0)
        for i in range(joined):
            bits = reaching(vectors.ahead(first, i))
            word = build.or_(word, build.shl(bits, ir.Constant(I64, i * vectors.lanes)))
        take(first, word)
    rest = build.srem(count, ir.Constant(I64, joined))
    first = build.mul(build.sub(count, rest), ir.Constant(I64, vectors.lanes))
    with vectors.each(rest) as index:
        begin = build.add(first, index)
        take(begin, reaching(begin))
    return build.load(found)


@vector_function()
def rank(vectors, numbers, count, ranks):
    """Write the rank of each of the first `count` numbers, in whole vectors: 0 for the largest, and
    the first of equal ones first. Both arrays have room for whole vectors.
    """
    build = vectors.build
    lanes = ir.Constant(I64, vectors.lanes)
    lane = ir.Constant(vectors.integers, [*range(vectors.lanes)])
    whole = build.sdiv(build.add(count, ir.Constant(I64, vectors.lanes - 1)), lanes)
    before = cgutils.alloca_once(build, vectors.integers)

    with vectors.each(whole) as index:
        own = vectors.load(numbers, index)
        place = build.add(lane, vectors.splat_integer(index))
        build.store(vectors.integer(0), before)
        # Count the numbers that come before each of these.
        with cgutils.for_range(build, count) as loop:
            other = vectors.splat_at(numbers, loop.index)
            comes_first = build.or_(
                build.fcmp_ordered(">", other, own),
                build.and_(
                    build.fcmp_ordered("==", other, own),
                    build.icmp_signed(">", place, vectors.splat_integer(loop.index)),
                ),
            )
            # True is -1 as a signed number.
            counted = build.sub(build.load(before), build.sext(comes_first, vectors.integers))
            build.store(counted, before)
        short = ir.VectorType(I32, vectors.lanes)
        found = build.load(before)
        found = build.trunc(found, short) if vectors.bits > 32 else found
        target = build.bitcast(build.gep(ranks, [index]), short.as_pointer())
        build.store(found, target).align = 4


@vector_function(lambda number: types.UniTuple(number, 3))
def exponentials(vectors, scores, count, shift, whole, part):
    """Replace scores by p = 2^(score - shift), and return Σ p, Σ p · (score - shift), and Σ p over
    the first `whole` vectors and the first `part` numbers of the next one.
    """
    build = vectors.build
    shift = vectors.splat(shift)
    least = vectors.constant(vectors.least_exponent)  # finite: 0 · least is 0
    total = vectors.variable()
    spread = vectors.variable()

    def replace(index):
        x = vectors.larger(least, build.fsub(vectors.load(scores, index), shift))
        power = vectors.exp2(x)
        build.store(build.fadd(build.load(total), power), total)
        build.store(vectors.fma(power, x, build.load(spread)), spread)
        vectors.store(power, scores, index)

    with vectors.each(whole) as index:
        replace(index)
    before = cgutils.alloca_once_value(build, build.load(total))
    first = build.mul(whole, ir.Constant(I64, vectors.lanes))
    with vectors.each(build.sub(count, whole)) as index:
        replace(build.add(first, index))

    # Add the part of a vector at which the first loop ended.
    with build.if_then(build.icmp_signed(">", part, ir.Constant(I64, 0))):
        numbers = vectors.load(scores, first)
        lanes = ir.Constant(ir.VectorType(I32, vectors.lanes), [*range(vectors.lanes)])
        undefined = ir.Constant(lanes.type, ir.Undefined)
        stop = build.insert_element(undefined, build.trunc(part, I32), ir.Constant(I32, 0))
        stop = build.shuffle_vector(stop, undefined, ir.Constant(lanes.type, [0] * vectors.lanes))
        kept = build.select(build.icmp_signed("<", lanes, stop), numbers, vectors.constant(0.0))
        build.store(build.fadd(build.load(before), kept), before)
    return [vectors.total(build.load(sums)) for sums in (total, spread, before)]


@vector_function()
def sum_columns(vectors, powers, width, rows, share, count, sums):
    """Write Σ over the rows of powers · share, for so many vectors of columns."""
    build = vectors.build
    totals = [vectors.variable() for _ in range(COLUMNS)]

    def add_up(column, totals):
        """Build the sums of neighbouring vectors, which share the loads of each row's share."""
        for total in totals:
            build.store(vectors.constant(0.0), total)
        with cgutils.for_range(build, rows) as loop:
            weight = vectors.splat_at(share, loop.index)
            first = build.add(column, build.mul(loop.index, width))
            for i, total in enumerate(totals):
                power = vectors.load(powers, vectors.ahead(first, i))
                build.store(vectors.fma(power, weight, build.load(total)), total)
        for i, total in enumerate(totals):
            vectors.store(build.load(total), sums, vectors.ahead(column, i))

    with cgutils.for_range(build, build.sdiv(count, ir.Constant(I64, COLUMNS))) as loop:
        add_up(build.mul(loop.index, ir.Constant(I64, COLUMNS * vectors.lanes)), totals)
    rest = build.srem(count, ir.Constant(I64, COLUMNS))
    first = build.mul(build.sub(count, rest), ir.Constant(I64, vectors.lanes))
    with vectors.each(rest) as index:
        add_up(build.add(first, index), totals[:1])


@vector_function()
def column_maxima(
    vectors, powers, width, rows, share, count, best,
    row,
):  # fmt: skip
    """Write the largest power · share of each column, and its row, for so many vectors of columns.

    The row is a number of the same width, and the first one among equal ones; -1 if no product is
    above 0.
    """
    build = vectors.build
    largest = vectors.variable()
    place = vectors.variable()
    with vectors.each(count) as column:
        build.store(vectors.constant(0.0), largest)
        build.store(vectors.constant(-1.0), place)
        with cgutils.for_range(build, rows) as loop:
            weight = vectors.splat_at(share, loop.index)
            power = vectors.load(powers, build.add(column, build.mul(loop.index, width)))
            product = build.fmul(power, weight)
            before = build.load(largest)
            better = build.fcmp_ordered(">", product, before)
            number = vectors.splat(build.sitofp(loop.index, vectors.scalar))
            build.store(build.select(better, product, before), largest)
            build.store(build.select(better, number, build.load(place)), place)
        vectors.store(build.load(largest), best, column)
        vectors.store(build.load(place), row, column)


@vector_function(_number)
def row_product(vectors, powers, factors, count):
    """Return the sum of powers · factors over so many vectors."""
    build = vectors.build
    total = vectors.variable()
    with vectors.each(count) as index:
        power = vectors.load(powers, index)
        build.store(vectors.fma(power, vectors.load(factors, index), build.load(total)), total)
    return vectors.total(build.load(total))


@vector_function()
def cap(vectors, scores, count, softcap):
    """Replace scores in natural units by softcap · tanh(score / softcap) · log2(e)."""
    build = vectors.build
    share = build.fdiv(vectors.constant(1.0), vectors.splat(softcap))
    height = build.fmul(vectors.splat(softcap), vectors.constant(1.0 / LN_2))
    with vectors.each(count) as index:
        x = build.fmul(vectors.load(scores, index), share)
        vectors.store(build.fmul(height, vectors.tanh(x)), scores, index)
