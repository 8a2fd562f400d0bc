"""Primitives that numba lacks: pointers, unaligned loads and stores, prefetching, bit casts and vector lanes.

All numbers are little-endian, as in a record. Nothing here checks bounds; the caller must.

Inner kernels take addresses instead of arrays. Numba counts references to every array that it takes out of a tuple
and copies all fields of the tuple at each call; at a few nanoseconds of work per feature, that would take most of the
time.

``find_lane`` and ``place_lane`` find and insert one of eight narrow records at once. Most features have at most eight
connections, so these need no loop and hence no branch that the processor could mispredict. Lanes at or past ``n`` are
neither read nor changed: they may not exist, and their cache line is not needed. ``gather_votes`` and
``gather_weights`` convert eight records into what they add to the scores. A loop without other work then adds them.
"""

from __future__ import annotations

import sys

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.types import Buffer  # type: ignore[attr-defined]
from numba.extending import intrinsic

from abound_core.numba.decorators import inner

if sys.byteorder != "little":
    raise ImportError("records are read in place, which needs a little-endian machine")


def _address(context, builder, kind, buffer, at):
    """Return a pointer to element ``at`` of a contiguous array or pointer (without wrap-around of negative indices)."""
    data = buffer if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, buffer).data
    return builder.gep(data, [at])


def _is_flat(kind) -> bool:
    return isinstance(kind, types.CPointer) or (isinstance(kind, Buffer) and kind.ndim == 1 and kind.layout == "C")


def _is_bytes(kind, at) -> bool:
    return _is_flat(kind) and kind.dtype == types.uint8 and isinstance(at, types.Integer)


@intrinsic
def pointer(typing_context, array):
    """``pointer(array)``: the address of the elements of a contiguous array, indexed like the array.

    It holds no reference, so passing it on costs nothing; the caller of the kernel keeps the array alive. An array that
    a kernel makes is freed after its last use, in spite of pointers to it. There is no size and no check; a negative
    index reads memory before the array. Elements of an array with several dimensions are in C order.
    """
    if not isinstance(array, types.CPointer) and not (isinstance(array, Buffer) and array.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        return _address(context, builder, array, arguments[0], ir.Constant(ir.IntType(64), 0))

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def borrowed(typing_context, array):
    """``borrowed(array)``: the same array, without a reference.

    Slices of it cost nothing to make and to drop. The caller of the kernel keeps the array alive.
    """

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        for name in ("meminfo", "parent"):
            setattr(view, name, cgutils.get_null_value(getattr(view, name).type))
        return view._getvalue()

    return array(array), generate


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
    """``prefetch(array, index)``: prefetch the cache line of an element of an array or pointer.

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


@inner
def load_part(buffer, at, length):
    """Return the ``length`` (0 to 7) bytes from ``at`` on as the low bytes of a uint64; reads nothing else."""
    word = types.uint64(0)
    if length >= 4:
        word = types.uint64(load_u32(buffer, at))
        high = types.uint64(load_u32(buffer, at + length - 4))
        return word | (high << types.uint64(8 * (length - 4)))
    for i in range(length):
        word |= types.uint64(buffer[at + i]) << types.uint64(8 * i)
    return word


@inner
def same_bytes(a, a_at, b, b_at, length):
    """Return whether ``length`` bytes of ``a`` from ``a_at`` on equal those of ``b`` from ``b_at`` on."""
    i = 0
    while i + 8 <= length:
        if load_u64(a, a_at + i) != load_u64(b, b_at + i):
            return False
        i += 8
    return load_part(a, a_at + i, length - i) == load_part(b, b_at + i, length - i)


@inner
def copy_bytes(source, source_at, target, target_at, length):
    """Copy ``length`` bytes between two arrays, in place in ``target``; the ranges must not overlap."""
    i = 0
    while i + 8 <= length:
        store_u64(target, target_at + i, load_u64(source, source_at + i))
        i += 8
    while i < length:
        target[target_at + i] = source[source_at + i]
        i += 1


WORD = ir.IntType(64)


def address_in(builder, base, index, kind):
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


load_byte = intrinsic(_load(ir.IntType(8), types.uint8))
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
``base``, both uint64. Nothing is checked.
"""


@intrinsic
def address_of(typingctx, array):
    """Return the address of the first element of a contiguous array, as uint64."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(view.data, WORD)

    return types.uint64(array), generate


def _pointer_at(kind):
    def pointer_at(typingctx, base):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.uint64), generate

    return pointer_at


ids_at = intrinsic(_pointer_at(types.int32))
floats_at = intrinsic(_pointer_at(types.float64))
"""``ids_at(base)``, ``floats_at(base)``: a pointer to int32 or float64 from an address; see ``pointer``."""


def prefetch_at(context, builder, pointer):
    """Emit a prefetch of the cache line at ``pointer``."""
    i32 = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]), "llvm.prefetch.p0"
    )
    read, keep, data = i32(0), i32(3), i32(1)
    builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), read, keep, data])
    return context.get_dummy_value()


@intrinsic
def prefetch_word(typingctx, base, index):
    """Prefetch the 8-byte word ``index`` from the address ``base`` on; accepts any address, and never waits."""

    def generate(context, builder, signature, arguments):
        return prefetch_at(context, builder, address_in(builder, *arguments, WORD))

    return types.void(types.uint64, types.uint64), generate


@intrinsic
def as_float(typingctx, bits):
    """Return the float64 with these 64 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def as_bits(typingctx, number):
    """Return the 64 bits of a float64, as uint64. For numbers >= 0 their order is that of the numbers."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], WORD)

    return types.uint64(types.float64), generate


@intrinsic
def as_single(typingctx, bits):
    """Return the float32 with the lower 32 of these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.uint64), generate


@intrinsic
def single_bits(typingctx, number):
    """Return the 32 bits of a float64, rounded to float32, as uint64."""

    def generate(context, builder, signature, arguments):
        rounded = builder.fptrunc(arguments[0], ir.FloatType())
        return builder.zext(builder.bitcast(rounded, ir.IntType(32)), WORD)

    return types.uint64(types.float64), generate


U0 = np.uint64(0)
U1 = np.uint64(1)
U2 = np.uint64(2)
"""Numba converts uint64 + int64 to float64, so unsigned arithmetic needs unsigned constants."""

I0 = np.int64(0)
YES = np.bool_(True)
NO = np.bool_(False)
"""Numba compiles a kernel once more for each literal number or bool among its arguments. These are not literals."""


LANES = 8
I1, I32 = ir.IntType(1), ir.IntType(32)
WORDS = ir.VectorType(WORD, LANES)
LANE_NUMBERS = ir.Constant(WORDS, list(range(LANES)))
SHIFTED_BY_ONE = ir.Constant(ir.VectorType(I32, LANES), [LANES, *range(LANES - 1)])
CLASS_BITS = 24


def _splat(builder, scalar):
    kind = ir.VectorType(scalar.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(
        one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    )


def _all(number):
    return ir.Constant(WORDS, [number] * LANES)


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _load_lanes(builder, base, index, lanes):
    """Load the records from word ``index`` on into the lanes that are set, 0 into the others."""
    pointer = builder.bitcast(address_in(builder, base, index, WORD), WORDS.as_pointer())
    return _call(builder, "llvm.masked.load.v8i64.p0", WORDS, pointer, I32(8), lanes, _all(0))


def _below(builder, n):
    return builder.icmp_unsigned("<", LANE_NUMBERS, _splat(builder, n))


def _bits(builder, flags):
    return builder.zext(builder.bitcast(flags, ir.IntType(LANES)), WORD)


@intrinsic
def find_lane(typingctx, arena, first, n, key):
    """Return which of the ``n`` <= 8 records from place ``first`` on has ``key`` in its lower 24 bits; 8 if none."""

    def generate(context, builder, signature, arguments):
        arena, first, n, key = arguments
        lanes = _below(builder, n)
        keys = builder.and_(_load_lanes(builder, arena, first, lanes), _all((1 << CLASS_BITS) - 1))
        found = builder.and_(builder.icmp_unsigned("==", keys, _splat(builder, key)), lanes)
        bits = builder.or_(_bits(builder, found), WORD(1 << LANES))
        return _call(builder, "llvm.cttz.i64", WORD, bits, I1(1))

    return types.uint64(*[types.uint64] * 4), generate


@intrinsic
def place_lane(typingctx, arena, first, n, record):
    """Insert a record among the ``n`` (at most 7) in descending order from place ``first`` on; place ``n`` is free."""

    def generate(context, builder, signature, arguments):
        arena, first, n, record = arguments
        lanes = _below(builder, builder.add(n, WORD(1)))
        old, new = _load_lanes(builder, arena, first, lanes), _splat(builder, record)
        before = builder.and_(builder.icmp_unsigned(">", old, new), _below(builder, n))
        place = _splat(builder, _call(builder, "llvm.ctpop.i64", WORD, _bits(builder, before)))
        moved = builder.shuffle_vector(old, new, SHIFTED_BY_ONE)
        moved = builder.select(builder.icmp_unsigned("==", LANE_NUMBERS, place), new, moved)
        merged = builder.select(builder.icmp_unsigned("<", LANE_NUMBERS, place), old, moved)
        pointer = builder.bitcast(address_in(builder, arena, first, WORD), WORDS.as_pointer())
        _call(builder, "llvm.masked.store.v8i64.p0", ir.VoidType(), merged, pointer, I32(8), lanes)
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 4), generate


GATHERED = 512  # terms gathered before they are added to the scores

FLOATS, IDS, SINGLES = (ir.VectorType(kind, LANES) for kind in (ir.DoubleType(), I32, ir.FloatType()))


def _store_terms(builder, terms, records, memory, index):
    """Store eight terms, and behind the last possible one the class ids of their records."""
    ids = builder.and_(builder.xor(records, _all(2**64 - 1)), _all((1 << CLASS_BITS) - 1))
    behind = builder.add(memory, WORD(8 * (GATHERED + LANES)))
    for vector, base, kind, align in (
        (terms, memory, ir.DoubleType(), 8),
        (builder.trunc(ids, IDS), behind, I32, 4),
    ):
        pointer = builder.bitcast(address_in(builder, base, index, kind), vector.type.as_pointer())
        builder.store(vector, pointer, align=align)


@intrinsic
def memory_of_terms(typingctx):
    """Return the addresses of stack memory for ``GATHERED`` terms and eight more: float64, then their class ids."""

    def generate(context, builder, signature, arguments):
        memory = cgutils.alloca_once(builder, ir.ArrayType(WORD, (GATHERED + LANES) * 3 // 2))
        first = builder.ptrtoint(memory, WORD)
        behind = builder.add(first, WORD(8 * (GATHERED + LANES)))
        return context.make_tuple(builder, signature.return_type, (first, behind))

    return types.UniTuple(types.uint64, 2)(), generate


@intrinsic
def floats_on_stack(typingctx, n):
    """Return a pointer to stack memory for ``n`` float64, a constant; see ``pointer``. Nothing is written."""
    if not isinstance(n, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):
        memory = cgutils.alloca_once(builder, ir.ArrayType(ir.DoubleType(), n.literal_value))
        return builder.bitcast(memory, context.get_value_type(signature.return_type))

    return types.CPointer(types.float64)(n), generate


@intrinsic
def gather_votes(typingctx, arena, first, n, total, rating, value, memory, index):
    """Write the votes of the ``n`` <= 8 narrow records from place ``first`` on, and their class ids.

    ``rating * (count / total) * value``, rounded in this order of operations. ``memory`` is the first address of
    ``memory_of_terms``; eight terms are written from ``index`` on, whatever ``n`` is.
    """

    def generate(context, builder, signature, arguments):
        arena, first, n, total, rating, value, memory, index = arguments
        records = _load_lanes(builder, arena, first, _below(builder, n))
        bits = builder.shl(builder.lshr(records, _all(24)), _all(20))
        counts = builder.bitcast(builder.add(bits, _all(896 << 52)), FLOATS)
        weights = builder.fdiv(counts, _splat(builder, total))
        votes = builder.fmul(builder.fmul(_splat(builder, rating), weights), _splat(builder, value))
        _store_terms(builder, votes, records, memory, index)
        return context.get_dummy_value()

    f, w = types.float64, types.uint64
    return types.void(w, w, w, f, f, f, w, w), generate


@intrinsic
def gather_weights(typingctx, arena, first, n, value, memory, index):
    """Do the same as ``gather_votes`` for records with weights: ``value * weight``."""

    def generate(context, builder, signature, arguments):
        arena, first, n, value, memory, index = arguments
        records = _load_lanes(builder, arena, first, _below(builder, n))
        bits = builder.shl(builder.trunc(builder.lshr(records, _all(40)), IDS), ir.Constant(IDS, [8] * LANES))
        weights = builder.fpext(builder.bitcast(bits, SINGLES), FLOATS)
        _store_terms(builder, builder.fmul(_splat(builder, value), weights), records, memory, index)
        return context.get_dummy_value()

    f, w = types.float64, types.uint64
    return types.void(w, w, w, f, w, w), generate
