"""The exponential and the natural logarithm, with the same bits on every processor.

The exponential uses + - * and the bits of a power of two, the logarithm + - * / only. Mathematical libraries differ
in the last bit between processors, and replicas must not.
"""

from __future__ import annotations

import math

import numpy as np

from abound_core.numba.decorators import inlined
from abound_core.numba.intrinsics import as_bits, as_float

_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""ln 2 in two parts; the high one ends in 21 zero bits, so that n times it is exact."""

_PARTS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_EXPONENT = np.uint64(52)


@inlined
def exponential(number):
    """Return e^number for a float64 from -700 to 700, to about 2 units in the last place.

    With number = n ln 2 + r and |r| at most half of ln 2: e^number = 2^n e^r, by 14 terms of the series of e^r.
    """
    twos = number * _PER_LN2
    n = np.int64(twos + 0.5) if twos >= 0.0 else np.int64(twos - 0.5)
    rest = (number - np.float64(n) * _LN2_HIGH) - np.float64(n) * _LN2_LOW
    series = 0.0
    for part in _PARTS:
        series = series * rest + part
    return series * as_float(np.uint64(n + 1023) << _EXPONENT)


_MANTISSA = np.uint64(2**52 - 1)
_ONE = np.uint64(1023 << 52)
_WHOLE = np.uint64(1075 << 52)
_BIAS = 2.0**52 + 1023.0
_LN2 = 0.6931471805599453
_ROOT = 1.4142135623730951


@inlined
def logarithm(number):
    """Return ln of a normal float64 > 0, to about 2 units in the last place.

    With number = 2^e * m and m within a factor of the square root of 2 around 1: ln m = 2 artanh((m - 1) / (m + 1)),
    by ten terms of its series.
    """
    bits = as_bits(number)
    exponent = as_float((bits >> _EXPONENT) | _WHOLE) - _BIAS
    mantissa = as_float((bits & _MANTISSA) | _ONE)
    if mantissa > _ROOT:
        mantissa *= 0.5
        exponent += 1.0
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = 1.0 / 19.0
    for odd in (17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * square + 1.0 / odd
    return exponent * _LN2 + 2.0 * z * series
