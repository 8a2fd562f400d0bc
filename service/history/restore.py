"""The beginning: the first state of a model from which everything since can be replayed.

That is the empty one as long as the log has its first entry, or history does; else the base of history.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from abound.core.errors import (
    ArtifactsUnavailable,
    Damaged,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
    UnknownSnapshot,
)
from abound.core.model.live_model import LiveModel
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.history import MENDING, History
from abound.service.log.stream import MENDING as STREAM_MENDING
from abound.service.log.stream import holds
from abound.service.model.replicated_model import ModelReplica
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import Manifest, ids, manifest_of
from abound.service.snapshots.snapshots import load
from abound.service.store.client import Store

log = structlog.get_logger(__name__)


async def restore_beginning(
    store: Store,
    artifacts: Artifacts | None,
    model: ModelReplica,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Put a model into the state at its beginning; what comes after is replayed with ``past.entries``.

    Raises
    ------
    Damaged, UnknownApplyVersion
        The log has lost its beginning and there is no history, or its base cannot be used. Says what mends it.
    ArtifactsUnavailable, StoreUnavailable
    """
    model.start_anew()
    if await holds(store, model.keys.log, START, b""):
        return
    contents = await History(store, artifacts, model.keys).contents()
    if contents is None:
        why = "" if artifacts is not None else "; set ABOUND_ARTIFACTS_URL for one to be kept from now on"
        raise Damaged(f"the log of {model.name} has lost its beginning, and there is no history of it{why}")
    if artifacts is None:
        raise ArtifactsUnavailable(
            f"the log of {model.name} has its beginning in history, and no artifact store is set. "
            "Set ABOUND_ARTIFACTS_URL"
        )
    base = contents.base
    if base is None:
        return
    try:
        live = await state_files.load(artifacts, model.keys, base.index, base.digest, model.limits, progress)
    except (Damaged, UnknownArtifact) as error:
        raise Damaged(
            f"the base of the history of {model.name} cannot be used: {error}. "
            f"Bring it back from a copy; or, while snapshots are good, {MENDING}"
        ) from error
    model.restore(live, base.position)


async def restore_newest(
    store: Store,
    model: ModelReplica,
    progress: Callable[[float], None] = lambda done: None,
    until: Offset | None = None,
    artifacts: Artifacts | None = None,
) -> Manifest | None:
    """Put a model into the state of its newest snapshot that is whole and has its place in the log.

    One that is past ``until`` does not count.

    None, and the state at its beginning (``service/history/restore.py``), when there is no such snapshot. What comes
    after is replayed with ``past.entries``.

    Raises
    ------
    Damaged, UnknownApplyVersion
        No snapshot can be used, and log and history do not have its beginning. Says what is wrong with each.
    UnknownOffset
        History begins past ``until``.
    ArtifactsUnavailable, StoreUnavailable
    """
    bad: list[str] = []
    found = await _newest_whole(store, model, lambda offset: until is None or offset <= until, bad, progress)
    if found is not None:
        manifest, live = found
        model.restore(live, manifest.position)
        return manifest
    try:
        await restore_beginning(store, artifacts, model, progress)
    except (Damaged, ArtifactsUnavailable) as error:
        reasons = f" ({'; '.join(bad)})" if bad else ""
        mending = f". Bring the store back from a copy, or: {STREAM_MENDING}" if isinstance(error, Damaged) else ""
        raise type(error)(
            f"none of the snapshots of {model.name} can be used{reasons}, and {error}{mending}"
        ) from error
    if until is not None and model.offset > until:
        raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    return None


async def restore_past(store: Store, model: ModelReplica, at: Offset) -> bool:
    """Put a model that is halted into the state of its newest snapshot at ``at`` or past it.

    False, and no change, without one; or when somebody else has loaded the model anew meanwhile, and it goes on.
    """
    before = model.position
    found = await _newest_whole(store, model, lambda offset: offset[:2] >= at[:2], [], lambda done: None)
    if found is None or model.halted is None or model.position is not before:
        return False
    manifest, live = found
    model.restore(live, manifest.position)
    return True


async def _newest_whole(
    store: Store,
    model: ModelReplica,
    fits: Callable[[Offset], bool],
    bad: list[str],
    progress: Callable[[float], None],
) -> tuple[Manifest, LiveModel] | None:
    """The newest snapshot at an offset that fits, whole and with its place in the log; ``bad``: why others are not."""
    for name in await ids(store, model.keys):
        try:
            manifest = await manifest_of(store, model.keys, name)
            if not fits(manifest.position.offset):
                continue
            if not await holds(store, model.keys.log, manifest.position.offset, manifest.position.checksum):
                raise Damaged(f"the log does not go on from its offset {manifest.offset}")
            return manifest, await load(store, model.keys, manifest, model.limits, progress)
        except (Damaged, UnknownApplyVersion, UnknownSnapshot) as error:
            log.warning("passing over a snapshot", model=model.name, snapshot=name, reason=str(error))
            bad.append(f"{name}: {error}")
    return None
