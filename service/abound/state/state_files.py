"""State files: the state of a model in the artifact store, to be adopted or as the base of history.

    <model>/<incarnation>/index/<id>/...   a state image (``abound/state/state_image.py``)

A state file replaces all events up to its offset, even if it was made without some of them. Its **recipe**
records how it was made, so that it can be made again from a history without erased events.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from abound.artifacts.artifact_store import ArtifactStore
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
    recipe: dict[str, Any],
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
        return await state_image.write(put, keys, name, live, position, PART_BYTES, between, recipe=recipe)
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
        raise Corrupted(f"the state file {name} has another digest than the one to be adopted")
    try:
        return await state_image.load(manifest, _read_parts(artifacts, keys, manifest), limits, progress)
    except Corrupted as error:
        raise Corrupted(f"the state file {name} is damaged: {error}") from error


async def check(artifacts: ArtifactStore, keys: ModelKeys, manifest: StateManifest) -> None:
    """Read a state file again; raise Corrupted unless it is intact."""
    if await read_manifest(artifacts, keys, manifest.id) != manifest:
        raise Corrupted(f"the manifest of the state file {manifest.id} differs from the one that was written")
    async for _ in _read_parts(artifacts, keys, manifest):
        pass


async def delete(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> None:
    await artifacts.delete(file_name(keys, name, MANIFEST))
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


def file_name(keys: ModelKeys, name: str, file: str) -> str:
    return f"{folder(keys)}/{name}/{file}"


def _read_parts(artifacts: ArtifactStore, keys: ModelKeys, manifest: StateManifest) -> AsyncIterator[bytes]:
    return state_image.read_parts(lambda part: artifacts.get(file_name(keys, manifest.id, part)), manifest)
