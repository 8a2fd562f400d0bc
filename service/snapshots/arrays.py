"""Model state as bytes: the arrays are concatenated and cut into parts, each with a checksum.

Snapshots keep the parts in the store, state files in the artifact store. An export file has them one after the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from abound.core.config import ModelConfig
from abound.core.errors import Corrupted, InvalidInstance
from abound.core.limits import Limits
from abound.core.model.live_model import STATE_GROUP, LiveModel, groups_of
from abound.service.artifacts.checksums import checksum_of
from abound.service.model.replicated_model import new_secret
from abound.service.processes import kernel_compiler

Arrays = dict[str, npt.NDArray[Any]]

MOST_DIMENSIONS = 8
"""Most dimensions that an array may have; more than any has."""


class ArrayShape(msgspec.Struct, frozen=True):
    """Name, little-endian dtype and shape of an array."""

    name: str
    dtype: str
    shape: list[int]


class Part(msgspec.Struct, frozen=True):
    """Size and BLAKE2b-128 of a part."""

    size: int
    checksum: str


def shapes_of(arrays: Arrays) -> list[ArrayShape]:
    """Return the names, dtypes and shapes that split the bytes into arrays again."""
    return [ArrayShape(name, array.dtype.newbyteorder("<").str, list(array.shape)) for name, array in arrays.items()]


def parts_of(arrays: Arrays, part_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of all arrays, concatenated and cut into parts of ``part_bytes``; the last one may be shorter."""
    part = bytearray()
    for array in arrays.values():
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        flat = memoryview(plain.reshape(-1).view(np.uint8).data) if plain.size else memoryview(b"")
        while flat:
            room = part_bytes - len(part)
            part += flat[:room]
            flat = flat[room:]
            if len(part) == part_bytes:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def check_part(i: int, part: bytes, expected: Part) -> None:
    """Raise Corrupted if a part is damaged."""
    if len(part) != expected.size or checksum_of(part) != expected.checksum:
        raise Corrupted(f"its part {i} is damaged: its size or checksum is wrong")


async def load_model(
    state: dict[str, Any],
    shapes: Sequence[ArrayShape],
    size: int,
    digest: str,
    parts: AsyncIterator[bytes],
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    """Return the model whose arrays are in ``parts``, ``size`` bytes altogether.

    Raises
    ------
    Corrupted
        The arrays do not have these shapes, or the state has another digest.
    """
    sizes = _sizes(shapes, size)
    filled = [bytearray() for _ in shapes]  # grow as bytes arrive: a wrong size allocates no memory
    i_array = done = 0
    async for part in parts:
        rest = memoryview(part)
        while rest:
            while i_array < len(sizes) and len(filled[i_array]) == sizes[i_array]:
                i_array += 1
            if i_array == len(sizes):
                raise Corrupted("its parts have more bytes than its arrays")
            take = sizes[i_array] - len(filled[i_array])
            filled[i_array] += rest[:take]
            rest = rest[take:]
        done += len(part)
        progress(done / size)
    if [len(data) for data in filled] != sizes:
        raise Corrupted("its parts have fewer bytes than its arrays")
    arrays = {
        shape.name: np.frombuffer(data, shape.dtype).reshape(shape.shape)
        for shape, data in zip(shapes, filled, strict=True)
    }
    try:
        config = ModelConfig.from_stored(state["config"])
    except (KeyError, TypeError, InvalidInstance) as error:
        raise Corrupted(f"its configuration and its arrays do not fit together: {error}") from error
    await kernel_compiler.wait_for_groups([*groups_of(config), STATE_GROUP])
    # In a thread: a replica serves requests while it loads a standby state.
    live = await asyncio.to_thread(LiveModel.from_arrays, state, arrays, new_secret(), limits)
    for _ in live.digest_steps():
        await asyncio.sleep(0)
    if live.digest() != digest:
        raise Corrupted("its state has another digest than the one that was written")
    return live


def _sizes(shapes: Sequence[ArrayShape], size: int) -> list[int]:
    """Return the bytes of each array; raise Corrupted unless they are ``size`` altogether."""
    sizes = []
    for array in shapes:
        try:
            dtype = np.dtype(array.dtype)
        except (TypeError, ValueError):
            raise Corrupted(f"its array {array.name} has no known type") from None
        sizes.append(dtype.itemsize * math.prod(array.shape))
        has_shape = min(array.shape, default=0) >= 0 and max(array.shape, default=0) <= size
        if dtype.kind not in "biuf" or not has_shape or len(array.shape) > MOST_DIMENSIONS or sum(sizes) > size:
            raise Corrupted(f"its array {array.name} has an impossible dtype, shape or size")
    if sum(sizes) != size:
        raise Corrupted("its parts do not fill its arrays")
    if len({array.name for array in shapes}) < len(shapes):
        raise Corrupted("two of its arrays have the same name")
    return sizes
