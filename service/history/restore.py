"""The beginning: the first state of a model from which everything since can be replayed.

That is the empty one as long as the log has its first entry, or history does; else the base of history.
"""

from __future__ import annotations

from collections.abc import Callable

from abound.core.errors import ArtifactsUnavailable, Damaged, UnknownArtifact
from abound.core.types import START
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.history import MENDING, History
from abound.service.log.stream import holds
from abound.service.model.replicated_model import ModelReplica
from abound.service.snapshots import state_files
from abound.service.store.client import Store


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
