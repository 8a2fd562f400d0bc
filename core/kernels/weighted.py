"""Connections with a weight, of either sign, and a step sum; and an index of them as plain arrays.

A connection is a record of 8 bytes: the class in the lower 24 bits as in ``postings``, above it 16 bits of its step sum
in units of 1/4096, and 24 bits of its weight: a float32 without its last 8 bits.
"""

import numpy as np

from core.kernels.machine import (
    U0,
    U1,
    U2,
    as_single,
    inlined,
    kernel,
    load_float,
    load_word,
    single_bits,
    store_float,
    store_word,
)
from core.kernels.postings import (
    CLASS_MASK,
    LONGEST,
    N_CONNECTIONS,
    N_COUNTED,
    N_FEATURES,
    U24,
    block_of,
    class_of,
    length_of,
    make_header,
    memory_of,
    reserve,
    size_for,
)
from core.kernels.updating import find_narrow

U40 = np.uint64(40)
STEPS_MASK = np.uint64(0xFFFF)
STEPS_ONE = 4096.0
STEPS_FULL = 65_535.0
WEIGHT_ROUNDING, WEIGHT_SHIFT = np.uint64(0x80), np.uint64(8)


@inlined
def weight_of(record):
    """The weight of a record, as float64."""
    return np.float64(as_single((record >> U40) << WEIGHT_SHIFT))


@inlined
def steps_of(record):
    """The step sum of a record."""
    return np.float64((record >> U24) & STEPS_MASK) / STEPS_ONE


@inlined
def weighted_record(class_id, weight, steps):
    """A record; the weight rounded to 16 bits of mantissa, the step sum to 1/4096 and at most 16."""
    bits = (single_bits(weight) + WEIGHT_ROUNDING) >> WEIGHT_SHIFT
    units = np.uint64(min(steps * STEPS_ONE + 0.5, STEPS_FULL))
    return (bits << U40) | (units << U24) | (CLASS_MASK - class_id)


@kernel
def export_squares(arrays, lengths, totals, class_ids, weights, steps, counted):
    """Write the logical state into plain arrays.

    Parameters
    ----------
    lengths, totals : uint16, float64, shape (n_features,)
    class_ids, weights, steps : uint32, float32, uint16, shape (n_connections,)
        Feature after feature, in the order in which they came; steps in units of 1/4096.
    counted : int64, shape (1,)
        Instances that were counted.
    """
    memory, place = memory_of(arrays), U0
    for feature in range(np.uint64(len(lengths))):
        header = load_word(memory.headers, feature * U2)
        lengths[feature] = length_of(header)
        totals[feature] = load_float(memory.headers, feature * U2 + U1)
        for at in range(block_of(header), block_of(header) + length_of(header)):
            record = load_word(memory.arena, at)
            class_ids[place] = class_of(record)
            weights[place] = weight_of(record)
            steps[place] = (record >> U24) & STEPS_MASK
            place += U1
    counted[0] = load_word(memory.counters, N_COUNTED)


@kernel
def import_squares(arrays, lengths, totals, class_ids, weights, steps, counted):
    """Fill an empty index that has room; the reverse of ``export_squares``. False where the arrays are no index."""
    memory, first = memory_of(arrays), U0
    if counted[0] < 0:
        return False
    for feature in range(np.uint64(len(lengths))):
        length = np.uint64(lengths[feature])
        if not 0.0 <= totals[feature] <= np.float64(counted[0]) or (length and totals[feature] == 0.0):
            return False
        size = size_for(length, False)
        header = make_header(reserve(memory, size) if length else U0, length, size, U0)
        block = block_of(header)
        for at in range(length):
            class_id, weight = np.uint64(class_ids[first + at]), np.float64(weights[first + at])
            record = weighted_record(class_id, weight, np.float64(steps[first + at]) / STEPS_ONE)
            if class_id > CLASS_MASK or not abs(weight) < np.inf or weight_of(record) != weight:
                return False
            if find_narrow(memory.arena, block, block + at, class_id) != block + at:
                return False
            store_word(memory.arena, block + at, record)
        store_word(memory.headers, feature * U2, header)
        store_float(memory.headers, feature * U2 + U1, totals[feature])
        store_word(memory.counters, LONGEST, max(load_word(memory.counters, LONGEST), length))
        first += length
    store_word(memory.counters, N_CONNECTIONS, first)
    store_word(memory.counters, N_FEATURES, np.uint64(len(lengths)))
    store_word(memory.counters, N_COUNTED, np.uint64(counted[0]))
    return True
