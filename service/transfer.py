"""A model on its way out of the service and into it, as one file (``model_file.py``).

**export**: the newest snapshot at or past the present offset, made by the worker, so nothing pauses for it; its parts
go out as they are. **import**: the parts go into the artifact store as they come, checked one by one; the state is
made of them once, in a thread, to see that it is whole; then all replicas adopt it (``adoption.py``). Only a model that
has learned nothing can take one over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import structlog

from core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Conflict,
    Damaged,
    InvalidInstance,
    Malformed,
    UnknownApplyVersion,
    UnknownModel,
)
from core.limits import Limits
from core.types import Offset
from service import indexes, snapshots
from service.adoption import Place, begin
from service.artifacts import Artifacts
from service.catalog import Living, ModelKeys
from service.events import APPLY_VERSION
from service.indexes import IndexManifest
from service.manifest import Manifest
from service.model_file import Header, Reader, packed
from service.replica import Replica
from service.store import reaching

log = structlog.get_logger(__name__)


class Exported(NamedTuple):
    """A model on its way out.

    Attributes
    ----------
    manifest : Manifest
        Of the snapshot that it is.
    size : int
        Of the file, bytes.
    pieces : async iterator of bytes
        Ends early, with an error, when a part of the snapshot is gone or damaged.
    """

    manifest: Manifest
    size: int
    pieces: AsyncIterator[bytes]


async def export_model(replica: Replica, name: str) -> Exported:
    """A model as one file, at its present offset or a little past it.

    Raises
    ------
    UnknownModel
    NotReady
        No worker is there to make a snapshot.
    StoreUnavailable
    """
    keys = replica.model(name).keys
    manifest = await replica.request_snapshot(name)
    head = packed(
        Header(
            apply_version=APPLY_VERSION,
            model=name,
            offset=manifest.offset,
            digest=manifest.digest,
            state=manifest.state,
            arrays=manifest.arrays,
            parts=manifest.parts,
        )
    )

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        async for part in snapshots.read_parts(replica.store, keys, manifest):
            yield part

    return Exported(manifest, len(head) + manifest.size, pieces())


async def import_model(
    replica: Replica, name: str, pieces: AsyncIterator[bytes], limit: int, prepare_seconds: float
) -> Offset:
    """Let a model take over what a file holds; it is created if there is none. Where it has it from.

    Raises
    ------
    Malformed
        The file is damaged.
    InvalidInstance
        A newer release wrote it.
    TooLarge
        It is over ``limit`` bytes.
    Conflict
        The model has learned.
    ArtifactsUnavailable, NotReady, StoreUnavailable, OutcomeUnknown
    """
    artifacts = replica.artifacts
    if artifacts is None:
        raise ArtifactsUnavailable("there is no artifact store to import by: set ABOUND_ARTIFACTS_URL")
    await artifacts.join(replica.store)
    _refuse_taught(replica, name)
    try:
        reader = Reader(pieces, limit)
        header = await reader.header()
        config = header.config
        created = await replica.models.create(name, config)
        try:
            model = replica.model(name)
            return await _take_over(replica, artifacts, Living(model.keys, config), header, reader, prepare_seconds)
        except BaseException:
            if created:
                with contextlib.suppress(AboundError):
                    await replica.models.delete(name)
            raise
    except Damaged as error:
        raise Malformed(str(error)) from error
    except UnknownApplyVersion as error:
        raise InvalidInstance(str(error), "body") from error


async def _take_over(
    replica: Replica, artifacts: Artifacts, living: Living, header: Header, reader: Reader, prepare_seconds: float
) -> Offset:
    keys = living.keys
    place = Place(store=replica.store, artifacts=artifacts, living=living, prepare_seconds=prepare_seconds)
    index = indexes.new_id()
    async with begin(place, f"import-{index}") as adoption:
        try:
            i = 0
            async for part in reader.parts(header):
                await artifacts.put(indexes.part_name(keys, index, i), part)
                i += 1
            recipe = {"method": "import", "model": header.model, "offset": header.offset}
            manifest = await indexes.finish(
                artifacts,
                keys,
                index,
                adoption.after,
                recipe,
                header.digest,
                header.state,
                header.arrays,
                list(header.parts),
            )
            await asyncio.to_thread(_try, artifacts, keys, manifest)
            await replica.wait_for(keys.name, adoption.after, prepare_seconds)  # another one may have taught it
            _refuse_taught(replica, keys.name)
            at = await adoption.adopt(manifest, f"import of {header.model} at {header.offset}"[:1000])
        except BaseException:
            if not adoption.committed:
                with contextlib.suppress(ArtifactsUnavailable):
                    await indexes.delete(artifacts, keys, index)
            raise
        await replica.wait_for(keys.name, at, prepare_seconds)
    with reaching():  # for the worker: starts need the index no more then
        await replica.store.client.set(keys.of("snapshot-wanted"), str(at), ex=3600)
    return at


def _try(artifacts: Artifacts, keys: ModelKeys, manifest: IndexManifest) -> None:
    """Make the state once; Damaged when that is not possible. In a thread, with an event loop of its own."""
    asyncio.run(indexes.load(artifacts, keys, manifest.id, manifest.digest, Limits()))


def _refuse_taught(replica: Replica, name: str) -> None:
    """Conflict when a model has learned something that the import would put aside."""
    with contextlib.suppress(UnknownModel):
        learned = replica.model(name).live.n_learned
        if learned:
            raise Conflict(
                f"the model {name} has learned {learned} instances; import under another name, or delete it first"
            )
