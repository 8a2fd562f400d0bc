"""What numba has no word for: prefetching a cache line, and looking at a float64 as its bits."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of ``array[index]``; changes nothing, may be of any array and is never waited for.

    Parameters
    ----------
    array : 1-d contiguous array, or pointer
    index : unsigned integer
        Not checked; a prefetch of an address outside of the array has no effect.
    """
    signature = types.void(array, index)

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        is_pointer = isinstance(array_type, types.CPointer)
        data = arguments[0] if is_pointer else context.make_array(array_type)(context, builder, arguments[0]).data
        at = context.cast(builder, arguments[1], index_type, types.uintp)
        pointer = builder.bitcast(builder.gep(data, [at]), cgutils.voidptr_t)
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]),
            "llvm.prefetch.p0",
        )
        read, keep, cached = i32(0), i32(3), i32(1)
        builder.call(function, [pointer, read, keep, cached])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def as_float(typingctx, bits):
    """The float64 that has these 64 bits."""
    signature = types.float64(types.uint64)

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, generate


@intrinsic
def as_bits(typingctx, number):
    """The 64 bits of a float64, as uint64. For numbers >= 0 they are ordered as the numbers are."""
    signature = types.uint64(types.float64)

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, generate


U0 = np.uint64(0)
U1 = np.uint64(1)
U2 = np.uint64(2)
"""Numba makes float64 of uint64 + int64, so unsigned arithmetic needs unsigned constants."""
