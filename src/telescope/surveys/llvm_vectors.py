"""LLVM code for vectors of float32 or float64, written for numba: memory, loops, 2^x and tanh, and
what makes a function of it that numba's code calls.
"""

from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from math import log

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
TILE_ROWS, TILE_VECTORS = {64: (8, 3), 32: (4, 3), 16: (8, 2)}[VECTOR]
LN_2 = log(2.0)

I32 = ir.IntType(32)
I64 = ir.IntType(64)


def _taylor(degree):
    """Return the coefficients of 2^x around 0, the highest power first."""
    coefficients = [1.0]
    for i in range(1, degree + 1):
        coefficients.append(coefficients[-1] * LN_2 / i)
    return coefficients[::-1]


# 2^x for -0.5 <= x <= 0.5, and exactly 1 at 0. float32: a minimax polynomial, relative error 1e-7;
# float64: as exact as its rounding.
EXP2 = [1.3264727e-3, 9.671513e-3, 5.5507336e-2, 2.4022242e-1, 6.93147e-1, 1.0]
EXP2_DOUBLE = _taylor(13)
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

    def integer(self, number):
        return ir.Constant(self.integers, [number] * self.lanes)

    def splat_integer(self, number):
        """Return a vector of integers as wide as the numbers, with this 64-bit one in every
        lane.
        """
        if self.bits < 64:
            number = self.build.trunc(number, self.integers.element)
        undefined = ir.Constant(self.integers, ir.Undefined)
        first = self.build.insert_element(undefined, number, ir.Constant(I32, 0))
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

    @property
    def least_exponent(self):
        """The exponent from which on `exp2` takes numbers: 2 to this power is 0 there."""
        return -1023.0 if self.bits == 64 else -127.0

    def exp2(self, x):
        """Return 2^x for x from `least_exponent` to 127: 2^round(x) by its bits, and a polynomial
        for the rest. Where round(x) is `least_exponent`, it is 0.
        """
        mantissa, polynomial = (52, EXP2_DOUBLE) if self.bits == 64 else (23, EXP2)
        # Added to a number so large that it has no bits for a fraction, x is rounded, and its whole
        # part plus the exponent's bias is in the lowest bits of the sum.
        large = self.constant(1.5 * 2.0**mantissa - self.least_exponent)
        # Flags of their own keep numba from allowing LLVM to cancel the sum and the difference.
        rounded = self.build.fadd(x, large, flags=("contract",))
        whole = self.build.fsub(rounded, large, flags=("contract",))
        part = self.build.fsub(x, whole, flags=("contract",))
        power = self._polynomial(polynomial, part)
        # These bits are the exponent of the scale.
        bits = self.build.shl(self.build.bitcast(rounded, self.integers), self.integer(mantissa))
        return self.build.fmul(power, self.build.bitcast(bits, self.type))

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
