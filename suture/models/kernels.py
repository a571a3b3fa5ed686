"""What compiled kernels are made of: the compiler, and sixteen float32 numbers at a time.

**Compiler.** Numba recompiles a cached function when the file it stands in changes, but not when a
function that it calls changes in another file. A corrected noise generator or clipping rule could
then lie unused behind a stale cache, so the key used here is a digest of all sources of
`suture.models` and `suture.training`.

**Lanes.** LLVM does not find vector instructions in the scalar loops of small matrix products. Here
a value of type ``Lanes`` *is* an LLVM vector of sixteen floats, which becomes one AVX-512 register,
two AVX registers or four SSE or NEON ones: the same source is right everywhere and fast where the
machine is. Multiply-adds are fused where the machine can. Every operation is elementwise in a fixed
order, so results do not depend on threads.

Matrices stand in one flat, 64-byte aligned workspace (`aligned`), with rows padded with zeros to
whole lanes (`padded`). Offsets and strides count floats. Offsets are not checked: only the modules
that lay a workspace out (`suture.models.dense`, `suture.training.affine`) and their kernels may
call these functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from llvmlite.ir import IRBuilder, Value
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import _Intrinsic, intrinsic, models, register_model
from numba.types import Type
from numpy.typing import NDArray

WIDTH = 16
TILE = 4  # rows of a product computed together

# Tiles of eight lanes keep enough sums in flight to hide the latency of AVX-512's multiply-add;
# machines with sixteen shorter registers would spill them to memory.
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_INT = ir.IntType(32)
_INDICES = ir.VectorType(_INT, WIDTH)
_ZEROS = ir.Constant(_VECTOR, None)
_CONTRACT = ("contract",)


@cache
def sources_digest() -> str:
    """A digest of every source file that a kernel may be compiled from."""
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[1]
    for path in sorted([*package.glob("models/*.py"), *package.glob("training/*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with Numba on first use, without the GIL, with multiply-adds fused and no other
    liberty with floats.

    Division follows IEEE 754 (as NumPy's does): Python's check for zero is a branch, which keeps
    LLVM from vectorising.
    """
    dispatcher = njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)
    dispatcher.enable_caching()
    dispatcher._cache._cache_file._source_stamp = sources_digest()
    return dispatcher


class _LanesType(Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes16f")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: object, lanes: Type) -> None:
        super().__init__(manager, lanes, _VECTOR)


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


def _operation(
    result: Type, given: tuple[Type, ...], write: Callable[..., Value | None]
) -> _Intrinsic:
    """An operation for kernels; ``write`` writes its LLVM code, and gets a pointer for an array."""

    @intrinsic
    @wraps(write)  # Numba reads the number of arguments off the signature
    def operation(typing: object, *args: Type) -> tuple[Signature, Callable[..., Value]]:
        def emit(
            context: BaseContext,
            builder: IRBuilder,
            signature: Signature,
            values: tuple[Value, ...],
        ) -> Value:
            arguments = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Array)
                else value
                for kind, value in zip(signature.args, values, strict=True)
            ]
            written = write(builder, *arguments)
            return context.get_dummy_value() if written is None else written

        kinds = (arg if kind is _MEMORY else kind for kind, arg in zip(given, args, strict=True))
        return result(*kinds), emit

    return operation


_MEMORY = types.Array
_OFFSET = types.int64


def _at(builder: IRBuilder, data: Value, offset: Value) -> Value:
    return builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer())


def _load(builder: IRBuilder, data: Value, offset: Value) -> Value:
    return builder.load(_at(builder, data, offset), align=4)


def _store(builder: IRBuilder, data: Value, offset: Value, value: Value) -> None:
    builder.store(value, _at(builder, data, offset), align=4)


def _splat(builder: IRBuilder, scalar: Value, vector: Type) -> Value:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INDICES, None))


def _multiply_add(builder: IRBuilder, a: Value, b: Value, c: Value) -> Value:
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def _where_positive(builder: IRBuilder, test: Value, value: Value) -> Value:
    return builder.select(builder.fcmp_ordered(">", test, _ZEROS), value, _ZEROS)


def _keep(builder: IRBuilder, count: Value, value: Value) -> Value:
    wanted = _splat(builder, builder.trunc(count, _INT), _INDICES)
    inside = builder.icmp_signed("<", ir.Constant(_INDICES, list(range(WIDTH))), wanted)
    return builder.select(inside, value, _ZEROS)


def _total(builder: IRBuilder, value: Value) -> Value:
    width = WIDTH
    while width > 1:
        width //= 2
        half = ir.VectorType(_INT, width)
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(half, list(range(at, at + width))))
            for at in (0, width)
        )
        value = builder.fadd(low, high)
    return builder.extract_element(value, ir.Constant(_INT, 0))


def _transpose_square(
    builder: IRBuilder, data: Value, source: Value, stride: Value, target: Value, width: Value
) -> None:
    def row(start: Value, step: Value, r: int) -> Value:
        return builder.add(start, builder.mul(step, ir.Constant(step.type, r)))

    rows = [_load(builder, data, row(source, stride, r)) for r in range(WIDTH)]
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
        _store(builder, data, row(target, width, r), rows[r])


load = _operation(_lanes, (_MEMORY, _OFFSET), _load)
"""Sixteen numbers from ``memory[offset]`` on."""
store = _operation(types.void, (_MEMORY, _OFFSET, _lanes), _store)
"""Write sixteen numbers to ``memory[offset]`` on."""
splat = _operation(_lanes, (types.float32,), lambda b, x: _splat(b, x, _VECTOR))
"""The same number sixteen times."""
total = _operation(types.float32, (_lanes,), _total)
"""The sum of the sixteen numbers, as a balanced tree."""
float_of_bits = _operation(types.float32, (types.int32,), lambda b, x: b.bitcast(x, _FLOAT))
"""The float32 with these 32 bits."""
bits_of_float = _operation(types.int32, (types.float32,), lambda b, x: b.bitcast(x, _INT))
"""The 32 bits of a float32."""
multiply = _operation(_lanes, (_lanes, _lanes), lambda builder, a, b: builder.fmul(a, b))
"""``a * b``."""
subtract = _operation(_lanes, (_lanes, _lanes), lambda builder, a, b: builder.fsub(a, b))
"""``a - b``."""
multiply_add = _operation(_lanes, (_lanes, _lanes, _lanes), _multiply_add)
"""``a * b + c``."""
where_positive = _operation(_lanes, (_lanes, _lanes), _where_positive)
"""``b`` where ``a > 0``, else 0 (also where ``a`` is not a number)."""
keep = _operation(_lanes, (types.int64, _lanes), _keep)
"""The first ``a`` numbers of ``b``, and zeros in place of the others."""
_transpose = _operation(types.void, (_MEMORY, *[_OFFSET] * 4), _transpose_square)
"""Transpose the 16 x 16 square at ``source`` into the one at ``target``."""


@compiled
def transpose(m, a, rows, columns, stride, b, width):  # type: ignore[no-untyped-def]
    """Write the transpose of a rows x columns matrix at ``a`` to ``b``, in whole squares; its
    padding is set to zero.

    Both matrices need room up to the next multiples of 16.
    """
    for c in range(0, columns, WIDTH):
        for r in range(0, rows, WIDTH):
            _transpose(m, a + r * stride + c, stride, b + c * width + r, width)
        if rows % WIDTH != 0:
            last = rows // WIDTH * WIDTH
            for k in range(WIDTH):
                at = b + (c + k) * width + last
                store(m, at, keep(rows - last, load(m, at)))


def _tile(height: int, lanes: int) -> _Intrinsic:
    """A product of ``height`` rows by ``lanes`` lanes, accumulated in registers."""

    def write(
        builder: IRBuilder, data: Value, k: Value, a: Value, row: Value, step: Value,
        b: Value, ldb: Value, c: Value, ldc: Value, add: Value,
    ) -> None:  # fmt: skip
        def at(offset: Value, extra: int) -> Value:
            return _at(builder, data, builder.add(offset, ir.Constant(k.type, extra)))

        cells = [(r, v) for r in range(height) for v in range(lanes)]
        rows = [builder.mul(ir.Constant(k.type, r), ldc) for r in range(height)]
        targets = {(r, v): at(builder.add(c, rows[r]), WIDTH * v) for r, v in cells}
        sums = {cell: cgutils.alloca_once(builder, _VECTOR) for cell in cells}
        for cell in cells:
            builder.store(_ZEROS, sums[cell])
        with builder.if_then(add):
            for cell in cells:
                builder.store(builder.load(targets[cell], align=4), sums[cell])
        left = [
            builder.gep(data, [builder.add(a, builder.mul(ir.Constant(k.type, r), row))])
            for r in range(height)
        ]
        with cgutils.for_range(builder, k) as loop:
            right = builder.add(b, builder.mul(loop.index, ldb))
            values = [builder.load(at(right, WIDTH * v), align=4) for v in range(lanes)]
            for r in range(height):
                here = builder.gep(left[r], [builder.mul(loop.index, step)])
                scalar = _splat(builder, builder.load(here), _VECTOR)
                for v in range(lanes):
                    sum_ = _multiply_add(builder, scalar, values[v], builder.load(sums[r, v]))
                    builder.store(sum_, sums[r, v])
        for cell in cells:
            builder.store(builder.load(sums[cell]), targets[cell], align=4)

    return _operation(types.void, (_MEMORY, *[_OFFSET] * 8, types.boolean), write)


_tile_4x1 = _tile(4, 1)
_tile_4x2 = _tile(4, 2)
_tile_8x1 = _tile(8, 1)


@compiled
def product(m, rows, columns, inner, a, row, step, b, ldb, c, ldc, add):  # type: ignore[no-untyped-def]
    """``C = A B`` (or ``C += A B``), all in ``m``: A[r, k] at ``a + r*row + k*step``, B at ``b``, C
    at ``c``.

    ``columns`` is a multiple of 16; rows are computed in whole tiles, so A and C need rows up to a
    multiple of `TILE`. Each cell is summed in the order of k, whatever its place in a tile: a row's
    result does not depend on other rows.
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
