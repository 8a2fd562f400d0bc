from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import HistoryParams
from abound.log.stream import LogParams
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound.tasks import do_nothing


@dataclass(frozen=True, kw_only=True)
class ReplaceContext:
    """Stores, model, callbacks and limits of a replacement."""

    store: Store
    artifacts: ArtifactStore  # already joined to the store
    name: str
    origin: str  # of the model; see ``abound/log/catalog.py``
    record: str  # id by which a repetition knows that the replacement was made
    # Awaited repeatedly until the replacement is committed. An exception from it ends the work.
    checkpoint: Callable[[], Awaitable[None]] = do_nothing
    # Awaited right before the log is closed. From then on the replacement is not cancelled.
    commit: Callable[[], Awaitable[None]] = do_nothing
    progress: Callable[[str, float], None] = lambda stage, done: None
    # Longest wait for replicas to load the new incarnation. The others are not ready until they have.
    prepare_seconds: float = 300.0
    undo_bytes: int = 2**30  # most bytes in the store of an incarnation that is kept for an undo; 0: none is kept
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    history: HistoryParams = field(default_factory=HistoryParams)
