"""State files: the state of a model in the artifact store, to be adopted or as the base of history.

    <model>/<incarnation>/index/<id>/part-<i>        the arrays, concatenated
    <model>/<incarnation>/index/<id>/manifest.json   shapes, checksum of each part, its own checksum; written last

A state file replaces all events up to its offset ``after``, whatever it was made of. Its **recipe** records how it was
made, so that it can be made again from a history without erased events.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from abound.core.errors import ArtifactsUnavailable, Corrupted
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.core.model.state import STATE_FORMAT
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.artifacts.checksums import checksum_of, decoding, read_sealed, seal
from abound.service.log.events import APPLY_VERSION
from abound.service.snapshots.arrays import (
    ArrayShape,
    Part,
    check_apply_version,
    check_part,
    load_model,
    parts_of,
    shapes_of,
)
from abound.service.store.keys import ModelKeys
from abound.service.tasks import do_nothing

FORMAT = STATE_FORMAT
PART_BYTES = 8 * 2**20


class StateFileManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a state file.

    Attributes
    ----------
    id : str
    format, apply_version : int
    model, incarnation : str
    after : str
        Offset up to which it replaces all events; later events are replayed on top.
    digest : str
    recipe : dict
        How it was made: ``method`` and its arguments, as plain JSON values.
    state : dict
        The state apart from its arrays.
    arrays : list of ArrayShape
    parts : list of Part
    checksum : str
        Checksum of all other fields.
    """

    id: str
    format: int
    apply_version: int
    model: str
    incarnation: str
    after: str
    digest: str
    recipe: dict[str, Any]
    state: dict[str, Any]
    arrays: list[ArrayShape]
    parts: list[Part]
    checksum: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.size for part in self.parts)


def folder(keys: ModelKeys) -> str:
    """Return the folder of a model's state files in the artifact store."""
    return f"{keys.name}/{keys.incarnation}/index"


def new_id() -> str:
    """Return a new random id."""
    return secrets.token_hex(8)


async def write(
    artifacts: ArtifactStore,
    keys: ModelKeys,
    live: LiveModel,
    after: Offset,
    recipe: dict[str, Any],
    between: Callable[[], Awaitable[None]] = do_nothing,
    name: str | None = None,
) -> StateFileManifest:
    """Write the state of a model as a state file. Nothing may change the model meanwhile.

    ``between`` is awaited before each part. An exception from it ends the writing and deletes what was written.
    ``name`` is an id from ``new_id``. ArtifactsUnavailable if the file cannot be written.
    """
    for _ in live.digest_steps():
        await between()
    arrays = live.to_arrays()
    name = name or new_id()
    parts: list[Part] = []
    try:
        for i, part in enumerate(parts_of(arrays, PART_BYTES)):
            await between()
            await artifacts.put(part_name(keys, name, i), part)
            parts.append(Part(len(part), checksum_of(part)))
        unsealed = StateFileManifest(
            id=name,
            format=FORMAT,
            apply_version=APPLY_VERSION,
            model=keys.name,
            incarnation=keys.incarnation,
            after=str(after),
            digest=live.digest(),
            recipe=recipe,
            state=live.meta(),
            arrays=shapes_of(arrays),
            parts=parts,
        )
        packed = msgspec.json.encode(seal(unsealed))
        await artifacts.put(_manifest_name(keys, name), packed)
    except BaseException:
        await delete(artifacts, keys, name)
        raise
    return msgspec.json.decode(packed, type=StateFileManifest)  # as it is read: a list where the state had a tuple


async def read_manifest(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> StateFileManifest:
    """Read the manifest of a state file.

    Raises
    ------
    UnknownArtifact
        There is no such state file.
    Corrupted, UnknownApplyVersion
        It cannot be read, is of another release or of another model.
    ArtifactsUnavailable
    """
    packed = await artifacts.get(_manifest_name(keys, name))
    what = f"the manifest of the state file {name}"
    manifest = read_sealed(StateFileManifest, packed, what, FORMAT)
    with decoding(what):
        Offset.parse(manifest.after)
    if (manifest.model, manifest.incarnation, manifest.id) != (keys.name, keys.incarnation, name):
        raise Corrupted(f"the state file {name} belongs to {manifest.model} {manifest.incarnation}")
    check_apply_version(manifest.apply_version, f"the state file {name}")
    return manifest


async def load(
    artifacts: ArtifactStore | None,
    keys: ModelKeys,
    name: str,
    digest: str,
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    """Load the state in a state file.

    Raises
    ------
    Corrupted, UnknownApplyVersion, UnknownArtifact
        It is missing or damaged, or has another digest.
    ArtifactsUnavailable
    """
    if artifacts is None:
        raise ArtifactsUnavailable("no artifact store is set; set ABOUND_ARTIFACTS_URL")
    manifest = await read_manifest(artifacts, keys, name)
    if manifest.digest != digest:
        raise Corrupted(f"the state file {name} has another digest than the one to be adopted")
    try:
        return await load_model(
            manifest.state,
            manifest.arrays,
            manifest.size,
            manifest.digest,
            _read_parts(artifacts, keys, manifest),
            limits,
            progress,
        )
    except Corrupted as error:
        raise Corrupted(f"the state file {name} is damaged: {error}") from error


async def check(artifacts: ArtifactStore, keys: ModelKeys, manifest: StateFileManifest) -> None:
    """Read a state file again. Raise Corrupted, UnknownArtifact or ArtifactsUnavailable unless it is intact."""
    if await read_manifest(artifacts, keys, manifest.id) != manifest:
        raise Corrupted(f"the manifest of the state file {manifest.id} differs from the one that was written")
    async for _ in _read_parts(artifacts, keys, manifest):
        pass


async def delete(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> None:
    """Delete a state file, its manifest first."""
    await artifacts.delete(_manifest_name(keys, name))
    await artifacts.clear(f"{folder(keys)}/{name}")


async def ids(artifacts: ArtifactStore, keys: ModelKeys) -> list[str]:
    """Return the ids of all state files of a model, including unfinished ones."""
    return sorted(await sizes(artifacts, keys))


async def sizes(artifacts: ArtifactStore, keys: ModelKeys) -> dict[str, int]:
    """Return the bytes of each state file of a model by id, including unfinished ones."""
    start = len(folder(keys)) + 1
    found: dict[str, int] = {}
    for name, size in (await artifacts.sizes(folder(keys))).items():
        place = name[start:].partition("/")[0]
        found[place] = found.get(place, 0) + size
    return found


async def _read_parts(artifacts: ArtifactStore, keys: ModelKeys, manifest: StateFileManifest) -> AsyncIterator[bytes]:
    for i, expected in enumerate(manifest.parts):
        part = await artifacts.get(part_name(keys, manifest.id, i))
        await asyncio.to_thread(check_part, i, part, expected)
        yield part


def part_name(keys: ModelKeys, name: str, i: int) -> str:
    """Return the artifact name of a part."""
    return f"{folder(keys)}/{name}/part-{i:05d}"


def _manifest_name(keys: ModelKeys, name: str) -> str:
    return f"{folder(keys)}/{name}/manifest.json"
