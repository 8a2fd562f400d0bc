"""An exponential that is the same on every processor: made of + - * and the bits of a power of two."""

from __future__ import annotations

import math

import numpy as np

from core.kernels.machine import as_float, inlined

_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""ln 2 in two parts; the high one has 21 bits of zeros at its end, so that n times it is exact."""

_PARTS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_EXPONENT = np.uint64(52)


@inlined
def exponential(number):
    """e^number for a float64 from -700 to 700, to about 2 units in the last place.

    With number = n ln 2 + r and r within half of ln 2 around 0: e^number = 2^n e^r, of whose series 14 terms are taken.
    """
    twos = number * _PER_LN2
    n = np.int64(twos + 0.5) if twos >= 0.0 else np.int64(twos - 0.5)
    rest = (number - np.float64(n) * _LN2_HIGH) - np.float64(n) * _LN2_LOW
    series = 0.0
    for part in _PARTS:
        series = series * rest + part
    return series * as_float(np.uint64(n + 1023) << _EXPONENT)
