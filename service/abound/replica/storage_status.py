"""Storage status: what the store and the artifact store hold of each model, refreshed every few seconds.

It covers log, history and newest snapshot. A replica also reconnects to the artifact store here after an outage.
Learning and answering do not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import NamedTuple

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.availability import AvailabilityMonitor
from abound.history import history as history_manifest
from abound.history import worker_status
from abound.history.history import Extent
from abound.history.worker_status import WorkerStatus
from abound.log.stream import Trim, trimmed_key
from abound.state import snapshots
from abound.state.replicated_model import ReplicatedModel
from abound.state.state_image import StateManifest
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.tasks import forever
from abound.versions.promotion import standings as standing
from abound.versions.promotion.standings import Standings
from abound_core.errors import Corrupted

LOOK_SECONDS = 5.0

LOST = "history, jobs and versions are unavailable"

NO_ARTIFACTS = (
    "no artifact store is set, so there is no history and the log is never trimmed: learning is refused when it is "
    "full. Set ABOUND_ARTIFACTS_URL"
)


class ModelStorage(NamedTuple):
    log_entries: int  # without the trimmed part of the log
    log_bytes: int  # the same, as far as this replica has applied it
    trimmed_entries: int
    history: Extent | None  # None if there is no history yet
    history_failure: str | None  # why the list of segments cannot be read
    snapshot: StateManifest | None  # the newest readable one
    snapshot_at: float  # when it was made, on this machine's monotonic clock
    standings: Standings | None = None  # None while no process evaluates challengers
    worker_status: WorkerStatus = WorkerStatus()

    @property
    def failure(self) -> str | None:
        """Why the log cannot be trimmed; None if no reason is known."""
        return self.history_failure or self.worker_status.trouble

    @property
    def snapshot_age(self) -> float | None:
        return None if self.snapshot is None else max(0.0, time.monotonic() - self.snapshot_at)

    def figures(self) -> dict[str, float]:
        extent = self.history
        return {
            "log_entries": self.log_entries,
            "log_bytes": self.log_bytes,
            "history_bytes": extent.n_bytes if extent else 0,
            "history_segments": extent.n_segments if extent else 0,
            "history_beginning": extent.first.milliseconds / 1000 if extent else 0,
            "snapshot_age": self.snapshot_age or 0.0,
            "untrimmed": float(self.failure is not None),
            **_figures_of(self.standings),
        }


class StorageStatus:
    def __init__(self, store: Store, artifacts: ArtifactStore | None, models: Mapping[str, ReplicatedModel]) -> None:
        self._store = store
        self._models = models
        self._kept: dict[ModelKeys, ModelStorage] = {}
        self._joining = AvailabilityMonitor(store, artifacts, LOST) if artifacts is not None else None

    def get(self, model: ReplicatedModel) -> ModelStorage | None:
        return self._kept.get(model.keys)

    @property
    def failure(self) -> str | None:
        """Why there is no history; None if the artifact store is available."""
        return self._joining.trouble if self._joining is not None else NO_ARTIFACTS

    def failures(self) -> list[str]:
        if self.failure is not None:
            return [self.failure]
        return [f"{keys.name}: {kept.failure}" for keys, kept in self._kept.items() if kept.failure is not None]

    async def run(self) -> None:
        await forever(self.refresh, LOOK_SECONDS)

    async def join(self) -> None:
        """Check whether the artifact store is available, without waiting for a slow one."""
        if self._joining is not None:
            await self._joining.poll()

    async def stop(self) -> None:
        if self._joining is not None:
            await self._joining.stop()

    async def refresh(self) -> None:
        await self.join()
        models = list(self._models.values())
        self._kept = {model.keys: await self._storage_of(model) for model in models}

    async def _storage_of(self, model: ReplicatedModel) -> ModelStorage:
        keys = model.keys
        with store_errors():
            async with self._store.client.pipeline(transaction=False) as pipe:
                pipe.xlen(keys.log)
                pipe.get(trimmed_key(keys.log))
                pipe.get(history_manifest.history_key(keys))
                pipe.hgetall(keys.key("worker-status"))
                pipe.time()
                n_entries, trimmed, packed, said, (seconds, microseconds) = await pipe.execute()
        extent = trouble = None
        trim = 0
        try:
            trim = Trim.parse(trimmed).n_entries
            if packed is not None:
                extent = (await asyncio.to_thread(history_manifest.parse, packed, keys)).extent  # the list may be long
        except Corrupted as error:
            trouble = str(error)
        before = self._kept.get(keys)
        snapshot = await snapshots.newest(self._store, keys, before.snapshot if before else None)
        age = seconds + microseconds / 1e6 - (snapshot.created / 1000 if snapshot else 0)
        found = None
        with contextlib.suppress(Corrupted):  # written by another release
            found = await standing.read(self._store, keys)
        snapshot_at = time.monotonic() - age
        kept = ModelStorage(n_entries, model.held_log_bytes, trim, extent, trouble, snapshot, snapshot_at, found)
        return kept._replace(worker_status=worker_status.parse(said))


def _figures_of(found: Standings | None) -> dict[str, float]:
    if found is None:
        return {}
    return {
        "challengers": len(found.contest.comparisons),
        "promotions": found.promotions,
        "rollbacks": found.rollbacks,
    }
