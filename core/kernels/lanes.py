"""Eight narrow records at once: finding one among them, and putting one in its place.

Most features have at most eight connections, so that these need no loop and hence no branch that the processor could
guess wrong. Lanes at or past ``n`` are neither read nor changed: they may not be there, and their cache line is not
wanted.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from core.kernels.machine import WORD, address_in

LANES = 8
I1, I32 = ir.IntType(1), ir.IntType(32)
WORDS = ir.VectorType(WORD, LANES)
LANE_NUMBERS = ir.Constant(WORDS, list(range(LANES)))
SHIFTED_BY_ONE = ir.Constant(ir.VectorType(I32, LANES), [LANES, *range(LANES - 1)])
CLASS_BITS = 24


def _splat(builder, scalar):
    """A vector with the same number in all lanes."""
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


def _load(builder, base, index, lanes):
    """The records from word ``index`` on in the lanes that are set, 0 in the others."""
    pointer = builder.bitcast(address_in(builder, base, index, WORD), WORDS.as_pointer())
    return _call(builder, "llvm.masked.load.v8i64.p0", WORDS, pointer, I32(8), lanes, _all(0))


def _below(builder, n):
    return builder.icmp_unsigned("<", LANE_NUMBERS, _splat(builder, n))


def _bits(builder, flags):
    """One bit for each lane, as a word."""
    return builder.zext(builder.bitcast(flags, ir.IntType(LANES)), WORD)


@intrinsic
def find_lane(typingctx, arena, first, n, key):
    """Which of the ``n`` (at most 8) records from place ``first`` on has ``key`` in its lower 24 bits; 8: none has."""

    def generate(context, builder, signature, arguments):
        arena, first, n, key = arguments
        lanes = _below(builder, n)
        keys = builder.and_(_load(builder, arena, first, lanes), _all((1 << CLASS_BITS) - 1))
        found = builder.and_(builder.icmp_unsigned("==", keys, _splat(builder, key)), lanes)
        bits = builder.or_(_bits(builder, found), WORD(1 << LANES))
        return _call(builder, "llvm.cttz.i64", WORD, bits, I1(1))

    return types.uint64(*[types.uint64] * 4), generate


@intrinsic
def place_lane(typingctx, arena, first, n, record):
    """Insert a record among the ``n`` (at most 7) in falling order from place ``first`` on; place ``n`` is free."""

    def generate(context, builder, signature, arguments):
        arena, first, n, record = arguments
        lanes = _below(builder, builder.add(n, WORD(1)))
        old, new = _load(builder, arena, first, lanes), _splat(builder, record)
        before = builder.and_(builder.icmp_unsigned(">", old, new), _below(builder, n))
        place = _splat(builder, _call(builder, "llvm.ctpop.i64", WORD, _bits(builder, before)))
        moved = builder.shuffle_vector(old, new, SHIFTED_BY_ONE)
        moved = builder.select(builder.icmp_unsigned("==", LANE_NUMBERS, place), new, moved)
        merged = builder.select(builder.icmp_unsigned("<", LANE_NUMBERS, place), old, moved)
        pointer = builder.bitcast(address_in(builder, arena, first, WORD), WORDS.as_pointer())
        _call(builder, "llvm.masked.store.v8i64.p0", ir.VoidType(), merged, pointer, I32(8), lanes)
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 4), generate
