"""Pointers, unaligned loads and stores, and the high half of a product: what numba has no name for.

All numbers are little-endian, as in a record. None of these checks bounds: the caller does.
"""

from __future__ import annotations

import sys

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.types import Buffer  # type: ignore[attr-defined]
from numba.extending import intrinsic

from core.kernels.machine import prefetch_at

if sys.byteorder != "little":
    raise ImportError("records are read in place, which needs a little-endian machine")


def _address(context, builder, kind, buffer, at):
    """Pointer to element ``at`` of a contiguous array or behind a pointer (no wrap-around of negative indices)."""
    data = buffer if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, buffer).data
    return builder.gep(data, [at])


def _is_flat(kind) -> bool:
    return isinstance(kind, types.CPointer) or (isinstance(kind, Buffer) and kind.ndim == 1 and kind.layout == "C")


def _is_bytes(kind, at) -> bool:
    return _is_flat(kind) and kind.dtype == types.uint8 and isinstance(at, types.Integer)


@intrinsic
def pointer(typing_context, array):
    """``pointer(array)``: where the elements of a contiguous array lie, to be indexed like it.

    It holds no reference, so passing it on costs nothing; whoever called the kernel keeps the array alive. There is no
    size, no check, and a negative index means what is before the array.
    """
    if not _is_flat(array):
        return None

    def generate(context, builder, signature, arguments):
        return _address(context, builder, array, arguments[0], ir.Constant(ir.IntType(64), 0))

    return types.CPointer(array.dtype)(array), generate


def _loader(name, result, llvm_type):
    def load(typing_context, array, at):
        if not _is_bytes(array, at):
            return None

        def generate(context, builder, signature, arguments):
            position = context.cast(builder, arguments[1], signature.args[1], types.intp)
            pointer = _address(context, builder, signature.args[0], arguments[0], position)
            value = builder.load(builder.bitcast(pointer, llvm_type.as_pointer()))
            value.align = 1
            return value

        return result(array, at), generate

    load.__name__ = load.__qualname__ = name
    load.__doc__ = f"``{name}(buffer, at)``: the {result} that starts at byte ``at`` of a uint8 array or pointer."
    return intrinsic(load)


def _storer(name, kind, llvm_type):
    def store(typing_context, array, at, value):
        if not _is_bytes(array, at):
            return None

        def generate(context, builder, signature, arguments):
            position = context.cast(builder, arguments[1], signature.args[1], types.intp)
            pointer = _address(context, builder, signature.args[0], arguments[0], position)
            instruction = builder.store(arguments[2], builder.bitcast(pointer, llvm_type.as_pointer()))
            instruction.align = 1
            return context.get_dummy_value()

        return types.void(array, at, kind), generate

    store.__name__ = store.__qualname__ = name
    store.__doc__ = f"``{name}(buffer, at, value)``: write a {kind} from byte ``at`` of a uint8 array or pointer on."
    return intrinsic(store)


load_u16 = _loader("load_u16", types.uint16, ir.IntType(16))
load_u32 = _loader("load_u32", types.uint32, ir.IntType(32))
load_u64 = _loader("load_u64", types.uint64, ir.IntType(64))
load_f32 = _loader("load_f32", types.float32, ir.FloatType())
store_u16 = _storer("store_u16", types.uint16, ir.IntType(16))
store_u32 = _storer("store_u32", types.uint32, ir.IntType(32))
store_u64 = _storer("store_u64", types.uint64, ir.IntType(64))
store_f32 = _storer("store_f32", types.float32, ir.FloatType())


@intrinsic
def prefetch(typing_context, array, index):
    """``prefetch(array, index)``: ask for the cache line of an element behind a pointer or of an array.

    Only a hint: nothing is read or checked, and an index past the end does no harm.
    """
    if not _is_flat(array) or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        position = context.cast(builder, arguments[1], signature.args[1], types.intp)
        address = _address(context, builder, signature.args[0], arguments[0], position)
        return prefetch_at(context, builder, address)

    return types.void(array, index), generate


@intrinsic
def multiply_high(typing_context, a, b):
    """``multiply_high(a, b)``: the upper 64 bits of the 128-bit product of two uint64."""
    if a != types.uint64 or b != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(a, b), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """``trailing_zeros(word)``: zero bits below the lowest one bit of a uint64; 64 for zero."""
    if word != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], cgutils.false_bit)

    return types.uint64(word), generate


@intrinsic
def leading_zeros(typing_context, word):
    """``leading_zeros(word)``: zero bits above the highest one bit of a uint64; 64 for zero."""
    if word != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], cgutils.false_bit)

    return types.uint64(word), generate


@njit(cache=True, nogil=True)
def load_part(buffer, at, length):
    """The ``length`` (0 to 7) bytes from ``at`` on as the low bytes of a uint64, zeros above; reads nothing else."""
    word = types.uint64(0)
    if length >= 4:
        word = types.uint64(load_u32(buffer, at))
        high = types.uint64(load_u32(buffer, at + length - 4))
        return word | (high << types.uint64(8 * (length - 4)))
    for i in range(length):
        word |= types.uint64(buffer[at + i]) << types.uint64(8 * i)
    return word


@njit(cache=True, nogil=True)
def same_bytes(a, a_at, b, b_at, length):
    """Whether ``length`` bytes of ``a`` from ``a_at`` on equal those of ``b`` from ``b_at`` on."""
    i = 0
    while i + 8 <= length:
        if load_u64(a, a_at + i) != load_u64(b, b_at + i):
            return False
        i += 8
    return load_part(a, a_at + i, length - i) == load_part(b, b_at + i, length - i)


@njit(cache=True, nogil=True)
def copy_bytes(source, source_at, target, target_at, length):
    """Copy ``length`` bytes between two arrays, in place in ``target``; the ranges do not overlap."""
    i = 0
    while i + 8 <= length:
        store_u64(target, target_at + i, load_u64(source, source_at + i))
        i += 8
    while i < length:
        target[target_at + i] = source[source_at + i]
        i += 1
