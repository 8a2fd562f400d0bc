"""Load a model: its newest snapshot, or its first state, from which everything since can be replayed.

The first state is what a refit made, if any. Otherwise it is the base of history, or empty while the log, or history,
has the log's first entry.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import WAY_OUT, History
from abound.log.stream import holds
from abound.state import snapshots, state_files
from abound.state.replicated_model import ReplicatedModel
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound_core.errors import (
    ArtifactsUnavailable,
    Corrupted,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
    UnknownSnapshot,
)
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)


async def load_first_state(
    store: Store,
    artifacts: ArtifactStore | None,
    model: ReplicatedModel,
    progress: Callable[[float], None] = lambda done: None,
    until: Offset | None = None,
) -> None:
    """Put a model into its first state; ``full_log.read_entries`` yields what to replay on top.

    The state of a refit past ``until`` is not used. Raises Corrupted if the log has lost its start and there is no
    history. The message has the way out.
    """
    model.reset()
    history = History(store, artifacts, model.keys)
    contents = await history.manifest()
    if contents is None:
        if await holds(store, model.keys.log, START, b""):
            return
        contents = await history.manifest()  # the beginning may have been moved to history meanwhile
    if contents is None:
        raise Corrupted(f"the log of {model.name} has lost its beginning, and there is no history of it. {WAY_OUT}")
    if artifacts is None:
        if await holds(store, model.keys.log, START, b"") and contents.refitted is None:
            return
        raise ArtifactsUnavailable(
            f"the log of {model.name} has its beginning in history, and no artifact store is set. "
            "Set ABOUND_ARTIFACTS_URL"
        )
    base = contents.first_state(until)
    if base is None:
        return
    try:
        live = await state_files.load(artifacts, model.keys, base.index, base.digest, model.limits, progress)
    except (Corrupted, UnknownArtifact) as error:
        raise Corrupted(f"the base of the history of {model.name} cannot be used: {error}. {WAY_OUT}") from error
    model.restore(live, base.position)


async def load_newest(
    store: Store,
    model: ReplicatedModel,
    progress: Callable[[float], None] = lambda done: None,
    until: Offset | None = None,
    artifacts: ArtifactStore | None = None,
) -> StateManifest | None:
    """Put a model into the state of its newest good snapshot at or before ``until``.

    A snapshot is good if it is undamaged and the log contains its entry. Without one, the model gets its first state
    and the return value is None. ``full_log.read_entries`` yields what to replay on top.

    Raises UnknownOffset if history starts past ``until``, and Corrupted, with the fault of each snapshot, if neither
    log nor history has the start.
    """
    bad: list[str] = []
    found = await _newest_whole(store, model, until, bad, progress)
    if found is not None:
        manifest, live = found
        model.restore(live, manifest.position)
        return manifest
    try:
        await load_first_state(store, artifacts, model, progress, until)
    except (Corrupted, ArtifactsUnavailable) as error:
        reasons = f" ({'; '.join(bad)})" if bad else ""
        raise type(error)(f"none of the snapshots of {model.name} can be used{reasons}, and {error}") from error
    if until is not None and model.offset > until:
        raise UnknownOffset(f"the history of {model.name} begins at {model.offset}, past {until}", model.offset)
    return None


async def _newest_whole(
    store: Store,
    model: ReplicatedModel,
    until: Offset | None,
    bad: list[str],
    progress: Callable[[float], None],
) -> tuple[StateManifest, LiveModel] | None:
    """Return the newest good snapshot up to ``until``, with its state; append the faults of others to ``bad``."""
    names = await snapshots.ids(store, model.keys)
    for name in names:
        try:
            manifest = await snapshots.read_manifest(store, model.keys, name)
            if until is not None and manifest.position.offset > until:
                continue
            if not await holds(store, model.keys.log, manifest.position.offset, manifest.position.checksum):
                raise Corrupted(f"the log does not continue from its offset {manifest.offset}")
            return manifest, await snapshots.load(store, model.keys, manifest, model.limits, progress)
        except (Corrupted, UnknownApplyVersion, UnknownSnapshot) as error:
            log.warning("snapshot skipped", model=model.name, snapshot=name, reason=str(error))
            bad.append(f"{name}: {error}")
    if names != await snapshots.ids(store, model.keys):  # newer ones have replaced those that could not be read
        bad.clear()
        return await _newest_whole(store, model, until, bad, progress)
    return None
