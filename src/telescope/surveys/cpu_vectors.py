"""Loops over vectors of scores, written in LLVM for numba: products, maxima, exponentials, sums.

numba's own loops do not vectorise a maximum, a tile of products or an exponential well. Everything
is in powers of two: a score is multiplied by log2(e) before it gets here.
"""

from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from math import log

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

try:
    FEATURES = binding.get_host_cpu_features()
except RuntimeError:  # LLVM does not know this CPU
    FEATURES = {}
# Bytes of the CPU's vectors.
VECTOR = 64 if FEATURES.get("avx512f") else 32 if FEATURES.get("avx2") else 16
# Rows and vectors of a tile of products: measured, as many as stay in registers.
TILE_ROWS, TILE_VECTORS = (4, 3) if VECTOR == 32 else (8, 2)
LN_2 = log(2.0)

I32 = ir.IntType(32)
I64 = ir.IntType(64)


def _taylor(degree):
    """Return the coefficients of 2^x around 0, the highest power first."""
    coefficients = [1.0]
    for i in range(1, degree + 1):
        coefficients.append(coefficients[-1] * LN_2 / i)
    return coefficients[::-1]


# 2^x for 0 <= x < 1. float32: a minimax polynomial, relative error 1e-7; float64: as exact as its
# rounding.
EXP2 = [1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1]
EXP2_DOUBLE = _taylor(17)
# (tanh(x) / x - 1) / x² of x² below 0.625²: the approximations of the Cephes library (Moshier,
# 1992).
TANH = [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1]
TANH_DOUBLE = [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3]
TANH_DIVISOR = [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3]


class Vectors:
    """Build LLVM code for vectors of float32 or float64."""

    def __init__(self, builder, double):
        self.build = builder
        self.scalar = ir.DoubleType() if double else ir.FloatType()
        self.bits = 64 if double else 32
        self.lanes = VECTOR * 8 // self.bits
        self.type = ir.VectorType(self.scalar, self.lanes)
        self.integers = ir.VectorType(ir.IntType(self.bits), self.lanes)

    # Constants, memory and loops.

    def constant(self, number):
        return ir.Constant(self.type, [number] * self.lanes)

    def splat(self, scalar):
        """Return a vector with the scalar in every lane."""
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.build.insert_element(undefined, scalar, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.build.shuffle_vector(first, undefined, lanes)

    def splat_at(self, pointer, index):
        """Return a vector with one element of an array in every lane."""
        return self.splat(self.build.load(self.build.gep(pointer, [index])))

    def load(self, pointer, index):
        vector = self.build.load(self._at(pointer, index))
        vector.align = self.bits // 8  # of an element: rows do not begin at whole vectors
        return vector

    def store(self, vector, pointer, index):
        self.build.store(vector, self._at(pointer, index)).align = self.bits // 8

    def _at(self, pointer, index):
        return self.build.bitcast(self.build.gep(pointer, [index]), self.type.as_pointer())

    def variable(self, number=0.0):
        """Return memory for a vector, which LLVM keeps in a register."""
        memory = cgutils.alloca_once(self.build, self.type)
        self.build.store(self.constant(number), memory)
        return memory

    @contextmanager
    def each(self, count):
        """Build a loop over the first elements of `count` vectors: 0, lanes, 2 · lanes, ..."""
        with cgutils.for_range(self.build, count) as loop:
            yield self.build.mul(loop.index, ir.Constant(I64, self.lanes))

    def ahead(self, index, vectors):
        return self.build.add(index, ir.Constant(I64, vectors * self.lanes))

    # Arithmetic.

    def call(self, name, *arguments):
        """Call an LLVM function of vectors, such as fma or floor."""
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(
            self.build.module, kind, f"llvm.{name}.v{self.lanes}f{self.bits}"
        )
        return self.build.call(function, arguments)

    def fma(self, x, y, z):
        """Return x · y + z, rounded once."""
        return self.call("fma", x, y, z)

    def larger(self, x, y):
        return self.build.select(self.build.fcmp_ordered(">", x, y), x, y)

    def smaller(self, x, y):
        return self.build.select(self.build.fcmp_ordered("<", x, y), x, y)

    def exp2(self, x):
        """Return 2^x for x up to 127: 2^floor(x) by its bits, and a polynomial for the rest. Below
        2^-126 it is 0.
        """
        # The smallest exponent, the bits of the mantissa, the exponent's bias, and the polynomial.
        least, mantissa, bias, polynomial = (
            (-1022.0, 52, 1023, EXP2_DOUBLE) if self.bits == 64 else (-126.0, 23, 127, EXP2)
        )
        tiny = self.build.fcmp_ordered("<", x, self.constant(least))
        x = self.build.select(tiny, self.constant(least), x)
        whole = self.call("floor", x)
        part = self.build.fsub(x, whole)
        power = self._polynomial(polynomial, part)
        # The whole part goes into the bits of the exponent.
        exponent = self.build.add(self.build.fptosi(whole, self.integers), self._integer(bias))
        scale = self.build.bitcast(self.build.shl(exponent, self._integer(mantissa)), self.type)
        return self.build.select(tiny, self.constant(0.0), self.build.fmul(power, scale))

    def tanh(self, x):
        """Return tanh(x): 1 - 2 / (e^2x + 1), and a polynomial or fraction near 0, where that would
        cancel.
        """
        # Beyond `above`, tanh is 1 in this precision, and exp2 would overflow.
        above, polynomial, divisor = (
            (30.0, TANH_DOUBLE, TANH_DIVISOR) if self.bits == 64 else (20.0, TANH, [1.0])
        )
        limited = self.larger(self.constant(-above), x)  # in this order, NaN stays NaN
        too_large = self.build.fcmp_ordered(">", limited, self.constant(above))
        limited = self.build.select(too_large, self.constant(above), limited)
        power = self.exp2(self.build.fmul(limited, self.constant(2.0 / LN_2)))
        one = self.constant(1.0)
        far = self.build.fsub(one, self.build.fdiv(self.constant(2.0), self.build.fadd(power, one)))

        # Near 0: x + x · x² · polynomial(x²).
        square = self.build.fmul(x, x)
        series = self.build.fmul(square, self._polynomial(polynomial, square))
        if len(divisor) > 1:
            series = self.build.fdiv(series, self._polynomial(divisor, square))
        near = self.fma(x, series, x)
        is_near = self.build.fcmp_ordered("<", square, self.constant(0.625**2))
        return self.build.select(is_near, near, far)

    def _polynomial(self, coefficients, x):
        total = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.constant(coefficient))
        return total

    def _integer(self, number):
        return ir.Constant(self.integers, [number] * self.lanes)

    def total(self, vector):
        """Return the sum of the lanes."""
        return self.reduce(vector, self.build.fadd)

    def reduce(self, vector, join):
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


# ----------------------------------------------------------------------- functions for numba's code


@intrinsic
def at(context, array, index):
    """Return a pointer to element `index` of a contiguous array."""

    def build(context, builder, types_of, arguments):
        made = context.make_array(types_of.args[0])(context, builder, arguments[0])
        return builder.gep(made.data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), build


def vector_function(result=lambda number: types.void):
    """Make build(vectors, *arguments), which builds LLVM code, a function that numba's code calls.

    Arguments are pointers, whole numbers and floats; the first pointer decides whether all floats
    are float32 or float64. result(this type) is the type of what build returns, by default nothing.
    """

    def register(build):
        def typed(context, *given):
            number = given[0].dtype
            taken = [
                kind
                if isinstance(kind, types.CPointer)
                else types.intp
                if isinstance(kind, types.Integer)
                else number
                for kind in given
            ]

            def generate(context, builder, types_of, arguments):
                made = build(Vectors(builder, number == types.float64), *arguments)
                if isinstance(made, list):
                    return context.make_tuple(builder, types_of.return_type, made)
                return context.get_dummy_value() if made is None else made

            return result(number)(*taken), generate

        # numba reads the names of the arguments from the signature, and takes no *given there.
        own = [*signature(build).parameters.values()][1:]
        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)
        typed.__signature__ = Signature([context, *own])
        typed.__name__ = build.__name__
        typed.__doc__ = build.__doc__
        return intrinsic(typed)

    return register


def _number(number):
    return number


@vector_function()
def multiply_tile(vectors, queries, keys, scale, scores, width, features):
    """Write queries · keys · scale: TILE_ROWS queries (row, feature), a tile of keys (feature,
    key), rows of `width`.

    The scale is applied to the products, so that equal products stay equal.
    """
    build = vectors.build
    scale = vectors.splat(scale)
    sums = [[vectors.variable() for _ in range(TILE_VECTORS)] for _ in range(TILE_ROWS)]
    # One feature at a time, of all queries and keys of the tile.
    with cgutils.for_range(build, features) as loop:
        first = build.mul(loop.index, ir.Constant(I64, TILE_VECTORS * vectors.lanes))
        key = [vectors.load(keys, vectors.ahead(first, i)) for i in range(TILE_VECTORS)]
        for r, row in enumerate(sums):
            place = build.add(build.mul(ir.Constant(I64, r), features), loop.index)
            query = vectors.splat_at(queries, place)
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
    largest = vectors.variable(-np.inf)
    with vectors.each(count) as index:
        build.store(vectors.larger(vectors.load(numbers, index), build.load(largest)), largest)
    return build.load(largest)


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
    n = vectors.splat(build.sitofp(n, vectors.scalar))
    least = vectors.variable(np.inf)
    exceeding = vectors.variable()
    one, zero, infinite = (vectors.constant(x) for x in (1.0, 0.0, np.inf))
    with vectors.each(count) as index:
        own = vectors.load(numbers, index)
        # Count the numbers above each of these.
        build.store(zero, exceeding)
        with cgutils.for_range(build, build.mul(count, ir.Constant(I64, vectors.lanes))) as loop:
            other = vectors.splat_at(numbers, loop.index)
            more = build.select(build.fcmp_ordered(">", other, own), one, zero)
            build.store(build.fadd(build.load(exceeding), more), exceeding)
        counted = build.fcmp_ordered("<", build.load(exceeding), n)
        own = build.select(counted, own, infinite)
        build.store(vectors.smaller(own, build.load(least)), least)
    return vectors.reduce(build.load(least), vectors.smaller)


@vector_function(lambda number: types.intp)
def find_reaching(vectors, scores, count, bound, places):
    """Write the places of the scores that are not below the bound, in order, and return how many
    there are.
    """
    build = vectors.build
    bits = ir.IntType(vectors.lanes)
    bound = vectors.splat(bound)
    found = cgutils.alloca_once_value(build, ir.Constant(I64, 0))
    left = cgutils.alloca_once(build, bits)
    with vectors.each(count) as index:
        reaching = build.bitcast(build.fcmp_ordered(">=", vectors.load(scores, index), bound), bits)
        build.store(reaching, left)
        # One turn for each bit that is set: take the lowest, and clear it.
        with cgutils.for_range(build, build.zext(build.ctpop(reaching), I64)):
            now = build.load(left)
            lane = build.zext(build.cttz(now, ir.IntType(1)(1)), I64)
            place = build.trunc(build.add(index, lane), I32)
            build.store(place, build.gep(places, [build.load(found)]))
            build.store(build.add(build.load(found), ir.Constant(I64, 1)), found)
            build.store(build.and_(now, build.sub(now, bits(1))), left)
    return build.load(found)


@vector_function(lambda number: types.UniTuple(number, 2))
def exponentials(vectors, scores, count, shift):
    """Replace scores by p = 2^(score - shift), and return Σ p and Σ p · (score - shift)."""
    build = vectors.build
    shift = vectors.splat(shift)
    least = vectors.constant(-1e30)  # finite: 0 · least is 0
    total = vectors.variable()
    spread = vectors.variable()
    with vectors.each(count) as index:
        x = vectors.larger(least, build.fsub(vectors.load(scores, index), shift))
        power = vectors.exp2(x)
        build.store(build.fadd(build.load(total), power), total)
        build.store(vectors.fma(power, x, build.load(spread)), spread)
        vectors.store(power, scores, index)
    return [vectors.total(build.load(sums)) for sums in (total, spread)]


@vector_function()
def add_columns(vectors, powers, width, rows, share, count, sums):
    """Add Σ over the rows of powers · share to sums, for so many vectors of columns."""
    build = vectors.build
    total = vectors.variable()
    with vectors.each(count) as column:
        build.store(vectors.load(sums, column), total)
        with cgutils.for_range(build, rows) as loop:
            weight = vectors.splat_at(share, loop.index)
            power = vectors.load(powers, build.add(column, build.mul(loop.index, width)))
            build.store(vectors.fma(power, weight, build.load(total)), total)
        vectors.store(build.load(total), sums, column)


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
def row_sum(vectors, powers, count):
    """Return the sum of so many vectors."""
    build = vectors.build
    total = vectors.variable()
    with vectors.each(count) as index:
        build.store(build.fadd(build.load(total), vectors.load(powers, index)), total)
    return vectors.total(build.load(total))


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
