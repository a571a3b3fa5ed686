"""Sixteen float32 numbers at a time, for Numba: the few operations the fused kernels are made of.

Numba leaves it to LLVM to find vector instructions in scalar loops, which it does not manage for small matrix products.
Here a value of type ``Lanes`` *is* an LLVM vector of sixteen floats, which LLVM maps to one AVX-512 register, two AVX
or four SSE or NEON ones: the same source is right everywhere and fast where the machine is. Multiply-adds are fused
where the machine can. Every operation is elementwise in a fixed order, so results do not depend on threads.

Matrices stand in one flat, 64-byte aligned workspace (`aligned`), rows padded with zeros to whole lanes (`padded`).
Offsets and strides count floats. Offsets are not checked: `suture.models.dense` and `suture.training.dpsgd` lay the
workspace out, and nothing else should call these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model
from numpy.typing import NDArray

from suture.models.compiled import compiled

# Numba types an intrinsic by its generator, which takes one argument more than the calls.
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic

WIDTH = 16
TILE = 4  # rows of a product computed together

# Tiles of eight lanes keep enough sums in flight to hide the latency of AVX-512's multiply-add; machines
# with sixteen shorter registers would spill them to memory.
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_INDICES = ir.VectorType(ir.IntType(32), WIDTH)
_CONTRACT = ("contract",)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes16f")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


def padded(n: int, to: int = WIDTH) -> int:
    """The next multiple of ``to``.

    >>> padded(1), padded(16), padded(65, 4)
    (16, 16, 68)
    """
    return -(-n // to) * to


def aligned(n: int) -> NDArray[np.float32]:
    """Zeros that start on a cache line, so that no lane straddles two.

    >>> aligned(5).ctypes.data % 64
    0
    """
    raw = np.zeros(n + WIDTH, np.float32)
    skip = (-raw.ctypes.data // 4) % WIDTH
    return raw[skip : skip + n]


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer())


@intrinsic
def load(typing: Any, memory: Any, offset: Any) -> Any:
    """Sixteen numbers from ``memory[offset]`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], args[0], args[1]), align=4)

    return _lanes(memory, types.int64), codegen


@intrinsic
def store(typing: Any, memory: Any, offset: Any, value: Any) -> Any:
    """Write sixteen numbers to ``memory[offset]`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _address(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.void(memory, types.int64, _lanes), codegen


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INDICES, None))


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """The same number sixteen times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return _lanes(types.float32), codegen


@intrinsic
def pick(typing: Any, memory: Any, offset: Any) -> Any:
    """``memory[offset]`` sixteen times."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _splat(builder, builder.load(builder.gep(data, [args[1]])))

    return _lanes(memory, types.int64), codegen


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        product = builder.fmul(args[0], args[1], flags=_CONTRACT)
        return builder.fadd(product, args[2], flags=_CONTRACT)

    return _lanes(_lanes, _lanes, _lanes), codegen


@intrinsic
def multiply(typing: Any, a: Any, b: Any) -> Any:
    """``a * b``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(args[0], args[1])

    return _lanes(_lanes, _lanes), codegen


@intrinsic
def subtract(typing: Any, a: Any, b: Any) -> Any:
    """``a - b``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fsub(args[0], args[1])

    return _lanes(_lanes, _lanes), codegen


@intrinsic
def where_positive(typing: Any, test: Any, value: Any) -> Any:
    """``value`` where ``test > 0``, else 0 (also where ``test`` is not a number)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(_VECTOR, None)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[1], zero)

    return _lanes(_lanes, _lanes), codegen


@intrinsic
def keep(typing: Any, count: Any, value: Any) -> Any:
    """The first ``count`` numbers, and zeros in place of the others."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wanted = builder.trunc(args[0], ir.IntType(32))
        undefined = ir.Constant(_INDICES, ir.Undefined)
        wanted = builder.insert_element(undefined, wanted, ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(wanted, undefined, ir.Constant(_INDICES, None))
        inside = builder.icmp_signed("<", ir.Constant(_INDICES, list(range(WIDTH))), wanted)
        return builder.select(inside, args[1], ir.Constant(_VECTOR, None))

    return _lanes(types.int64, _lanes), codegen


@intrinsic
def total(typing: Any, value: Any) -> Any:
    """The sum of the sixteen numbers, as a balanced tree."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, width = args[0], WIDTH
        while width > 1:
            width //= 2
            halves = [
                builder.shuffle_vector(
                    value, value, ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(at, at + width)))
                )
                for at in (0, width)
            ]
            value = builder.fadd(*halves)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return types.float32(_lanes), codegen


@intrinsic
def float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), codegen


@intrinsic
def bits_of_float(typing: Any, value: Any) -> Any:
    """The 32 bits of a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def _transpose_square(typing: Any, memory: Any, source: Any, stride: Any, target: Any, width: Any) -> Any:
    """Transpose the 16 x 16 square at ``source`` into the one at ``target``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory, source, stride, target, width = args

        def row(start: Any, step: Any, r: int) -> Any:
            offset = builder.add(start, builder.mul(step, ir.Constant(step.type, r)))
            return _address(context, builder, signature.args[0], memory, offset)

        rows = [builder.load(row(source, stride, r), align=4) for r in range(WIDTH)]
        # Swap the off-diagonal quarters of ever smaller squares.
        for size in (8, 4, 2, 1):
            low = [c if not c & size else WIDTH + c - size for c in range(WIDTH)]
            high = [c + size if not c & size else WIDTH + c for c in range(WIDTH)]
            for r in range(WIDTH):
                if not r & size:
                    pair = rows[r], rows[r + size]
                    rows[r] = builder.shuffle_vector(*pair, ir.Constant(_INDICES, low))
                    rows[r + size] = builder.shuffle_vector(*pair, ir.Constant(_INDICES, high))
        for r in range(WIDTH):
            builder.store(rows[r], row(target, width, r), align=4)
        return context.get_dummy_value()

    return types.void(memory, *[types.int64] * 4), codegen


@compiled
def transpose(m, a, rows, columns, stride, b, width):  # type: ignore[no-untyped-def]
    """Write the transpose of a rows x columns matrix at ``a`` to ``b``, in whole squares; its padding is set to zero.

    Both matrices need room up to the next multiples of 16.
    """
    for c in range(0, columns, WIDTH):
        for r in range(0, rows, WIDTH):
            _transpose_square(m, a + r * stride + c, stride, b + c * width + r, width)
        if rows % WIDTH != 0:
            last = rows // WIDTH * WIDTH
            for k in range(WIDTH):
                at = b + (c + k) * width + last
                store(m, at, keep(rows - last, load(m, at)))


def _tile(height: int, lanes: int) -> Any:
    """A product of ``height`` rows by ``lanes`` lanes, accumulated in registers."""

    @intrinsic
    def tile(
        typing: Any, m: Any, k: Any, a: Any, row: Any, step: Any, b: Any, ldb: Any, c: Any, ldc: Any, add: Any
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _emit_tile(context, builder, signature, args, height, lanes)
            return context.get_dummy_value()

        return types.void(m, *[types.int64] * 8, types.boolean), codegen

    return tile


def _emit_tile(context: Any, builder: Any, signature: Any, args: Any, height: int, lanes: int) -> None:
    memory, k, a, row, step, b, ldb, c, ldc, add = args
    base = context.make_array(signature.args[0])(context, builder, memory).data

    def at(offset: Any, extra: int = 0) -> Any:
        pointer = builder.gep(base, [builder.add(offset, ir.Constant(k.type, extra))])
        return builder.bitcast(pointer, _VECTOR.as_pointer())

    cells = [(r, v) for r in range(height) for v in range(lanes)]
    rows = [builder.mul(ir.Constant(k.type, r), ldc) for r in range(height)]
    targets = {(r, v): at(builder.add(c, rows[r]), WIDTH * v) for r, v in cells}
    sums = {cell: cgutils.alloca_once(builder, _VECTOR) for cell in cells}
    for cell in cells:
        builder.store(ir.Constant(_VECTOR, None), sums[cell])
    with builder.if_then(add):
        for cell in cells:
            builder.store(builder.load(targets[cell], align=4), sums[cell])
    left = [builder.gep(base, [builder.add(a, builder.mul(ir.Constant(k.type, r), row))]) for r in range(height)]
    with cgutils.for_range(builder, k) as loop:
        right = builder.add(b, builder.mul(loop.index, ldb))
        values = [builder.load(at(right, WIDTH * v), align=4) for v in range(lanes)]
        for r in range(height):
            scalar = _splat(builder, builder.load(builder.gep(left[r], [builder.mul(loop.index, step)])))
            for v in range(lanes):
                product = builder.fmul(scalar, values[v], flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(sums[r, v]), product, flags=_CONTRACT), sums[r, v])
    for cell in cells:
        builder.store(builder.load(sums[cell]), targets[cell], align=4)


_tile_4x1 = _tile(4, 1)
_tile_4x2 = _tile(4, 2)
_tile_8x1 = _tile(8, 1)


@compiled
def product(m, rows, columns, inner, a, row, step, b, ldb, c, ldc, add):  # type: ignore[no-untyped-def]
    """``C = A B`` (or ``C += A B``), all in ``m``: A[r, k] at ``a + r*row + k*step``, B at ``b``, C at ``c``.

    ``columns`` is a multiple of 16; rows are computed in whole tiles, so A and C need rows up to a multiple of `TILE`.
    Each cell is summed in the order of k, whatever its place in a tile: a row's result does not depend on other rows.
    """
    n = 0
    if _WIDE:
        while n + 2 * WIDTH <= columns:
            for r in range(0, rows, TILE):
                _tile_4x2(m, inner, a + r * row, row, step, b + n, ldb, c + r * ldc + n, ldc, add)
            n += 2 * WIDTH
    while n < columns:
        r = 0
        if _WIDE:
            while r + TILE < rows:
                _tile_8x1(m, inner, a + r * row, row, step, b + n, ldb, c + r * ldc + n, ldc, add)
                r += 2 * TILE
        while r < rows:
            _tile_4x1(m, inner, a + r * row, row, step, b + n, ldb, c + r * ldc + n, ldc, add)
            r += TILE
        n += WIDTH


@compiled
def inner(m, a, b, n):  # type: ignore[no-untyped-def]
    """Inner product of two runs of ``n`` numbers (a multiple of 16)."""
    result = splat(np.float32(0))
    for i in range(0, n, WIDTH):
        result = multiply_add(load(m, a + i), load(m, b + i), result)
    return total(result)
