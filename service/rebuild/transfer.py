"""A model on its way out of the service and into it, as one file (``service/snapshots/model_file.py``).

**export**: the newest snapshot at or past the present offset, made by the worker, so nothing pauses for it; its parts
go out as they are. **import**: the parts are checked one by one as they come, and the state is made of them, to see
that it is whole and what memory it takes. Until then nobody knows of it. Then the model is created if there is none,
the state is written into the artifact store, and all replicas adopt it (``service/rebuild/adoption.py``). Only a model
that has learned nothing can take one over.

A model that was created stays, whatever becomes of the import after that: somebody else may have taught it already,
and the catalog and a model's log do not lie together, so nothing can look into the one and write the other at once. It
is empty then, and the same import fits into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import structlog

from abound.core.config import ModelConfig
from abound.core.errors import (
    ArtifactsUnavailable,
    Cancelled,
    Conflict,
    Damaged,
    InvalidInstance,
    Malformed,
    UnknownApplyVersion,
    UnknownModel,
)
from abound.core.limits import Limits
from abound.core.model.active_version import LIVE
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.log.catalog import Living
from abound.service.log.events import APPLY_VERSION
from abound.service.rebuild.adoption import Place, begin
from abound.service.replica.memory_budget import Budget
from abound.service.replica.replica import Replica
from abound.service.snapshots import snapshots, state_files
from abound.service.snapshots.arrays import live_of
from abound.service.snapshots.manifest import Manifest
from abound.service.snapshots.model_file import Header, Reader, packed
from abound.service.snapshots.state_files import IndexManifest
from abound.service.store.client import reaching
from abound.service.store.keys import ModelKeys
from abound.service.versions.card import reading_of

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
    replica: Replica, name: str, pieces: AsyncIterator[bytes], limit: int, prepare_seconds: float, budget: Budget
) -> Offset:
    """Let a model take over what a file holds; it is created if there is none. Where it has it from.

    Nothing is changed, nor seen by others, until the file has come whole and is a model that there is memory for.

    Raises
    ------
    Malformed
        The file is damaged.
    InvalidInstance
        A newer release wrote it; or no model can have this name.
    TooLarge
        It is over ``limit`` bytes.
    NoRoom
        With this model, all of them would take more memory than they may.
    Conflict
        The model has learned, another index is being made for it, its active version knows instances as they are read
        otherwise, or there are as many models as there may be.
    ArtifactsUnavailable, NotReady, StoreUnavailable, OutcomeUnknown
    """
    artifacts = replica.artifacts
    if artifacts is None:
        raise ArtifactsUnavailable("there is no artifact store to import by: set ABOUND_ARTIFACTS_URL")
    await artifacts.join(replica.store)
    _refuse_taught(replica, name)
    replica.models.check_new(name)
    try:
        reader = Reader(pieces, limit)
        header = await reader.header()
        with budget.expecting(name, replica.models.all) as expect:
            return await _take_over(replica, artifacts, name, header, reader, expect, prepare_seconds)
    except Damaged as error:
        raise Malformed(str(error)) from error
    except UnknownApplyVersion as error:
        raise InvalidInstance(str(error), "body") from error


async def _take_over(
    replica: Replica,
    artifacts: Artifacts,
    name: str,
    header: Header,
    reader: Reader,
    expect: Callable[[int], None],
    prepare_seconds: float,
) -> Offset:
    config = header.config
    _refuse_read_otherwise(replica, name, config)
    expect(header.size)  # to read it takes as much, and no more comes
    live = await live_of(
        header.state, header.arrays, header.size, header.digest, reader.parts(header), Limits(), lambda done: None
    )
    expect(live.n_bytes + live.n_bytes_ahead)
    _refuse_taught(replica, name)
    await replica.models.create(name, config)
    keys = replica.model(name).keys
    place = Place(
        store=replica.store,
        artifacts=artifacts,
        living=Living(keys, config),
        prepare_seconds=prepare_seconds,
    )
    index = state_files.new_id()
    async with begin(place, f"import-{index}") as adoption:
        try:
            recipe = {"method": "import", "model": header.model, "offset": header.offset}
            manifest = await _write(artifacts, keys, live, adoption.after, recipe, index)
            del live  # what is adopted is loaded again
            await replica.wait_for(name, adoption.after, prepare_seconds)  # another one may have taught it
            _refuse_taught(replica, name)
            at = await adoption.adopt(manifest, f"import of {header.model} at {header.offset}"[:1000])
        except BaseException:
            if not adoption.committed:
                with contextlib.suppress(ArtifactsUnavailable):
                    await state_files.delete(artifacts, keys, index)
            raise
        await replica.wait_for(name, at, prepare_seconds)
    with reaching():  # for the worker: starts need the index no more then
        await replica.store.client.set(keys.of("snapshot-wanted"), str(at), ex=3600)
    return at


async def _write(
    artifacts: Artifacts, keys: ModelKeys, live: LiveModel, after: Offset, recipe: dict[str, Any], name: str
) -> IndexManifest:
    """``indexes.write``, in a thread, with an event loop of its own: this process answers meanwhile."""
    given_up = threading.Event()

    async def between() -> None:
        if given_up.is_set():
            raise Cancelled("nobody waits for the index")

    try:
        return await asyncio.to_thread(
            lambda: asyncio.run(state_files.write(artifacts, keys, live, after, recipe, between, name))
        )
    finally:
        given_up.set()


def _refuse_taught(replica: Replica, name: str) -> None:
    """Conflict when a model has learned something that the import would put aside."""
    with contextlib.suppress(UnknownModel):
        learned = replica.model(name).live.n_learned
        if learned:
            raise Conflict(
                f"the model {name} has learned {learned} instances; import under another name, or delete it first"
            )


def _refuse_read_otherwise(replica: Replica, name: str, config: ModelConfig) -> None:
    """Conflict when a model's active version knows instances otherwise than they would be read after the import."""
    with contextlib.suppress(UnknownModel):
        live = replica.model(name).live
        if not live.serving.is_live and reading_of(live.config) != reading_of(config):
            raise Conflict(
                f"the version {live.serving.version} of {name} is active and knows instances as they are read "
                f"otherwise than by the model in the file; activate {LIVE} before"
            )
