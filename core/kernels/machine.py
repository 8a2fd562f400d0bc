"""What numba has no word for: words in memory by their address, prefetching, a float64 as its bits.

Inner kernels take addresses instead of arrays. Numba counts references to every array that it takes out of a tuple and
copies all fields of the tuple at each call; for work of a few nanoseconds a feature that is most of the time.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

kernel = njit(cache=True, nogil=True, error_model="numpy")
"""Compiled when first called, once for a machine. Division by zero gives what IEEE 754 says instead of an exception."""

inlined = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
"""A kernel that becomes part of each kernel that calls it."""

inner = njit(cache=True, nogil=True, no_cpython_wrapper=True)  # type: ignore[call-overload]
"""A kernel for other kernels only: a call from Python crashes. For arguments that hold many arrays it compiles faster,
by up to half, since what takes them out of Python objects is left out."""

WORD = ir.IntType(64)


def address_in(builder, base, index, kind):
    """Pointer to element ``index`` of type ``kind`` from the address ``base`` on."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


def _load(kind, result):
    def load(typingctx, base, index):
        def generate(context, builder, signature, arguments):
            return builder.load(address_in(builder, *arguments, kind))

        return result(types.uint64, types.uint64), generate

    return load


def _store(kind, value):
    def store(typingctx, base, index, number):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[2], address_in(builder, *arguments[:2], kind))
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, value), generate

    return store


load_word = intrinsic(_load(WORD, types.uint64))
load_float = intrinsic(_load(ir.DoubleType(), types.float64))
load_id = intrinsic(_load(ir.IntType(32), types.uint32))
load_single = intrinsic(_load(ir.FloatType(), types.float32))
store_word = intrinsic(_store(WORD, types.uint64))
store_float = intrinsic(_store(ir.DoubleType(), types.float64))
store_id = intrinsic(_store(ir.IntType(32), types.uint32))
store_single = intrinsic(_store(ir.FloatType(), types.float32))
store_byte = intrinsic(_store(ir.IntType(8), types.uint8))
"""``load_...(base, index)``, ``store_...(base, index, value)``: element ``index`` of the array that starts at address
``base``, both uint64. Nothing is checked."""


@intrinsic
def address_of(typingctx, array):
    """The address of the first element of a contiguous array, as uint64."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(view.data, WORD)

    return types.uint64(array), generate


def prefetch_at(context, builder, pointer):
    """Emit a prefetch of the cache line that ``pointer`` is in."""
    i32 = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]), "llvm.prefetch.p0"
    )
    read, keep, data = i32(0), i32(3), i32(1)
    builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), read, keep, data])
    return context.get_dummy_value()


@intrinsic
def prefetch_word(typingctx, base, index):
    """Ask for the cache line of the 8-byte word ``index`` from the address ``base`` on, both uint64.

    Changes nothing, may be of any place and is never waited for.
    """

    def generate(context, builder, signature, arguments):
        return prefetch_at(context, builder, address_in(builder, *arguments, WORD))

    return types.void(types.uint64, types.uint64), generate


@intrinsic
def as_float(typingctx, bits):
    """The float64 that has these 64 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def as_bits(typingctx, number):
    """The 64 bits of a float64, as uint64. For numbers >= 0 they are ordered as the numbers are."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], WORD)

    return types.uint64(types.float64), generate


@intrinsic
def as_single(typingctx, bits):
    """The float32 that has the lower 32 of these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.uint64), generate


@intrinsic
def single_bits(typingctx, number):
    """The 32 bits of a float64, rounded to float32, as uint64."""

    def generate(context, builder, signature, arguments):
        rounded = builder.fptrunc(arguments[0], ir.FloatType())
        return builder.zext(builder.bitcast(rounded, ir.IntType(32)), WORD)

    return types.uint64(types.float64), generate


U0 = np.uint64(0)
U1 = np.uint64(1)
U2 = np.uint64(2)
"""Numba makes float64 of uint64 + int64, so unsigned arithmetic needs unsigned constants."""
