"""State image: the state of a model as a manifest and parts.

    manifest    JSON: position, digest, shapes of the arrays, the checksum of each part and its own; written last
    0, 1, ...   the arrays of the state, concatenated and cut into parts

A snapshot is an image in the store, a state file is one in the artifact store. A model file has the manifest and then
the parts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from abound.artifacts.checksums import checksum_of, decoding, read_sealed, seal
from abound.artifacts.npy import MOST_DIMENSIONS
from abound.log.events import APPLY_VERSION
from abound.processes import kernel_compiler
from abound.state.position import Position, StoredPosition
from abound.state.replicated_model import new_secret
from abound.store.key_names import ModelKeys
from abound_core.array_spec import check_room
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance
from abound_core.limits import Limits
from abound_core.model.live_model import STATE_GROUP, LiveModel, groups_of
from abound_core.model.state import STATE_FORMAT
from abound_core.types import Offset

MANIFEST = "manifest"


class ArrayShape(msgspec.Struct, frozen=True):
    name: str
    dtype: str  # little-endian
    shape: list[int]


class Part(msgspec.Struct, frozen=True):
    size: int
    checksum: str  # BLAKE2b-128


class StateManifest(StoredPosition, frozen=True, kw_only=True):
    """Describes a state image. In a state file the fields of the position are empty but for the offset."""

    id: str
    format: int
    apply_version: int
    model: str
    incarnation: str
    digest: str  # of the state
    created: int  # milliseconds of the store's clock; 0 in a state file
    state: dict[str, Any]  # apart from its arrays
    arrays: list[ArrayShape]
    parts: list[Part]
    dismissed: list[Offset] | msgspec.UnsetType = msgspec.UNSET  # in a model file: events that are not suspicious
    checksum: str = ""  # of all other fields; see ``seal``

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def config(self) -> ModelConfig:
        try:
            return ModelConfig.from_stored(self.state["config"])
        except (KeyError, TypeError, AttributeError, InvalidInstance) as error:
            raise Corrupted(f"it has no configuration that this release knows: {error}") from None


async def write(
    put: Callable[[str, bytes], Awaitable[None]],
    keys: ModelKeys,
    name: str,
    live: LiveModel,
    position: Position,
    part_bytes: int,
    between: Callable[[], Awaitable[None]],
    *,
    created: int = 0,
) -> StateManifest:
    """Write the state of a model as the image ``name``. Nothing may change the model meanwhile.

    ``put`` writes a file of the image. ``between`` is awaited before each step; an exception from it ends the writing.
    """
    for _ in live.digest_steps():
        await asyncio.sleep(0)
        await between()
    arrays = await asyncio.to_thread(live.to_arrays)  # a replica serves requests while it writes an imported model
    parts: list[Part] = []
    for i, part in enumerate(parts_of(arrays, part_bytes)):
        await between()
        await put(str(i), part)
        parts.append(Part(len(part), await asyncio.to_thread(checksum_of, part)))
    manifest = StateManifest(
        id=name,
        format=STATE_FORMAT,
        apply_version=APPLY_VERSION,
        model=keys.name,
        incarnation=keys.incarnation,
        **StateManifest.fields_of(position),
        digest=live.digest(),
        created=created,
        state=live.meta(),
        arrays=shapes_of(arrays),
        parts=parts,
    )
    packed = msgspec.json.encode(seal(manifest))
    await between()
    await put(MANIFEST, packed)
    return msgspec.json.decode(packed, type=StateManifest)  # as a reader gets it: with lists for tuples


def parse(packed: bytes, what: str) -> StateManifest:
    """Decode a manifest, named ``what`` in messages."""
    manifest = read_sealed(StateManifest, packed, what, format=STATE_FORMAT, apply_version=APPLY_VERSION)
    with decoding(what):
        _ = manifest.position
    return manifest


def parse_own(packed: bytes, what: str, keys: ModelKeys, name: str) -> StateManifest:
    manifest = parse(packed, what)
    if (manifest.model, manifest.incarnation, manifest.id) != (keys.name, keys.incarnation, name):
        raise Corrupted(f"{what} belongs to {manifest.id} of {manifest.model} {manifest.incarnation}")
    return manifest


async def read_parts(get: Callable[[str], Awaitable[bytes]], manifest: StateManifest) -> AsyncIterator[bytes]:
    for i, expected in enumerate(manifest.parts):
        part = await get(str(i))
        if len(part) != expected.size or await asyncio.to_thread(checksum_of, part) != expected.checksum:
            raise Corrupted(f"its part {i} is damaged: its size or checksum is wrong")
        yield part


async def load(
    manifest: StateManifest,
    parts: AsyncIterator[bytes],
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
    *,
    foreign: bool = False,
) -> LiveModel:
    """Return the model in the parts of an image; ``foreign``: of an imported one, whose counts must leave room."""
    sizes = _sizes(manifest)
    size = sum(sizes)
    filled = [bytearray() for _ in sizes]  # grow as bytes arrive: a wrong size allocates no memory
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
        for shape, data in zip(manifest.arrays, filled, strict=True)
    }
    if foreign:
        check_room(arrays)
    await kernel_compiler.wait_for_groups([*groups_of(manifest.config), STATE_GROUP])
    # In a thread: a replica serves requests while it loads another one.
    live = await asyncio.to_thread(LiveModel.from_arrays, manifest.state, arrays, new_secret(), limits)
    for _ in live.digest_steps():
        await asyncio.sleep(0)
    if live.digest() != manifest.digest:
        raise Corrupted("its state has another digest than the one that was written")
    return live


def shapes_of(arrays: dict[str, npt.NDArray[Any]]) -> list[ArrayShape]:
    return [ArrayShape(name, array.dtype.newbyteorder("<").str, list(array.shape)) for name, array in arrays.items()]


def parts_of(arrays: dict[str, npt.NDArray[Any]], part_bytes: int) -> Iterator[bytes]:
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


def _sizes(manifest: StateManifest) -> list[int]:
    """Return the bytes of each array; raise Corrupted unless they fill the parts."""
    sizes, size = [], manifest.size
    for array in manifest.arrays:
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
    if len({array.name for array in manifest.arrays}) < len(manifest.arrays):
        raise Corrupted("two of its arrays have the same name")
    return sizes
