"""Arrays as ``.npy`` files in the artifact store: written without a copy, verified by checksum, mapped."""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from abound.artifacts.artifact_store import PIECE_BYTES, ArtifactStore
from abound_core.errors import Corrupted

MOST_HEADER_BYTES = 10_000
MOST_DIMENSIONS = 8  # more than any array that is written has

KINDS = "biufU"  # of accepted dtypes: numbers and text, nothing that could run code

UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)
"""Exceptions that numpy raises for an unreadable header."""

_HEADER = 10  # bytes of a file before its header: magic, format, length of the header

Array = npt.NDArray[Any]


class ArrayFile(msgspec.Struct, frozen=True):
    name: str
    file: str
    size: int  # bytes of the file
    checksum: str  # BLAKE2b-128 of the file
    dtype: str
    shape: list[int]


async def write_array(
    artifacts: ArtifactStore, place: str, i: int, name: str, array: Array, check: Callable[[], None]
) -> ArrayFile:
    """Write an array as number ``i`` in the folder ``place``; ``check`` is called for each piece, in a thread."""
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.kind not in KINDS:
        raise ValueError(f"the array {name} has dtype {array.dtype}; it must hold numbers or text")
    if not array.flags.c_contiguous and not array.flags.f_contiguous:
        array = np.ascontiguousarray(array)
    file = f"{i:03d}-{re.sub('[^A-Za-z0-9]+', '-', name)[:80]}.npy"
    hashed = hashlib.blake2b(digest_size=16)
    size = 0

    def pieces() -> Iterator[bytes | memoryview]:
        nonlocal size
        for piece in npy_pieces(array):
            check()
            hashed.update(piece)
            size += len(piece)
            yield piece

    await artifacts.put_pieces(f"{place}/{file}", pieces())
    return ArrayFile(name, file, size, hashed.hexdigest(), array.dtype.str, list(array.shape))


def npy_pieces(array: Array) -> Iterator[bytes | memoryview]:
    """Yield the ``.npy`` file of an array that is contiguous in either order, without copying it."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    yield head.getvalue()
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    if flat.size:
        whole = memoryview(flat.view(np.uint8).data)
        for at in range(0, len(whole), PIECE_BYTES):
            yield whole[at : at + PIECE_BYTES]


def map_array(one: ArrayFile, path: Path) -> Array:
    """Map the array in a file. Writes to the array stay in this process and never reach the file."""
    with path.open("rb") as file:
        if path.stat().st_size != one.size:
            raise Corrupted(f"its file {one.file} does not have the size that its card states")
        return parse_array(one, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def parse_array(one: ArrayFile, data: bytearray | mmap.mmap) -> Array:
    """Return the array in the bytes of a ``.npy`` file. Raise Corrupted unless it matches ``one``, its card entry."""
    view = memoryview(data)
    hashed = hashlib.blake2b(digest_size=16)
    for at in range(0, len(view), PIECE_BYTES):
        hashed.update(view[at : at + PIECE_BYTES])
    if len(view) != one.size or hashed.hexdigest() != one.checksum:
        raise Corrupted(f"its file {one.file} is damaged: its size or checksum is wrong")
    at = _HEADER + int.from_bytes(view[8:_HEADER], "little")
    head = io.BytesIO(bytes(view[: min(at, MOST_HEADER_BYTES)]))
    try:
        if np.lib.format.read_magic(head) != (1, 0):
            raise Corrupted(f"its file {one.file} has an unknown format")
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(head)
    except UNREADABLE as error:
        raise Corrupted(f"its file {one.file} has an unreadable header: {error}") from None
    if dtype.kind not in KINDS or dtype.str != one.dtype or list(shape) != one.shape:
        raise Corrupted(f"its file {one.file} has another array than its card describes")
    if not dtype.itemsize or dtype.hasobject or any(n < 0 for n in shape) or len(shape) > MOST_DIMENSIONS:
        raise Corrupted(f"its file {one.file} has an array of an impossible dtype or shape")
    if len(view) - at != dtype.itemsize * math.prod(shape):
        raise Corrupted(f"its file {one.file} does not have the size of its array")
    return np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape, order="F" if in_columns else "C")
