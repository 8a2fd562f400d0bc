"""Arrays laid end to end and cut into parts, each with its checksum: how the state of a model is written.

Snapshots keep the parts in the store, indexes in the artifact store, a model's file one after the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.config import ModelConfig
from core.errors import Damaged
from core.limits import Limits
from core.live import LiveModel
from service import kernels
from service.model_replica import new_secret

Arrays = dict[str, npt.NDArray[Any]]


class ArrayShape(msgspec.Struct, frozen=True):
    """Where an array lies in the state: its name, little-endian dtype and shape."""

    name: str
    dtype: str
    shape: list[int]


class Part(msgspec.Struct, frozen=True):
    """Size and BLAKE2b-128 of a part."""

    size: int
    checksum: str


def checksum_of(data: bytes) -> str:
    """BLAKE2b-128 in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def shapes_of(arrays: Arrays) -> list[ArrayShape]:
    """What tells the arrays in their bytes apart."""
    return [ArrayShape(name, array.dtype.newbyteorder("<").str, list(array.shape)) for name, array in arrays.items()]


def parts_of(arrays: Arrays, part_bytes: int) -> Iterator[bytes]:
    """The bytes of all arrays, end to end, cut into parts."""
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
    """Damaged unless a part is the one that was written."""
    if len(part) != expected.size or checksum_of(part) != expected.checksum:
        raise Damaged(f"its part {i} is not what was written")


async def live_of(
    state: dict[str, Any],
    shapes: Sequence[ArrayShape],
    size: int,
    digest: str,
    parts: AsyncIterator[bytes],
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    """The model whose arrays are in ``parts``, ``size`` bytes altogether.

    Raises
    ------
    Damaged
        They are not of these shapes, or the state that comes out has another digest.
    """
    arrays = _empty_arrays(shapes, size)
    flat = [array.reshape(-1).view(np.uint8) for array in arrays.values() if array.size]
    at = i_array = done = 0
    async for part in parts:
        rest = memoryview(part)
        while rest:
            if i_array == len(flat):
                raise Damaged("its parts hold more than its arrays")
            take = min(len(rest), len(flat[i_array]) - at)
            flat[i_array][at : at + take] = np.frombuffer(rest[:take], np.uint8)
            rest, at = rest[take:], at + take
            if at == len(flat[i_array]):
                i_array, at = i_array + 1, 0
        done += len(part)
        progress(done / size)
    if i_array != len(flat):
        raise Damaged("its parts hold less than its arrays")
    await kernels.loaded(ModelConfig.stored(state["config"]))
    # In a thread: a shadow is made in a process that answers meanwhile.
    live = await asyncio.to_thread(LiveModel.from_arrays, state, arrays, new_secret(), limits)
    for _ in live.digest_steps():
        await asyncio.sleep(0)
    if live.digest() != digest:
        raise Damaged("the state in it has another digest than the one that was written")
    return live


def _empty_arrays(shapes: Sequence[ArrayShape], size: int) -> Arrays:
    """Arrays of these shapes; Damaged unless so many bytes fill them exactly."""
    arrays = {}
    room = size
    for array in shapes:
        try:
            dtype = np.dtype(array.dtype)
        except (TypeError, ValueError):
            raise Damaged(f"its array {array.name} has no known type") from None
        n_bytes = dtype.itemsize * math.prod(array.shape)
        if dtype.kind not in "biuf" or min(array.shape, default=0) < 0 or n_bytes > room:
            raise Damaged(f"its array {array.name} is not one that can be in it")
        room -= n_bytes
        arrays[array.name] = np.empty(array.shape, dtype)
    if room:
        raise Damaged("its parts do not fill its arrays")
    return arrays
