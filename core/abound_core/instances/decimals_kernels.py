"""Conversion of JSON numbers to float64, correctly rounded, in the cases that 128 bits can decide."""

from __future__ import annotations

import numpy as np

from abound_core.numba.decorators import inlined, inner, kernel
from abound_core.numba.intrinsics import as_float, leading_zeros, load_u64, multiply_high, trailing_zeros

MOST_DIGITS = 19  # digits after leading zeros that always fit into a uint64

MOST_EXPONENT = 80


def _powers() -> np.ndarray:
    """Return the truncated top 128 bits of 10**e for e from -80 to 80, as (low, high) uint64; the top bit is set."""
    halves = []
    for e in range(-MOST_EXPONENT, MOST_EXPONENT + 1):
        power = 10 ** abs(e)
        if e < 0:
            power = (1 << (2 * power.bit_length() + 256)) // power
        cut = power.bit_length() - 128
        power = power >> cut if cut > 0 else power << -cut
        halves.append((power & (2**64 - 1), power >> 64))
    return np.array(halves, np.uint64)


_POWERS = _powers()
_EXACT = np.array([10.0**e for e in range(23)])
_U1 = np.uint64(1)
_NINE_BITS = np.uint64(0x1FF)
_ZEROS = np.uint64(0x3030303030303030)
_SIXES = np.uint64(0x0606060606060606)
_UPPER = np.uint64(0xF0F0F0F0F0F0F0F0)


@inner
def _rounded(mantissa, exponent):
    """Return ``mantissa * 10**exponent`` by the method of Eisel and Lemire; -1 in the rare undecided case.

    ``mantissa`` is a uint64 above 0 and the result a normal float64. Lemire: Number parsing at a gigabyte per second
    (2021), section 5.
    """
    low, high = _POWERS[exponent + MOST_EXPONENT]
    shift = leading_zeros(mantissa)
    mantissa <<= shift
    binary = np.int64(((217706 * exponent) >> 16) + 64 + 1023) - np.int64(shift)
    upper, lower = multiply_high(mantissa, high), mantissa * high
    if upper & _NINE_BITS == _NINE_BITS and lower + mantissa < mantissa:
        more, least = multiply_high(mantissa, low), mantissa * low
        merged = lower + more
        if merged < lower:
            upper += _U1
        if upper & _NINE_BITS == _NINE_BITS and merged + _U1 == 0 and least + mantissa < mantissa:
            return -1.0
        lower = merged
    top = upper >> np.uint64(63)
    result = upper >> (top + np.uint64(9))
    binary -= np.int64(_U1 ^ top)
    if lower == 0 and upper & _NINE_BITS == 0 and result & np.uint64(3) == _U1:
        return -1.0
    result = (result + (result & _U1)) >> _U1
    if result >> np.uint64(53) > 0:
        result >>= _U1
        binary += 1
    return as_float((np.uint64(binary) << np.uint64(52)) | (result & np.uint64(2**52 - 1)))


@inlined
def _is_digit(byte):
    return np.uint8(byte - 48) < 10


@inner
def _exponent(source, at):
    """Return a signed exponent at ``at``, and where it ends; -1 as the end if it has no digits or more than 4."""
    negative = source[at] == 45
    if negative or source[at] == 43:
        at += 1
    value, first = 0, at
    while _is_digit(source[at]):
        value = value * 10 + (source[at] - 48)
        at += 1
        if at > first + 4:
            return 0, np.int64(-1)
    return (-value if negative else value), (at if at > first else np.int64(-1))


@inlined
def _eight_digits(word):
    """Return the number of eight ASCII digits, the first one in the lowest byte, by three multiplications."""
    word = (word - _ZEROS) * np.uint64(2561) >> np.uint64(8)
    word = (word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601) >> np.uint64(16)
    return (word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001) >> np.uint64(32)


@inlined
def read_short(source, at):
    """Read a number between 0 and 1 with at most seven decimals at ``at``; ten bytes must be readable.

    Most values are such numbers of unpredictable length; no branch here depends on the length.
    """
    word = load_u64(source, at + 2)
    plain = word ^ _ZEROS  # 0 to 9 for a digit; a digit plus 6 has no upper half
    others = (plain | (plain + _SIXES)) & _UPPER
    n = np.int64(trailing_zeros(others) >> np.uint64(3))
    end = at + 2 + n
    ok = (source[at] == 48) & (source[at + 1] == 46) & (n > 0) & (n < 8) & (source[end] | 32 != 101)
    digits = (word << np.uint64((64 - 8 * n) & 63)) | (_ZEROS >> np.uint64((8 * n) & 63))
    return np.float64(_eight_digits(digits)) / _EXACT[n & 7], end if ok else np.int64(-1)


@kernel
def read_number(source, at):
    """Read the JSON number at byte ``at`` of a pointer to uint8; return it, correctly rounded, and where it ends.

    The last byte of the source must not be a digit, point, sign or ``e``: reading stops there at the latest. The end is
    -1 for a malformed or unusual number: more than 19 digits, a power of ten beyond 80, or too near to the middle of
    two float64.
    """
    negative = source[at] == 45
    if negative:
        at += 1
    first, mantissa = at, np.uint64(0)
    while _is_digit(source[at]):
        mantissa = mantissa * np.uint64(10) + np.uint64(source[at] - 48)
        at += 1
    n_digits = at - first
    if n_digits == 0 or (n_digits > 1 and source[first] == 48):
        return 0.0, np.int64(-1)
    n_decimals = 0
    if source[at] == 46:
        at += 1
        point = at
        while _is_digit(source[at]):
            mantissa = mantissa * np.uint64(10) + np.uint64(source[at] - 48)
            at += 1
        n_decimals = at - point
        if n_decimals == 0:
            return 0.0, np.int64(-1)
    if n_digits + n_decimals > MOST_DIGITS:
        while source[first] == 48 or source[first] == 46:
            n_digits -= source[first] == 48
            first += 1
        if n_digits + n_decimals > MOST_DIGITS:
            return 0.0, np.int64(-1)
    exponent = np.int64(0)
    if source[at] | 32 == 101:
        exponent, at = _exponent(source, at + 1)
    return _value(negative, mantissa, exponent - n_decimals, at)


@inner
def _value(negative, mantissa, exponent, end):
    """Combine sign, digits and power of ten into a number; return it with ``end``, or with -1 if it is undecided."""
    value = -1.0
    if mantissa == 0:
        value = 0.0
    elif exponent == 0:
        value = np.float64(mantissa)
    elif mantissa <= np.uint64(2**53) and -22 <= exponent <= 22:
        value = np.float64(mantissa)
        value = value * _EXACT[exponent] if exponent >= 0 else value / _EXACT[-exponent]
    elif -MOST_EXPONENT <= exponent <= MOST_EXPONENT:
        value = _rounded(mantissa, exponent)
    if value < 0:
        return 0.0, np.int64(-1)
    return (-value if negative else value), end
