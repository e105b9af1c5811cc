"""How a compiled loop keeps a piece of a row in vector registers.

Numba vectorises only loops over arrays, and what such a loop adds up goes through memory. A `Vector` is a value of a
compiled loop: so many numbers of one type, which LLVM lays into whatever registers the machine has (a piece of 512
bytes is eight registers under AVX-512). A partial vector stands for fewer numbers than it has room for: those beyond
its count are neither read nor written, and are 0.

All of this can be called in compiled loops only. Positions count numbers from the beginning of a contiguous array.
"""

# Numba calls all of these by position, with more than each of them needs.
# ruff: noqa: ARG001

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import models, register_model

# Numba is not typed.
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic
_declared_as: Any = cgutils.get_or_insert_function
_LINE_BYTES = 64
_BYTE_POINTER = ir.IntType(8).as_pointer()


class Vector(types.Type):
    """The type of a vector: of which numbers, how many, and whether it may stand for fewer."""

    def __init__(self, number: Any, lanes: int, partial: bool) -> None:
        self.number, self.lanes, self.partial = number, lanes, partial
        super().__init__(name=f"Vector({number}, {lanes}, {partial})")

    @property
    def llvm(self) -> Any:
        """The type of the value."""
        return ir.VectorType(_llvm_number(self.number), self.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, kind.llvm)  # type: ignore[no-untyped-call]


def _llvm_number(number: Any) -> Any:
    return ir.DoubleType() if number == types.float64 else ir.FloatType()


def _zeros_of(num_bytes: int, partial: bool) -> Any:
    def typed(context: Any, array: Any) -> tuple[Any, Callable[..., Any]]:
        kind = Vector(array.dtype, num_bytes * 8 // array.dtype.bitwidth, partial)
        return kind(array), lambda *_: ir.Constant(kind.llvm, [0.0] * kind.lanes)

    return intrinsic(typed)


zeros_512, zeros_256 = (_zeros_of(num_bytes, partial=False) for num_bytes in (512, 256))
"""``zeros_512(array)``: a vector of 512 bytes of such numbers as an array holds, all 0."""
some_256, some_128, some_64 = (_zeros_of(num_bytes, partial=True) for num_bytes in (256, 128, 64))
"""``some_64(array)``: a vector of 64 bytes that may stand for fewer numbers, all 0."""


@intrinsic
def filled(context: Any, like: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
    """``filled(like, number)``: a vector of one number."""
    return like(like, like.number), lambda _, builder, __, values: _splat(builder, like, values[1])


@intrinsic
def lanes_of(context: Any, vector: Any) -> tuple[Any, Callable[..., Any]]:
    """``lanes_of(vector)``: how many numbers it has room for."""
    return types.int64(vector), lambda *_: _int64(vector.lanes)


@intrinsic
def load(context: Any, like: Any, array: Any, at: Any, count: Any) -> tuple[Any, Callable[..., Any]]:
    """``load(like, array, at, count)``: the numbers from a position on, ``count`` of them where ``like`` is partial."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _address(target, builder, signature.args, values)
        if not like.partial:
            return builder.load(builder.bitcast(pointer, like.llvm.as_pointer()), align=like.number.bitwidth // 8)
        mask, zero = _mask(builder, like, values[3]), ir.Constant(like.llvm, [0.0] * like.lanes)
        return _masked(builder, "load", like, (pointer, mask, zero))

    return like(like, array, at, types.int64), made


@intrinsic
def store(context: Any, vector: Any, array: Any, at: Any, count: Any) -> tuple[Any, Callable[..., Any]]:
    """``store(vector, array, at, count)``: write the numbers, ``count`` of them where the vector is partial."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _address(target, builder, signature.args, values)
        if vector.partial:
            _masked(builder, "store", vector, (values[0], pointer, _mask(builder, vector, values[3])))
        else:
            cell = builder.bitcast(pointer, vector.llvm.as_pointer())
            builder.store(values[0], cell, align=vector.number.bitwidth // 8)
        return target.get_dummy_value()

    return types.void(vector, array, at, types.int64), made


@intrinsic
def prefetch(context: Any, like: Any, array: Any, at: Any, count: Any) -> tuple[Any, Callable[..., Any]]:
    """``prefetch(like, array, at, count)``: ask for the memory that ``load`` will read; nothing waits for it."""
    step = _LINE_BYTES * 8 // like.number.bitwidth

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        whole = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, whole, whole, whole])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE_POINTER], kind)
        pointer = _address(target, builder, signature.args, values)
        last = builder.sub(values[3], _int64(1))
        for first in range(0, like.lanes, step):
            place = _int64(first)
            if like.partial:
                place = builder.select(builder.icmp_signed("<", place, last), place, last)
            line = builder.bitcast(builder.gep(pointer, [place]), _BYTE_POINTER)
            # To be read (0), for use soon in all caches (3), of data and not of code (1).
            builder.call(function, [line, whole(0), whole(3), whole(1)])
        return target.get_dummy_value()

    return types.void(like, array, types.int64, types.int64), made


@intrinsic
def fma(context: Any, left: Any, right: Any, added: Any) -> tuple[Any, Callable[..., Any]]:
    """``fma(left, right, added)``: left * right + added, rounded once where the machine can."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _fused(builder, *values)

    return left(left, left, left), made


@intrinsic
def total(context: Any, vector: Any) -> tuple[Any, Callable[..., Any]]:
    """``total(vector)``: the sum of its numbers, halves first: the order is the same on every machine."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        (rest,), lanes = values, vector.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (_picked(builder, rest, range(first, first + lanes)) for first in (0, lanes))
            rest = builder.fadd(low, high)
        return builder.extract_element(rest, ir.IntType(32)(0))

    return vector.number(vector), made


@intrinsic
def larger(context: Any, left: Any, right: Any) -> tuple[Any, Callable[..., Any]]:
    """``larger(left, right)``: the larger of each two numbers, the second where one of them is no number."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *values), *values)

    return left(left, left), made


@intrinsic
def leaked(context: Any, vector: Any, raw: Any, slope: Any) -> tuple[Any, Callable[..., Any]]:
    """``leaked(vector, raw, slope)``: its numbers, multiplied by the slope where those of ``raw`` are not above 0."""

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        above = builder.fcmp_ordered(">", values[1], ir.Constant(vector.llvm, [0.0] * vector.lanes))
        return builder.select(above, values[0], builder.fmul(values[0], _splat(builder, vector, values[2])))

    return vector(vector, vector, vector.number), made


@intrinsic
def exp(context: Any, vector: Any) -> tuple[Any, Callable[..., Any]]:
    """``exp(vector)``: e to the power of numbers that are at most 0, to 2 units in the last place; what is less than
    -87 (double precision: -708) gives 0, and what is no number stays none.

    x = k ln 2 + r with |r| <= 0.35: a Taylor polynomial of r, then k is added to its exponent.
    """
    wide = vector.number == types.float64
    lowest, degree, mantissa = (-708.0, 13, 52) if wide else (-87.0, 7, 23)
    # ln 2 in two parts; k times the first is exact.
    ln2_high, ln2_low = (
        (6.93147180369123816490e-01, 1.90821492927058770002e-10) if wide else (0.693359375, -2.12194440e-4)
    )

    def made(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        def all_of(number: float) -> Any:
            return ir.Constant(vector.llvm, [number] * vector.lanes)

        (x,) = values
        bits = ir.VectorType(ir.IntType(vector.number.bitwidth), vector.lanes)
        in_range = builder.fcmp_ordered(">=", x, all_of(lowest))
        safe = builder.select(in_range, x, all_of(lowest))
        # Adding 1.5 * 2^mantissa rounds to a whole number, which then lies in the lowest bits.
        magic = all_of(1.5 * 2.0**mantissa)
        shifted = _fused(builder, safe, all_of(math.log2(math.e)), magic)
        k = builder.fsub(shifted, magic)
        r = _fused(builder, k, all_of(-ln2_low), _fused(builder, k, all_of(-ln2_high), safe))
        power = all_of(1.0 / math.factorial(degree))
        for term in range(degree - 1, -1, -1):
            power = _fused(builder, power, r, all_of(1.0 / math.factorial(term)))
        exponent = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [mantissa] * vector.lanes))
        grown = builder.bitcast(builder.add(builder.bitcast(power, bits), exponent), vector.llvm)
        known = builder.select(in_range, grown, all_of(0.0))
        return builder.select(builder.fcmp_unordered("uno", x, x), x, known)

    return vector(vector), made


def _fused(builder: Any, left: Any, right: Any, added: Any) -> Any:
    return builder.fadd(builder.fmul(left, right, flags=("contract",)), added, flags=("contract",))


def _int64(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _address(target: Any, builder: Any, kinds: Any, values: Any) -> Any:
    data = target.make_array(kinds[1])(target, builder, values[1]).data
    return builder.gep(data, [values[2]])


def _picked(builder: Any, vector: Any, places: Any) -> Any:
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


def _splat(builder: Any, kind: Vector, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(kind.llvm, ir.Undefined), number, ir.IntType(32)(0))
    return _picked(builder, one, [0] * kind.lanes)


def _mask(builder: Any, kind: Vector, count: Any) -> Any:
    numbers = ir.VectorType(ir.IntType(32), kind.lanes)
    narrow = builder.trunc(count, ir.IntType(32))
    one = builder.insert_element(ir.Constant(numbers, ir.Undefined), narrow, ir.IntType(32)(0))
    return builder.icmp_signed(
        "<", ir.Constant(numbers, list(range(kind.lanes))), _picked(builder, one, [0] * kind.lanes)
    )


def _masked(builder: Any, what: str, kind: Vector, operands: tuple[Any, ...]) -> Any:
    """Call LLVM's masked load (pointer, mask, otherwise) or store (vector, pointer, mask)."""
    cells = kind.llvm.as_pointer()
    align = ir.Constant(ir.IntType(32), kind.number.bitwidth // 8)
    bits = ir.VectorType(ir.IntType(1), kind.lanes)
    name = f"llvm.masked.{what}.v{kind.lanes}f{kind.number.bitwidth}.p0"
    if what == "load":
        pointer, mask, otherwise = operands
        function = _declared(builder, name, kind.llvm, [cells, ir.IntType(32), bits, kind.llvm])
        return builder.call(function, [builder.bitcast(pointer, cells), align, mask, otherwise])
    vector, pointer, mask = operands
    function = _declared(builder, name, ir.VoidType(), [kind.llvm, cells, ir.IntType(32), bits])
    return builder.call(function, [vector, builder.bitcast(pointer, cells), align, mask])


def _declared(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    return _declared_as(builder.module, ir.FunctionType(result, operands), name)
