"""State files: states of a model in the artifact store, which replays begin with.

<model>/<incarnation>/index/<id>/...   a state image (``abound/state/state_image.py``)
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import seal
from abound.state import state_image
from abound.state.position import Position
from abound.state.state_image import MANIFEST, StateManifest
from abound.store.key_names import ModelKeys
from abound.tasks import do_nothing
from abound_core.errors import ArtifactsUnavailable, Corrupted
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

PART_BYTES = 8 * 2**20


def folder(keys: ModelKeys) -> str:
    return f"{keys.folder}/index"


def new_id() -> str:
    return secrets.token_hex(8)


async def write(
    artifacts: ArtifactStore,
    keys: ModelKeys,
    live: LiveModel,
    after: Offset,
    between: Callable[[], Awaitable[None]] = do_nothing,
    name: str | None = None,
) -> StateManifest:
    """Write the state of a model as a state file. Nothing may change the model meanwhile.

    ``between`` is awaited before each step. An exception from it ends the writing and deletes what was written.
    """
    name = name or new_id()

    async def put(file: str, data: bytes) -> None:
        await artifacts.put(file_name(keys, name, file), data)

    try:
        position = Position(after, b"", 0, 0)
        return await state_image.write(put, keys, name, live, position, PART_BYTES, between)
    except BaseException:
        await delete(artifacts, keys, name)
        raise


async def read_manifest(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> StateManifest:
    packed = await artifacts.get(file_name(keys, name, MANIFEST))
    return state_image.parse_own(packed, f"the manifest of the state file {name}", keys, name)


async def load(
    artifacts: ArtifactStore | None,
    keys: ModelKeys,
    name: str,
    digest: str,
    limits: Limits,
    progress: Callable[[float], None] = lambda done: None,
) -> LiveModel:
    if artifacts is None:
        raise ArtifactsUnavailable("no artifact store is set; set ABOUND_ARTIFACTS_URL")
    manifest = await read_manifest(artifacts, keys, name)
    if manifest.digest != digest:
        raise Corrupted(f"the state file {name} has another digest than the one that history names")
    try:
        return await state_image.load(manifest, _read_parts(artifacts, keys, manifest), limits, progress)
    except Corrupted as error:
        raise Corrupted(f"the state file {name} is damaged: {error}") from error


async def copy(artifacts: ArtifactStore, keys: ModelKeys, new: ModelKeys, name: str) -> None:
    """Copy a state file to another incarnation of its model."""
    manifest = await read_manifest(artifacts, keys, name)
    for i in range(len(manifest.parts)):
        await artifacts.link(file_name(keys, name, str(i)), file_name(new, name, str(i)))
    manifest = seal(msgspec.structs.replace(manifest, incarnation=new.incarnation))
    await artifacts.put(file_name(new, name, MANIFEST), msgspec.json.encode(manifest))


async def delete(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> None:
    await artifacts.delete(file_name(keys, name, MANIFEST))
    await artifacts.clear(f"{folder(keys)}/{name}")


def file_name(keys: ModelKeys, name: str, file: str) -> str:
    return f"{folder(keys)}/{name}/{file}"


def _read_parts(artifacts: ArtifactStore, keys: ModelKeys, manifest: StateManifest) -> AsyncIterator[bytes]:
    return state_image.read_parts(lambda part: artifacts.get(file_name(keys, manifest.id, part)), manifest)
