"""The dense vector of an instance, such as an embedding, as it comes and as int8 numbers.

The largest number becomes 127 or -127, and all others are scaled by the same factor and rounded, to the even number if
two are equally near. Only the result is stored. Numbers that are int8 already stay as they are.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.errors import InvalidInstance
from abound_core.instances.encoded_vector import EncodedVector, VectorOfText
from abound_core.limits import MAX_DIMENSION

FIELD = "vector"


def to_int8(vector: list[float] | EncodedVector) -> bytes:
    """Return a vector as int8 numbers. Raises InvalidInstance, which names ``vector`` or ``vector.base64``."""
    if isinstance(vector, VectorOfText):
        return vector.numbers
    if isinstance(vector, EncodedVector):
        return quantize(_decoded(vector), "vector.base64")
    return quantize(np.array(vector, np.float64))


def quantize(numbers: npt.NDArray[Any], field: str = FIELD) -> bytes:
    """Return numbers as int8. Raises InvalidInstance unless there are 1 to 2,048, all finite and not all zero."""
    if not 1 <= len(numbers) <= MAX_DIMENSION:
        raise InvalidInstance(f"vector must have 1 to {MAX_DIMENSION} numbers, not {len(numbers)}", field)
    if numbers.dtype != np.int8:
        numbers = numbers.astype(np.float64)
        largest = np.abs(numbers).max()
        if not np.isfinite(largest):
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise InvalidInstance(f"vector[{at}] is {numbers[at]}; all numbers must be finite", field)
        if largest > 0:
            numbers = np.rint(numbers / largest * 127.0).astype(np.int8)
    if not numbers.any():
        raise InvalidInstance("vector must not be all zeros; leave it out instead", field)
    return numbers.astype(np.int8, copy=False).tobytes()


def _decoded(vector: EncodedVector) -> npt.NDArray[Any]:
    dtype = np.dtype("<f4" if vector.dtype == "float32" else np.int8)
    n = len(vector.base64) * 3 // 4 // dtype.itemsize
    if n > 2 * MAX_DIMENSION:  # decoding megabytes takes long
        raise InvalidInstance(f"vector must have 1 to {MAX_DIMENSION} numbers, not {n}", "vector.base64")
    try:
        data = base64.b64decode(vector.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInstance(f"vector.base64 is not valid base64: {error}", "vector.base64") from None
    if len(data) % dtype.itemsize:
        raise InvalidInstance(
            f"vector.base64 has {len(data)} bytes, which is not a whole number of float32", "vector.base64"
        )
    return np.frombuffer(data, dtype)
