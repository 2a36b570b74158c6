"""The survey's kernels for a CPU, compiled by numba: each strip of scores is read while it is in
the cache.

numba's own loops do not vectorise a maximum, a tile of products or an exponential well. The inner
loops are therefore written as LLVM vectors (`intrinsic`); the loops around them are Python.
Everything is in powers of two: a score is multiplied by log2(e) before it gets here, lse are to
base two, and 2^(score - lse) is the weight.

All functions release the GIL. numba compiles a function at its first call and keeps the code on
disk, next to this file or in the user's cache folder. Everything that is compiled stands in this
file, since numba compares the cached code with the date of one file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log, log2
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

try:
    FEATURES = binding.get_host_cpu_features()
except RuntimeError:  # LLVM does not know this CPU
    FEATURES = {}
VECTOR = (
    64 if FEATURES.get("avx512f") else 32 if FEATURES.get("avx2") else 16
)  # bytes of the CPU's vectors
TILE_ROWS, TILE_VECTORS = (
    (4, 3) if VECTOR == 32 else (8, 2)
)  # of a tile of products, which stays in registers
STRIP = 32  # rows whose scores are held at a time, a multiple of TILE_ROWS
LN_2 = log(2.0)

FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning


OPTIONS = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "boundscheck": False}


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile a function as a part of those that call it.

    A call, and a slice of an array, count references to the array, which takes longer than a short
    row of scores: what is done for each row is inlined, and indexes whole arrays.
    """
    return njit(inline="always", **OPTIONS)(function)


def _cached(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, and keep the code on disk where a folder can be written
    to.
    """
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written to
        return njit(**OPTIONS)(function)


# ------------------------------------------------------------------------------------- LLVM vectors

I32 = ir.IntType(32)
I64 = ir.IntType(64)


class Vectors:
    """Build LLVM code for vectors of float32 or float64."""

    def __init__(self, builder: Any, double: bool) -> None:
        self.build = builder
        self.scalar = ir.DoubleType() if double else ir.FloatType()
        self.bits = 64 if double else 32
        self.lanes = VECTOR * 8 // self.bits
        self.type = ir.VectorType(self.scalar, self.lanes)
        self.integers = ir.VectorType(ir.IntType(self.bits), self.lanes)

    def constant(self, number: float) -> Any:
        return ir.Constant(self.type, [number] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        """Return a vector with the scalar in every lane."""
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.build.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.build.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        )

    def load(self, pointer: Any, index: Any) -> Any:
        vector = self.build.load(self._at(pointer, index))
        vector.align = self.bits // 8
        return vector

    def store(self, vector: Any, pointer: Any, index: Any) -> None:
        self.build.store(vector, self._at(pointer, index)).align = self.bits // 8

    def _at(self, pointer: Any, index: Any) -> Any:
        return self.build.bitcast(self.build.gep(pointer, [index]), self.type.as_pointer())

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an LLVM function of vectors, such as fma or floor."""
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(
            self.build.module, kind, f"llvm.{name}.v{self.lanes}f{self.bits}"
        )
        return self.build.call(function, arguments)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """Return x · y + z, rounded once."""
        return self.call("fma", x, y, z)

    def larger(self, x: Any, y: Any) -> Any:
        return self.build.select(self.build.fcmp_ordered(">", x, y), x, y)

    def exp2(self, x: Any) -> Any:
        """Return 2^x for x up to 127: 2^floor(x) by its bits, and a polynomial for the rest. Below
        2^-126 it is 0.
        """
        least, mantissa, bias, polynomial = (
            (-1022.0, 52, 1023, EXP2_DOUBLE) if self.bits == 64 else (-126.0, 23, 127, EXP2)
        )
        tiny = self.build.fcmp_ordered("<", x, self.constant(least))
        x = self.build.select(tiny, self.constant(least), x)
        whole = self.call("floor", x)
        part = self.build.fsub(x, whole)
        power = self._polynomial(polynomial, part)
        exponent = self.build.add(self.build.fptosi(whole, self.integers), self._integer(bias))
        scale = self.build.bitcast(self.build.shl(exponent, self._integer(mantissa)), self.type)
        return self.build.select(tiny, self.constant(0.0), self.build.fmul(power, scale))

    def tanh(self, x: Any) -> Any:
        """Return tanh(x): 1 - 2 / (e^2x + 1), and a polynomial or fraction near 0, where that would
        cancel.
        """
        below, above, polynomial, divisor = (
            (-30.0, 30.0, TANH_DOUBLE, TANH_DIVISOR)
            if self.bits == 64
            else (-20.0, 20.0, TANH, [1.0])
        )
        limited = self.larger(self.constant(below), x)  # in this order, NaN stays NaN
        limited = self.build.select(
            self.build.fcmp_ordered(">", limited, self.constant(above)),
            self.constant(above),
            limited,
        )
        power = self.exp2(self.build.fmul(limited, self.constant(2.0 / LN_2)))
        one = self.constant(1.0)
        far = self.build.fsub(one, self.build.fdiv(self.constant(2.0), self.build.fadd(power, one)))
        square = self.build.fmul(x, x)
        series = self.build.fmul(square, self._polynomial(polynomial, square))
        if len(divisor) > 1:
            series = self.build.fdiv(series, self._polynomial(divisor, square))
        near = self.fma(x, series, x)
        is_near = self.build.fcmp_ordered("<", square, self.constant(0.625**2))
        return self.build.select(is_near, near, far)

    def _polynomial(self, coefficients: list[float], x: Any) -> Any:
        total = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.constant(coefficient))
        return total

    def _integer(self, number: int) -> Any:
        return ir.Constant(self.integers, [number] * self.lanes)

    def total(self, vector: Any) -> Any:
        """Return the sum of the lanes."""
        return self.reduce(vector, self.build.fadd)

    def reduce(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Return what is left when the two halves of the lanes are joined again and again."""
        count = self.lanes
        while count > 1:
            count //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            halves = (
                self.build.shuffle_vector(
                    vector,
                    undefined,
                    ir.Constant(ir.VectorType(I32, count), [*range(first, first + count)]),
                )
                for first in (0, count)
            )
            vector = join(*halves)
        return self.build.extract_element(vector, ir.Constant(I32, 0))

    def variable(self, number: float = 0.0) -> Any:
        """Return memory for a vector, which LLVM keeps in a register."""
        memory = cgutils.alloca_once(self.build, self.type)
        self.build.store(self.constant(number), memory)
        return memory

    @contextmanager
    def each(self, count: Any) -> Iterator[Any]:
        """Build a loop over the first elements of `count` vectors: 0, lanes, 2 · lanes, ..."""
        with cgutils.for_range(self.build, count) as loop:
            yield self.build.mul(loop.index, ir.Constant(I64, self.lanes))

    def ahead(self, index: Any, vectors: int) -> Any:
        return self.build.add(index, ir.Constant(I64, vectors * self.lanes))


def _taylor(degree: int) -> list[float]:
    coefficients = [1.0]
    for i in range(1, degree + 1):
        coefficients.append(coefficients[-1] * LN_2 / i)
    return coefficients[::-1]


# 2^x for 0 <= x < 1. float32: a minimax polynomial, relative error 1e-7; float64: as exact as its
# rounding
EXP2 = [1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1]
EXP2_DOUBLE = _taylor(17)
# (tanh(x) / x - 1) / x² of x² below 0.625²: the approximations of the Cephes library (Moshier,
# 1992)
TANH = [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1]
TANH_DOUBLE = [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3]
TANH_DIVISOR = [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3]


def _is_double(pointer: Any) -> bool:
    return bool(pointer.dtype == types.float64)


@intrinsic
def at(context: Any, array: Any, index: Any) -> Any:
    """Return a pointer to element `index` of a contiguous array."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.gep(made.data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), build


@intrinsic
def multiply_tile(
    context: Any, queries: Any, keys: Any, scale: Any, scores: Any, width: Any, features: Any
) -> Any:
    """Write queries · keys · scale: TILE_ROWS queries (row, feature), a tile of keys (feature,
    key), rows of `width`.

    The scale is applied to the products, so that equal products stay equal.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = Vectors(builder, _is_double(signature.args[0]))
        queries, keys, scale, scores, width, features = arguments
        scale = vectors.splat(scale)
        sums = [[vectors.variable() for _ in range(TILE_VECTORS)] for _ in range(TILE_ROWS)]
        with cgutils.for_range(builder, features) as loop:
            first = builder.mul(loop.index, ir.Constant(I64, TILE_VECTORS * vectors.lanes))
            key = [vectors.load(keys, vectors.ahead(first, i)) for i in range(TILE_VECTORS)]
            for r, row in enumerate(sums):
                place = builder.add(builder.mul(ir.Constant(I64, r), features), loop.index)
                query = vectors.splat(builder.load(builder.gep(queries, [place])))
                for i, total in enumerate(row):
                    builder.store(vectors.fma(query, key[i], builder.load(total)), total)
        for r, row in enumerate(sums):
            first = builder.mul(ir.Constant(I64, r), width)
            for i, total in enumerate(row):
                vectors.store(
                    builder.fmul(builder.load(total), scale), scores, vectors.ahead(first, i)
                )
        return context.get_dummy_value()

    return types.void(queries, keys, queries.dtype, scores, types.intp, types.intp), build


@intrinsic
def lane_maxima(context: Any, scores: Any, vectors: Any, maxima: Any) -> Any:
    """Write the largest score of each lane over so many vectors."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, count, maxima = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        largest = vectors.variable(-np.inf)
        with vectors.each(count) as index:
            builder.store(
                vectors.larger(vectors.load(scores, index), builder.load(largest)), largest
            )
        vectors.store(builder.load(largest), maxima, ir.Constant(I64, 0))
        return context.get_dummy_value()

    return types.void(scores, types.intp, maxima), build


@intrinsic
def largest_of(context: Any, numbers: Any, vectors: Any) -> Any:
    """Return the largest number in so many vectors."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, count = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        largest = vectors.variable(-np.inf)
        with vectors.each(count) as index:
            builder.store(
                vectors.larger(vectors.load(numbers, index), builder.load(largest)), largest
            )
        return vectors.reduce(builder.load(largest), vectors.larger)

    return numbers.dtype(numbers, types.intp), build


@intrinsic
def nth_largest(context: Any, numbers: Any, vectors: Any, n: Any) -> Any:
    """Return the n-th largest number in so many vectors, or the smallest if there are fewer.

    It is the least of the numbers that fewer than n others exceed.
    """
    number = numbers.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, count, n = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        n = vectors.splat(builder.sitofp(n, vectors.scalar))
        least = vectors.variable(np.inf)
        exceeding = vectors.variable()
        one, zero, infinite = (vectors.constant(x) for x in (1.0, 0.0, np.inf))
        with vectors.each(count) as index:
            own = vectors.load(numbers, index)
            builder.store(zero, exceeding)
            with cgutils.for_range(
                builder, builder.mul(count, ir.Constant(I64, vectors.lanes))
            ) as loop:
                other = vectors.splat(builder.load(builder.gep(numbers, [loop.index])))
                more = builder.select(builder.fcmp_ordered(">", other, own), one, zero)
                builder.store(builder.fadd(builder.load(exceeding), more), exceeding)
            counted = builder.fcmp_ordered("<", builder.load(exceeding), n)
            own = builder.select(counted, own, infinite)
            builder.store(
                builder.select(
                    builder.fcmp_ordered("<", own, builder.load(least)), own, builder.load(least)
                ),
                least,
            )
        return vectors.reduce(
            builder.load(least), lambda x, y: builder.select(builder.fcmp_ordered("<", x, y), x, y)
        )

    return number(numbers, types.intp, types.intp), build


@intrinsic
def find_reaching(context: Any, scores: Any, vectors: Any, bound: Any, places: Any) -> Any:
    """Write the places of the scores that are not below the bound, in order, and return how many
    there are.
    """
    number = scores.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, count, bound, places = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        bits = ir.IntType(vectors.lanes)
        bound = vectors.splat(bound)
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        left = cgutils.alloca_once(builder, bits)
        with vectors.each(count) as index:
            reaching = builder.bitcast(
                builder.fcmp_ordered(">=", vectors.load(scores, index), bound), bits
            )
            builder.store(reaching, left)
            with cgutils.for_range(builder, builder.zext(builder.ctpop(reaching), I64)):
                now = builder.load(left)
                lane = builder.zext(builder.cttz(now, ir.IntType(1)(1)), I64)
                place = builder.trunc(builder.add(index, lane), I32)
                builder.store(place, builder.gep(places, [builder.load(found)]))
                builder.store(builder.add(builder.load(found), ir.Constant(I64, 1)), found)
                builder.store(builder.and_(now, builder.sub(now, bits(1))), left)
        return builder.load(found)

    return types.intp(scores, types.intp, number, places), build


@intrinsic
def exponentials(context: Any, scores: Any, vectors: Any, shift: Any) -> Any:
    """Replace scores by p = 2^(score - shift), and return Σ p and Σ p · (score - shift)."""
    number = scores.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, count, shift = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        shift = vectors.splat(shift)
        least = vectors.constant(-1e30)  # finite: 0 · least is 0
        total = vectors.variable()
        spread = vectors.variable()
        with vectors.each(count) as index:
            x = vectors.larger(least, builder.fsub(vectors.load(scores, index), shift))
            power = vectors.exp2(x)
            builder.store(builder.fadd(builder.load(total), power), total)
            builder.store(vectors.fma(power, x, builder.load(spread)), spread)
            vectors.store(power, scores, index)
        sums = [vectors.total(builder.load(sums)) for sums in (total, spread)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(number, 2)(scores, types.intp, number), build


@intrinsic
def add_columns(
    context: Any, powers: Any, width: Any, rows: Any, share: Any, vectors: Any, sums: Any
) -> Any:
    """Add Σ over the rows of powers · share to sums, for so many vectors of columns."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        powers, width, rows, share, count, sums = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        total = vectors.variable()
        with vectors.each(count) as column:
            builder.store(vectors.load(sums, column), total)
            with cgutils.for_range(builder, rows) as loop:
                weight = vectors.splat(builder.load(builder.gep(share, [loop.index])))
                power = vectors.load(powers, builder.add(column, builder.mul(loop.index, width)))
                builder.store(vectors.fma(power, weight, builder.load(total)), total)
            vectors.store(builder.load(total), sums, column)
        return context.get_dummy_value()

    return types.void(powers, types.intp, types.intp, share, types.intp, sums), build


@intrinsic
def column_maxima(
    context: Any, powers: Any, width: Any, rows: Any, share: Any, vectors: Any, best: Any, row: Any
) -> Any:
    """Write the largest power · share of each column, and its row, for so many vectors of columns.

    The row is a number of the same width, and the first one among equal ones; -1 if no product is
    above 0.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        powers, width, rows, share, count, best, row = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        largest = vectors.variable()
        place = vectors.variable()
        with vectors.each(count) as column:
            builder.store(vectors.constant(0.0), largest)
            builder.store(vectors.constant(-1.0), place)
            with cgutils.for_range(builder, rows) as loop:
                weight = vectors.splat(builder.load(builder.gep(share, [loop.index])))
                power = vectors.load(powers, builder.add(column, builder.mul(loop.index, width)))
                product = builder.fmul(power, weight)
                before = builder.load(largest)
                better = builder.fcmp_ordered(">", product, before)
                number = vectors.splat(builder.sitofp(loop.index, vectors.scalar))
                builder.store(builder.select(better, product, before), largest)
                builder.store(builder.select(better, number, builder.load(place)), place)
            vectors.store(builder.load(largest), best, column)
            vectors.store(builder.load(place), row, column)
        return context.get_dummy_value()

    return types.void(powers, types.intp, types.intp, share, types.intp, best, row), build


@intrinsic
def row_sum(context: Any, powers: Any, vectors: Any) -> Any:
    """Return the sum of so many vectors."""
    number = powers.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        powers, count = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        total = vectors.variable()
        with vectors.each(count) as index:
            builder.store(builder.fadd(builder.load(total), vectors.load(powers, index)), total)
        return vectors.total(builder.load(total))

    return number(powers, types.intp), build


@intrinsic
def row_product(context: Any, powers: Any, factors: Any, vectors: Any) -> Any:
    """Return the sum of powers · factors over so many vectors."""
    number = powers.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        powers, factors, count = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        total = vectors.variable()
        with vectors.each(count) as index:
            product = vectors.fma(
                vectors.load(powers, index), vectors.load(factors, index), builder.load(total)
            )
            builder.store(product, total)
        return vectors.total(builder.load(total))

    return number(powers, factors, types.intp), build


@intrinsic
def cap(context: Any, scores: Any, vectors: Any, softcap: Any) -> Any:
    """Replace scores in natural units by softcap · tanh(score / softcap) · log2(e)."""
    number = scores.dtype

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, count, softcap = arguments
        vectors = Vectors(builder, _is_double(signature.args[0]))
        share = builder.fdiv(vectors.constant(1.0), vectors.splat(softcap))
        height = builder.fmul(vectors.splat(softcap), vectors.constant(1.0 / LN_2))
        with vectors.each(count) as index:
            x = builder.fmul(vectors.load(scores, index), share)
            vectors.store(builder.fmul(height, vectors.tanh(x)), scores, index)
        return context.get_dummy_value()

    return types.void(scores, types.intp, number), build


# -------------------------------------------------------------------------------------- the kernels


@_cached
def survey_heads(
    tasks, queries, keys, scores, origin, scale, softcap, slopes, tables, shift, start, stop, sinks, lse, lse_known,
    received, entropy, weights, found, map_row, map_column, pooled, marked_stop, marked_keys, marked_sum,
    marked_weights, listed_keys, listed_spans, listed_sum, listed_seen, extras,
):  # fmt: skip
    """Survey some rows of some heads, and add to what their keys receive. Optional arrays have no
    elements.

    tasks            (task, 5): part, sequence b, head h, the first row and one past the last
    queries, keys    (b, h, row, feature) and, packed, (b, key head, tile, feature, key): their
                     products times `scale` are the scores;
    scores           or the scores themselves (b, h, row, key), times `scale`
    origin           (4,): which b, h, row and key the first of `scores` is
    softcap          0 for none; with one, scores before it are in natural units
    slopes, tables   a bias: (h,), ALiBi's slope, 0 for none; (h or 1, distance), one number for
                     each distance
    shift            the position of row 0, counted in keys
    start, stop      (b, h, row): the first key that each row sees, and one past the last; not read
                     with `scores`
    sinks            (h,), to base two, -inf for none
    lse              (b, h, row), to base two: read if `lse_known`, else written
    received         (part, b, h, key), float64: added to
    entropy          (b, h, row), in nats; weights, found (b, h, row, top): written
    map_row          (b, row), map_column (b, key): the cell of each pair
    pooled           (part, b, h, rows, columns), float64: added to
    marked_stop      (row,): the weight of all keys before is written to marked_sum (b, h, row)
    marked_keys      (b, row, mark): the weight of each is written to marked_weights (b, h, row,
                     mark)
    listed_keys      (b, slot), listed_spans (b, row, list, 2): the total weight of the keys of each
                     list is written to listed_sum (b, h, row, list), and whether the row sees one
                     of them to listed_seen, likewise
    extras           (query_weights, weighted, norms, carried, largest, largest_row), a tuple, since
                     numba takes at most 30 arguments:
    query_weights    (b, h, set, row): each set times the weights is added to weighted (part, b, h,
                     set, key), float64
    norms            (b, h, key), zeros after the last: their sum times the weights is written to
                     carried (b, h, row)
    largest          (part, b, h, key): raised to the largest weight of each key; largest_row,
                     likewise: its row
    """
    query_weights, weighted, norms, carried, largest, largest_row = extras
    group = max(1, queries.shape[1] // max(1, keys.shape[1]))
    for t in range(tasks.shape[0]):
        part, b, h, first, last = tasks[t]
        _survey_rows(
            queries[b, h, first:last], keys[b, h // group],
            scores[b - origin[0], h - origin[1], first - origin[2] : last - origin[2]], origin[3], scale, softcap,
            slopes[h], tables[h % tables.shape[0]], shift + first, start[b, h, first:last], stop[b, h, first:last],
            sinks[h], lse[b, h, first:last], lse_known, received[part, b, h], entropy[b, h, first:last],
            weights[b, h, first:last], found[b, h, first:last], map_row[b, first:last], map_column[b],
            pooled[part, b, h], marked_stop[first:last], marked_keys[b, first:last], marked_sum[b, h, first:last],
            marked_weights[b, h, first:last], listed_keys[b], listed_spans[b, first:last],
            listed_sum[b, h, first:last], listed_seen[b, h, first:last],
            (
                query_weights[b, h, :, first:last], weighted[part, b, h], norms[b, h], carried[b, h, first:last],
                largest[part, b, h], largest_row[part, b, h], first,
            ),
        )  # fmt: skip


@_compiled
def _survey_rows(
    queries, keys, scores, first_key, scale, softcap, slope, table, shift, start, stop, sink, lse, lse_known,
    received, entropy, weights, found, map_row, map_column, pooled, marked_stop, marked_keys, marked_sum,
    marked_weights, listed_keys, listed_spans, listed_sum, listed_seen, extras,
):  # fmt: skip
    """Survey some rows of one head; the arguments are those of `survey_heads` for these rows.

    The last of `extras` is the number of the first row.
    """
    query_weights, weighted, norms, carried, largest, largest_row, first_row = extras
    rows = entropy.shape[0]
    features = queries.shape[1]
    lanes = VECTOR // entropy.itemsize
    wide = TILE_VECTORS * lanes
    given = scores.shape[1] > 0
    width = (scores.shape[1] + lanes - 1) // lanes * lanes if given else keys.shape[0] * wide
    strip = np.empty((STRIP, width), entropy.dtype)
    query = np.zeros((STRIP, features), entropy.dtype)
    blocks = max(
        2, (2 * weights.shape[1] + lanes - 1) // lanes
    )  # of each row: of each lane there, one maximum
    maxima = np.empty(blocks * lanes, entropy.dtype)
    places = np.empty(width if weights.shape[1] else 0, np.int32)
    share = np.empty(STRIP, entropy.dtype)
    sums = np.empty(width, entropy.dtype)
    scaled = np.empty(STRIP, entropy.dtype)
    rows_of = np.empty(width if largest.shape[0] else 0, entropy.dtype)
    for first in range(0, rows, STRIP):
        count = min(STRIP, rows - first)
        begin, end = (0, scores.shape[1]) if given else (width, 0)
        if not given:
            for i in range(first, first + count):
                if start[i] < stop[i]:
                    begin = min(begin, start[i])
                    end = max(end, stop[i])
            begin = begin // wide * wide
            query[:count] = queries[first : first + count]
            for tile in range(begin // wide, (end + wide - 1) // wide):
                for i in range(0, count, TILE_ROWS):
                    multiply_tile(
                        at(query, i * features), at(keys, tile * features * wide), scale,
                        at(strip, i * width + tile * wide), width, features,
                    )  # fmt: skip
        end = (end + lanes - 1) // lanes * lanes
        if begin >= end:  # no row sees a key
            begin = end = 0
        for i in range(count):
            row = first + i
            low, high = (
                (0, scores.shape[1]) if given else (max(start[row], begin), min(stop[row], end))
            )
            if low >= high:
                low = high = begin
            left = low // lanes * lanes
            right = (high + lanes - 1) // lanes * lanes
            if given:
                for j in range(low, high):
                    strip[i, j] = scores[row, j] * scale
            else:
                if softcap > 0.0:
                    cap(
                        at(strip, i * width + left),
                        (right - left) // lanes,
                        entropy.dtype.type(softcap),
                    )
                _add_bias(strip, i, low, high, slope, table, shift + row)
            _fill(strip, i, left, low, -np.inf)
            _fill(strip, i, high, right, -np.inf)
            for m in range(listed_spans.shape[1]):
                listed_seen[row, m] = _sees_any(
                    strip, i, low, high, first_key, listed_keys, listed_spans, row, m
                )
            share[i] = _survey_row(
                strip, i, left, right, lanes, maxima, places, first_key, sink, lse_known, row, lse, entropy, weights,
                found,
            )  # fmt: skip
            _fill(strip, i, begin, left, 0.0)
            _fill(strip, i, right, end, 0.0)
            if marked_stop.shape[0]:
                cut = min(max(marked_stop[row] - first_key, left), right)
                aligned = left + (cut - left) // lanes * lanes
                total = row_sum(at(strip, i * width + left), (aligned - left) // lanes)
                for j in range(aligned, cut):
                    total += strip[i, j]
                marked_sum[row] = total * share[i]
                for m in range(marked_keys.shape[1]):
                    j = marked_keys[row, m] - first_key
                    marked_weights[row, m] = strip[i, j] * share[i] if left <= j < right else 0.0
            for m in range(listed_spans.shape[1]):
                total = entropy.dtype.type(0.0)
                for slot in range(listed_spans[row, m, 0], listed_spans[row, m, 1]):
                    j = listed_keys[slot] - first_key
                    if low <= j < high:
                        total += strip[i, j]
                listed_sum[row, m] = total * share[i]
            if norms.shape[0]:
                total = row_product(
                    at(strip, i * width + left), at(norms, first_key + left), (right - left) // lanes
                )  # fmt: skip
                carried[row] = total * share[i]
        _add_to_columns(
            strip, share, first, count, begin, end, lanes, sums, first_key, received, map_row, map_column, pooled
        )  # fmt: skip
        for m in range(query_weights.shape[0]):
            for i in range(count):
                scaled[i] = share[i] * query_weights[m, first + i]
            for j in range(begin, end):
                sums[j] = 0.0
            add_columns(
                at(strip, begin), width, count, at(scaled, 0), (end - begin) // lanes, at(sums, begin)
            )  # fmt: skip
            for j in range(begin, min(end, weighted.shape[1] - first_key)):
                weighted[m, first_key + j] += sums[j]
        if largest.shape[0]:
            column_maxima(
                at(strip, begin), width, count, at(share, 0), (end - begin) // lanes, at(sums, begin),
                at(rows_of, begin),
            )  # fmt: skip
            for j in range(begin, min(end, largest.shape[0] - first_key)):
                if sums[j] > largest[first_key + j]:
                    largest[first_key + j] = sums[j]
                    largest_row[first_key + j] = first_row + first + int(rows_of[j])


@_compiled
def _fill(strip, i, first, last, number):
    for j in range(first, last):
        strip[i, j] = number


@_compiled
def _sees_any(strip, i, low, high, first_key, keys, spans, row, m):
    """Return whether one of the listed keys has a score."""
    seen = False
    for slot in range(spans[row, m, 0], spans[row, m, 1]):
        j = keys[slot] - first_key
        if low <= j < high and strip[i, j] != -np.inf:
            seen = True
            break
    return seen


@_compiled
def _add_bias(strip, i, low, high, slope, table, position):
    """Add ALiBi, or a bias for each distance, to the scores of the query at a position."""
    if slope != 0.0:
        for j in range(low, high):
            strip[i, j] -= slope * abs(position - j)
    if table.shape[0]:
        reach = table.shape[0] // 2
        for j in range(low, high):
            strip[i, j] += table[min(max(j - position, -reach), reach) + reach]


@_compiled
def _survey_row(
    strip, i, left, right, lanes, maxima, places, first_key, sink, lse_known, row, lse, entropy, weights, found
):  # fmt: skip
    """Replace the scores of a row by powers, write what is known of the row, and return the share
    of a power.
    """
    number = strip.dtype.type
    begin = i * strip.shape[1] + left
    vectors = (right - left) // lanes
    top = weights.shape[1]
    count = 0
    largest = number(-np.inf)
    if top or not lse_known:
        largest = _block_maxima(strip, begin, vectors, lanes, maxima)
    if top:
        bound = max(
            nth_largest(at(maxima, 0), maxima.shape[0] // lanes, top), np.finfo(strip.dtype).min
        )
        reaching = find_reaching(at(strip, begin), vectors, number(bound), at(places, 0))
        count = _keep_largest(strip, i, left, places, reaching, found, row)
    shift = lse[row] if lse_known else max(sink, largest)
    if shift == -np.inf:  # nothing is seen, and there is no sink
        shift = number(0.0)
    total, spread = exponentials(at(strip, begin), vectors, shift)
    share = number(1.0)
    log_total = number(0.0)
    if not lse_known:
        whole = total + number(2.0) ** (sink - shift) if sink > -np.inf else total
        lse[row] = -np.inf
        if whole > 0.0 or np.isnan(whole):
            share = number(1.0) / whole
            log_total = number(log2(whole))
            lse[row] = shift + log_total
    entropy[row] = (
        max(number(0.0), share * (total * log_total - spread) * number(LN_2))
        if not np.isnan(total)
        else total
    )
    for t in range(top):
        if t < count:
            weights[row, t] = strip[i, found[row, t]] * share
            found[row, t] += first_key
        else:
            weights[row, t] = 0.0
            found[row, t] = -1
    return share


@_compiled
def _block_maxima(strip, begin, vectors, lanes, maxima):
    """Write the largest score of every lane in each block of a row, and return the largest of all.

    Neighbours are in different lanes, so that the largest scores of a row are in different lanes
    more often than not: the n-th largest of twice as many maxima is close to the n-th largest
    score.
    """
    blocks = maxima.shape[0] // lanes
    for block in range(blocks):
        first = vectors * block // blocks
        last = vectors * (block + 1) // blocks
        lane_maxima(at(strip, begin + first * lanes), last - first, at(maxima, block * lanes))
    return largest_of(at(maxima, 0), blocks)


@_compiled
def _keep_largest(strip, i, left, places, count, keys, row):
    """Write where the largest of these scores are, largest first, and return how many there are.

    Among equal scores the lower key comes first. `places` are counted from `left`, and increase.
    """
    top = keys.shape[1]
    kept = 0
    for n in range(count):
        j = left + places[n]
        if kept == top and not strip[i, j] > strip[i, keys[row, top - 1]]:
            continue
        place = kept if kept < top else top - 1
        while place > 0 and strip[i, keys[row, place - 1]] < strip[i, j]:
            keys[row, place] = keys[row, place - 1]
            place -= 1
        keys[row, place] = j
        kept = min(kept + 1, top)
    return kept


@_compiled
def _add_to_columns(
    powers, share, first, count, begin, end, lanes, sums, first_key, received, map_row, map_column, pooled
):  # fmt: skip
    """Add the weights of a strip to what each key receives and to the cells of the map.

    Rows that belong to the same row of the map are added up first; all rows of a strip mostly do.
    """
    width = powers.shape[1]
    row = 0
    keys = min(end, received.shape[0] - first_key)
    for j in range(begin, end):
        sums[j] = 0.0
    add_columns(
        at(powers, begin), width, count, at(share, 0), (end - begin) // lanes, at(sums, begin)
    )
    for j in range(begin, keys):
        received[first_key + j] += sums[j]
    while map_row.shape[0] and row < count:
        last = row + 1
        while last < count and map_row[first + last] == map_row[first + row]:
            last += 1
        if last - row == 1:
            _add_row_to_cells(
                powers, row, share[row], begin, keys, first_key, map_column, pooled, map_row[first + row]
            )  # fmt: skip
        else:
            if last - row < count:
                for j in range(begin, end):
                    sums[j] = 0.0
                add_columns(
                    at(powers, row * width + begin), width, last - row, at(share, row), (end - begin) // lanes,
                    at(sums, begin),
                )  # fmt: skip
            _add_to_cells(sums, begin, keys, first_key, map_column, pooled, map_row[first + row])
        row = last


@_compiled
def _add_row_to_cells(powers, i, share, begin, end, first_key, column, cells, row):
    """Add the weights of one row of a strip to the cells of their columns; neighbours are added up
    first.
    """
    j = begin
    while j < end:
        here = column[first_key + j]
        total = powers.dtype.type(0.0)
        while j < end and column[first_key + j] == here:
            total += powers[i, j]
            j += 1
        cells[row, here] += total * share


@_compiled
def _add_to_cells(sums, begin, end, first_key, column, cells, row):
    """Add what each key gets to the cell of its column; neighbours of one column are added up
    first.
    """
    j = begin
    while j < end:
        here = column[first_key + j]
        total = sums.dtype.type(0.0)
        while j < end and column[first_key + j] == here:
            total += sums[j]
            j += 1
        cells[row, here] += total
