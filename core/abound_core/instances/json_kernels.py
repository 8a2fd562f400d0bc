"""Conversion of a text's terms and a JSON features object to a vector: the usual case in one kernel.

A usual object has only numbers, strings, true, false and arrays of strings as values. For everything else, and for
invalid input, the kernel returns UNUSUAL. ``abound_core.instances.json_fallback`` then reads the input again and
reports errors. Both give the same bytes.

The code for each pair is forced into one function; separate functions took twice the time.

Keys are collected in ``memory`` from a fixed place on, one after the other as in the final vector. Values and lengths
are written before them once all are known, so nothing is moved. A scratch table finds repeated keys. Its hash has no
secret, so attackers could choose colliding keys: after ``MOST_PROBES`` steps an instance counts as unusual.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from abound_core.instances.decimals_kernels import read_number, read_short
from abound_core.instances.siphash_kernels import mix
from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import (
    copy_bytes,
    load_part,
    load_u32,
    load_u64,
    pointer,
    same_bytes,
    store_f32,
    store_u16,
    store_u32,
    store_u64,
    trailing_zeros,
)

MOST_COUNTED = 4096
_WEIGHTS = np.array([0.0] + [1.0 + math.log(count) for count in range(1, MOST_COUNTED)])
"""1 + ln(count) of a term, as plain Python computes it; an instance with a more frequent term is unusual."""

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)
_SPACES = np.uint64(0x2020202020202020)
_TRUE, _FALS, _NULL = 0x65757274, 0x736C6166, 0x6C6C756E
_ESCAPES = np.frombuffer(b'"\\/bfnrt', np.uint8)
_MEANINGS = np.frombuffer(b'"\\/\b\f\n\r\t', np.uint8)


class JsonSource(NamedTuple):
    data: np.ndarray
    size: int


@inlined
def _after_space(data, at):
    """Return the first byte from ``at`` on that is not white space. The source must not end with it."""
    while data[at] == 32 or 9 <= data[at] <= 10 or data[at] == 13:
        at += 1
    return at


@inner
def _hexadecimal(data, at):
    """Return the number of four hexadecimal digits, or -1. Reads nothing after the first invalid one."""
    number = 0
    for i in range(4):
        byte = np.int64(data[at + i])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        number = 16 * number + digit
    return number


@inner
def _store_letter(memory, to, letter):
    """Write a code point as UTF-8; return its number of bytes."""
    if letter < 0x80:
        memory[to] = letter
        return 1
    n = 2 if letter < 0x800 else 3 if letter < 0x10000 else 4
    for i in range(n - 1, 0, -1):
        memory[to + i] = 0x80 | (letter & 0x3F)
        letter >>= 6
    memory[to] = letter | (0xC0 if n == 2 else 0xE0 if n == 3 else 0xF0)
    return n


@inner
def _escaped(data, at):
    """Return the code point after a backslash, -1 if invalid or half of a surrogate pair, and where it ends."""
    byte = data[at]
    for i in range(len(_ESCAPES)):
        if byte == _ESCAPES[i]:
            return np.int64(_MEANINGS[i]), at + 1
    letter = _hexadecimal(data, at + 1) if byte == 117 else -1
    if letter < 0xD800 or letter > 0xDFFF:
        return np.int64(letter), at + 5
    if letter > 0xDBFF or data[at + 5] != 92 or data[at + 6] != 117:
        return np.int64(-1), at
    low = _hexadecimal(data, at + 7)
    if low < 0xDC00 or low > 0xDFFF:
        return np.int64(-1), at
    return np.int64(0x10000 + ((letter - 0xD800) << 10) + low - 0xDC00), at + 11


@inlined
def _is_normal(letter):
    """Return whether an escaped character is one of those that stay as they are: ASCII, Latin, Cyrillic and Han."""
    return 32 <= letter <= 126 or 0xC0 <= letter <= 0x24F or 0x400 <= letter <= 0x482 or 0x4E00 <= letter <= 0x9FFF


@inlined
def _copy_string(source, at, memory, to, most, normalize):
    """Copy a string from after its opening quote to ``memory``, with escapes decoded.

    Returns the position of its closing quote and its length in bytes. The position is -1 if the string is malformed,
    has no end, has more than ``most`` bytes, or may have to be normalized: the caller looks at bytes that are not
    ASCII. Writes up to 8 bytes more than the string has.
    """
    data, size, first = source.data, source.size, to
    while to - first <= most:
        left = size - at
        word = load_u64(data, at) if left >= 8 else load_part(data, at, left)
        quote, slash = word ^ _QUOTES, word ^ _BACKSLASHES
        ends = (((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((word - _SPACES) & ~word)) & _HIGHS
        store_u64(memory, to, word)
        if ends == 0:
            at += 8
            to += 8
            continue
        plain = np.int64(trailing_zeros(ends) >> np.uint64(3))
        at += plain
        to += plain
        if at >= size or to - first > most:
            break
        if data[at] == 34:
            if normalize and to > first and (memory[first] == 32 or memory[to - 1] == 32):
                break
            return at, to - first
        if data[at] != 92:
            break
        letter, at = _escaped(data, at + 1)
        if letter < 0 or (normalize and not _is_normal(letter)):
            break
        to += _store_letter(memory, to, letter)
    return np.int64(-1), np.int64(0)


@inner
def _add_string(draft, source, at, to, length):
    """Add a string value: append ``=`` and the string after the quote before ``at`` to the key at ``to``.

    Returns where the string ends in the source and where the next key goes; the latter is UNUSUAL on failure.
    """
    draft.memory[to + length] = 61
    length += 1
    room, normalize = draft.rules[MAX_KEY_BYTES] - length, draft.rules[NORMALIZE]
    end, more = _copy_string(source, at, draft.memory, to + length, room, normalize)
    if end < 0:
        return end, np.int64(UNUSUAL)
    if normalize and more == 0:
        return end + 1, to
    return end + 1, add(draft, to, length + more, 1.0, 0.0)


@inner
def _add_list(draft, source, at, to, length):
    """Add a list of strings, with ``at`` after its bracket. Return the values of ``_add_string``, or NO_ROOM."""
    data, name_at = source.data, to
    at = _after_space(data, at)
    if data[at] == 93:
        return at + 1, to
    while data[at] == 34:
        if draft.room - to < 2 * draft.rules[MAX_KEY_BYTES] + 32:
            return at, np.int64(NO_ROOM)
        if to > name_at:
            copy_bytes(draft.memory, name_at, draft.memory, to, length)
        at, to = _add_string(draft, source, at + 1, to, length)
        if to < 0:
            return at, to
        at = _after_space(data, at)
        if data[at] == 93:
            return at + 1, to
        if data[at] != 44:
            break
        at = _after_space(data, at + 1)
    return at, np.int64(UNUSUAL)


@inlined
def _add_number(draft, source, at, to, length):
    """Add the number at ``at`` as the value of the key at ``to``. Return the values of ``_add_string``."""
    value, end = read_short(source.data, at) if at + 10 < source.size else (0.0, np.int64(-1))
    if end < 0:
        value, end = read_number(source.data, at)
    if end < 0:
        return end, np.int64(UNUSUAL)
    if value < 0 and draft.rules[SPLIT]:
        if length + 2 > draft.rules[MAX_KEY_BYTES]:
            return end, np.int64(UNUSUAL)
        draft.memory[to + length] = 61
        draft.memory[to + length + 1] = 45
        value, length = -value, length + 2
    if not value > 0:
        return end, to
    if draft.rules[SCALED] and value > 1.0:
        return end, _add_large(draft, to, length, value)
    return end, add(draft, to, length, value, value)


@inner
def _add_large(draft, at, length, value):
    """Add a number above 1 of a model that scales numbers; return where the next key goes, or UNUSUAL."""
    if value <= MOST_OF_A_COUNT and value == np.floor(value):
        draft.rules[HAS_COUNT] = 1
        return add(draft, at, length, value, value)
    draft.rules[HAS_SCALED] = 1
    scaled = scaled_number(value)
    to = add(draft, at, length, scaled, scaled)
    magnitude = np.int64(math.frexp(value)[1]) - 1
    digits = 1 if magnitude < 10 else 2 if magnitude < 100 else 3 if magnitude < 1000 else 4
    if to < 0 or length + 1 + digits > draft.rules[MAX_KEY_BYTES]:
        return to
    if to > at:
        copy_bytes(draft.memory, at, draft.memory, to, length)
    draft.memory[to + length] = 64
    for i in range(to + length + digits, to + length, -1):
        draft.memory[i] = 48 + magnitude % 10
        magnitude //= 10
    to = add(draft, to, length + 1 + digits, 1.0, 1.0)
    return _add_exact(draft, at, to, length, value) if draft.rules[SCALED] == EXACT and to >= 0 else to


@inner
def _add_exact(draft, at, to, length, value):
    """Add the feature ``name=12.5`` for a number of few digits, with the name at ``at`` and room for the key at ``to``.

    Its digits are those of the number in hundredths, without zeros at the end of the decimals.
    """
    rest = np.int64(np.rint(100.0 * value)) if value < END_OF_EXACT else np.int64(1)
    decimals = np.int64(2)
    is_exact = rest / 100.0 == value
    while decimals > 0 and rest % 10 == 0:
        rest //= 10
        decimals -= 1
    n = 1
    while rest >= 10**n:
        n += 1
    end = length + 1 + n + (decimals > 0)
    if not is_exact or rest >= END_OF_EXACT or end > draft.rules[MAX_KEY_BYTES]:
        return to
    if to > at:
        copy_bytes(draft.memory, at, draft.memory, to, length)
    draft.memory[to + length] = 61
    i = to + end
    for _ in range(n):
        i -= 1
        draft.memory[i] = 48 + rest % 10
        rest //= 10
        decimals -= 1
        if decimals == 0:
            i -= 1
            draft.memory[i] = 46
    return add(draft, to, end, EXACT_VALUE, EXACT_VALUE)


@inlined
def _add_pair(draft, source, at, to):
    """Add a name and its value, with ``at`` after the name's opening quote. Return the values of ``_add_list``."""
    data = source.data
    rules = draft.rules
    end, length = _copy_string(source, at, draft.memory, to, rules[MAX_KEY_BYTES], rules[NORMALIZE])
    if length == 0 or draft.memory[to] == 0:
        return at, np.int64(UNUSUAL)
    at = _after_space(data, end + 1)
    if data[at] != 58:
        return at, np.int64(UNUSUAL)
    at = _after_space(data, at + 1)
    first = data[at]
    if first == 34:
        return _add_string(draft, source, at + 1, to, length)
    if first == 91:
        return _add_list(draft, source, at + 1, to, length)
    if first == 116 or first == 102:
        if at + 5 > source.size:
            return at, np.int64(UNUSUAL)
        if load_u32(data, at) == _TRUE:
            return at + 4, add(draft, to, length, 1.0, 0.0)
        if load_u32(data, at) == _FALS and data[at + 4] == 101:
            return at + 5, to
        return at, np.int64(UNUSUAL)
    if first == 110 and at + 5 <= source.size and load_u32(data, at) == _NULL:
        return at + 4, to
    return _add_number(draft, source, at, to, length)


@inner
def _copy_term(source, at, memory, to):
    """Copy a term up to the end of its line; return where that is. Writes up to 8 bytes more than the term has."""
    data, size, i = source.data, source.size, np.int64(0)
    while True:
        left = size - at - i
        word = load_u64(data, at + i) if left >= 8 else load_part(data, at + i, left)
        ends = word ^ _LINE_ENDS
        ends = (ends - _ONES) & ~ends & _HIGHS
        store_u64(memory, to + i, word)
        if ends != 0 or left < 8:
            return min(at + i + np.int64(trailing_zeros(ends) >> np.uint64(3)), size)
        i += 8


@inner
def _read_terms(draft, source, to):
    """Count the terms, one per line; skip terms that are too long or begin with a zero byte.

    Return where the next key goes, or a refusal.
    """
    at, most = np.int64(0), draft.rules[MAX_KEY_BYTES]
    while at < source.size:
        if draft.room - to < source.size - at + 32:
            return np.int64(NO_ROOM)
        end = _copy_term(source, at, draft.memory, to)
        if 0 < end - at <= most and draft.memory[to] != 0:
            to = add(draft, to, end - at, 1.0, 0.0)
            if to < 0:
                return to
        at = end + 1
    for i in range(draft.rules[N_KEYS]):
        if not draft.values[i] < MOST_COUNTED:
            return np.int64(UNUSUAL)
        draft.values[i] = _WEIGHTS[np.int64(draft.values[i])]
    return to


@inner
def _read_features(draft, source, to):
    """Add the pairs of a JSON object; return where its keys end, or a refusal."""
    data, size = source.data, source.size
    if size < 2 or data[0] != 123 or data[size - 1] != 125:
        return np.int64(UNUSUAL)
    at = _after_space(data, np.int64(1))
    if at == size - 1:
        return to
    while data[at] == 34:
        if draft.room - to < 3 * draft.rules[MAX_KEY_BYTES] + 32:
            return np.int64(NO_ROOM)
        at, to = _add_pair(draft, source, at + 1, to)
        if to < 0:
            return to
        at = _after_space(data, at)
        if at == size - 1:
            return to
        if data[at] != 44:
            break
        at = _after_space(data, at + 1)
    return np.int64(UNUSUAL)


@kernel
def read_instance(terms, features, rules, values, norms, spans, table, memory):
    """Build the vector of an instance in ``memory``, of more than ``6 * max_features + 4`` bytes.

    ``terms`` are UTF-8, one per line; ``features`` are UTF-8, and anything but a JSON object is refused. Each is empty
    without a text or features. The other arrays are the parts of a ``VectorDraft``.

    Returns
    -------
    packed : int
        UNUSUAL, NO_ROOM, or ``n << 32 | size``: the vector of n features is the ``size`` bytes of ``memory`` that
        start ``6 * n + 4`` bytes before byte ``6 * max_features + 4``.
    """
    begin(rules, table, len(terms) + len(features) // 2)
    draft = VectorDraft(
        pointer(rules), pointer(values), pointer(norms), pointer(spans), pointer(table), pointer(memory), memory.size
    )
    start = 6 * rules[MAX_FEATURES] + 4
    to = start
    if len(terms) > 0:
        to = _read_terms(draft, JsonSource(pointer(terms), len(terms)), to)
    rules[HAS_TEXT] = rules[N_KEYS] > 0 or norms[ADDED_SQUARES] > 0
    if len(features) > 0 and to >= 0:
        to = _read_features(draft, JsonSource(pointer(features), len(features)), to)
    return finish(draft, start, to) if to >= 0 else to


UNUSUAL, NO_ROOM = -1, -2  # use ``json_fallback``; double ``memory`` and try again

MAX_FEATURES, MAX_KEY_BYTES, SPLIT, BOOLEAN, SCALED, NORMALIZE = range(6)
GENERATION, N_KEYS, MASK, HAS_TEXT, HAS_COUNT, HAS_SCALED = range(6, 12)
"""Places in ``rules``. The caller sets those of the first line; the kernel uses the others."""

EXACT = 2  # of SCALED: numbers of few digits are features of their own, too; 1 is without, 0 is raw
EXACT_VALUE = 0.5  # of such a feature, beside up to 3 and 1 for the size of the number
END_OF_EXACT = 10**6  # of the digits of such a number, without its point

MOST_OF_A_COUNT = 16.0  # whole numbers up to this are taken for counts, which are not scaled

ADDED_SQUARES, NORM = range(2)
"""Places in ``norms``. The caller sets the first one; the kernel writes the other, unless the vector is boolean."""

MOST_PROBES = 32

_GENERATIONS = 1 << 24
_ALL = np.uint64(2**64 - 1)
_INDEX = np.uint64(2**20 - 1)


class VectorDraft(NamedTuple):
    """The working memory for one vector, as pointers."""

    rules: np.ndarray  # int64, 12 of them
    # float64, twice max_features; the value of each key, then the part of it that numbers contributed
    values: np.ndarray
    norms: np.ndarray  # float64, 2 of them; a number to add to the sum of squares, and the norm: the root of that sum
    spans: np.ndarray  # uint64, max_features; start in ``memory`` << 16 | length, one per key
    # uint64, a power of two, at least twice max_features; generation << 40 | hash << 20 | place of the key; entries of
    # other generations count as empty
    table: np.ndarray
    memory: np.ndarray
    room: int  # bytes of ``memory``


@inner
def begin(rules, table, size):
    """Start a new instance: a new generation of the table, with places for ``size`` keys."""
    rules[GENERATION] += 1
    if rules[GENERATION] == _GENERATIONS:
        table[:] = 0
        rules[GENERATION] = 1
    n = np.int64(64)
    while n < size and n < table.size:
        n *= 2
    rules[MASK] = n - 1
    rules[N_KEYS] = 0
    rules[HAS_COUNT] = 0
    rules[HAS_SCALED] = 0


@inlined
def hash_of(memory, at, length):
    """Return a hash of a key in scratch memory; 8 bytes after the key must be readable."""
    state, i = np.uint64(length), 0
    while i + 8 < length:
        state = mix(state, load_u64(memory, at + i))
        i += 8
    return mix(state, load_u64(memory, at + i) & (_ALL >> np.uint64(8 * (8 - length + i))))


@inlined
def add(draft, at, length, value, number):
    """Add a value to the key written at ``at``; return where the next key goes, or UNUSUAL.

    ``number`` is the value if a number contributes it, else 0.
    """
    rules, table, memory = draft.rules, draft.table, draft.memory
    mask = rules[MASK]
    hashed = hash_of(memory, at, length)
    mark = (np.uint64(rules[GENERATION]) << np.uint64(20)) | (hashed >> np.uint64(44))
    position = np.int64(hashed) & mask
    for _ in range(MOST_PROBES):
        entry = table[position]
        if np.int64(entry >> np.uint64(40)) != rules[GENERATION]:
            break
        if entry >> np.uint64(20) == mark:
            place = np.int64(entry & _INDEX)
            span = draft.spans[place]
            if np.int64(span & np.uint64(0xFFFF)) == length and same_bytes(
                memory, np.int64(span >> np.uint64(16)), memory, at, length
            ):
                draft.values[place] += value
                draft.values[rules[MAX_FEATURES] + place] += number
                return at if draft.values[place] < np.inf else np.int64(UNUSUAL)
        position = (position + 1) & mask
    else:
        return np.int64(UNUSUAL)
    n = rules[N_KEYS]
    if n == rules[MAX_FEATURES]:
        return np.int64(UNUSUAL)
    table[position] = (mark << np.uint64(20)) | np.uint64(n)
    draft.values[n] = value
    draft.values[rules[MAX_FEATURES] + n] = number
    draft.spans[n] = (np.uint64(at) << np.uint64(16)) | np.uint64(length)
    rules[N_KEYS] = n + 1
    return at + length


@inlined
def scaled_number(value):
    """Return the value of a number above 1 that is not a count: 3 / (1 + 2 / x), above 1 and at most 3."""
    return 3.0 / (1.0 + 2.0 / value)


@inner
def bound_numbers(values, n, numbers_at, more):
    """Reduce the values that numbers contributed, in place, so that their norm is at most that of everything else.

    Does nothing if there is nothing else. From ``numbers_at`` on, ``values`` (float64) hold the part of each of the
    ``n`` keys that numbers contributed. ``more`` is a sum of squares that belongs to everything else.
    """
    others, numbers = more, 0.0
    for i in range(n):
        number = values[numbers_at + i]
        other = values[i] - number
        others += other * other
        numbers += number * number
    if not 0.0 < others < numbers:
        return
    factor = np.sqrt(others / numbers)
    for i in range(n):
        number = values[numbers_at + i]
        values[i] = (values[i] - number) + factor * number


@inner
def normalise(values, n, more):
    """L2-normalise the first ``n`` values (float64) in place, and return the norm; ``more`` is added to the squares.

    Values are sums of results of ``read_number``, 1e-80 to 1e99 each, so no square overflows or underflows.
    """
    squares = 0.0
    for i in range(n):
        squares += values[i] * values[i]
    norm = np.sqrt(squares + more)
    for i in range(n):
        values[i] /= norm
    return norm


@inner
def _drop_inactive(draft, n, start):
    """Remove keys whose value is 0 as a float32; return how many remain and where their bytes end."""
    kept, to = np.int64(0), start
    for i in range(n):
        if np.float32(draft.values[i]) > 0:
            span = draft.spans[i]
            at, length = np.int64(span >> np.uint64(16)), np.int64(span & np.uint64(0xFFFF))
            for j in range(length):
                draft.memory[to + j] = draft.memory[at + j]
            draft.values[kept] = draft.values[i]
            draft.spans[kept] = np.uint64(length)
            kept += 1
            to += length
    return kept, to


@inner
def finish(draft, start, end):
    """Write values and lengths before the keys, and zeros after them; return n << 32 | bytes of the vector."""
    n = draft.rules[N_KEYS]
    values, memory = draft.values, draft.memory
    if draft.rules[BOOLEAN]:
        for i in range(n):
            values[i] = 1.0
    else:
        if draft.rules[HAS_SCALED] or (draft.rules[HAS_COUNT] and draft.rules[HAS_TEXT]):
            bound_numbers(values, n, draft.rules[MAX_FEATURES], draft.norms[ADDED_SQUARES])
        draft.norms[NORM] = normalise(values, n, draft.norms[ADDED_SQUARES])
    least = 1.0
    for i in range(n):
        least = min(least, values[i])
    if np.float32(least) == 0:
        n, end = _drop_inactive(draft, n, start)
    head = start - 6 * n - 4
    store_u32(memory, head, n)
    for i in range(n):
        store_f32(memory, head + 4 + 4 * i, values[i])
        store_u16(memory, start - 2 * n + 2 * i, draft.spans[i] & np.uint64(0xFFFF))
    size = end - head
    store_u32(memory, end, 0)
    return (n << 32) | ((size + 3) // 4 * 4)
