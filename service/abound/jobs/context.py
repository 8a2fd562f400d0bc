"""The context of a running job: store, artifact store, model, heartbeat state and cleanup.

A method calls ``will_write``, ``pin`` and ``commit`` as they describe, so that a job leaves nothing behind however it
ends.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from abound.history import pins
from abound.jobs.record import Job
from abound.jobs.repository import JobRepository
from abound.log.catalog import CatalogModel, read_catalog
from abound.settings import Settings
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions.card import CARD
from abound_core.errors import ArtifactsUnavailable, Cancelled, Conflict, StoreUnavailable, UnknownModel
from abound_core.types import Offset

if TYPE_CHECKING:
    from abound.artifacts.artifact_store import ArtifactStore


class JobContext:
    """The context that a method gets. ``job`` is the record as it was at the start of this attempt."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        artifacts: ArtifactStore | None,
        living: CatalogModel,
        jobs: JobRepository,
        job: Job,
    ) -> None:
        self.settings = settings
        self.store = store
        self.living = living
        self.job = job
        self.committed = job.committed
        self._artifacts = artifacts
        self._jobs = jobs
        self._reported = (job.stage, job.progress)
        self._stop = threading.Event()
        self._pinned: Offset | None = None

    @property
    def artifacts(self) -> ArtifactStore:
        if self._artifacts is None:
            raise ArtifactsUnavailable(
                "there is no artifact store: set ABOUND_ARTIFACTS_URL to the same value on all hosts"
            )
        return self._artifacts

    @property
    def attempt_name(self) -> str:
        """Tells this attempt from one that was taken for dead and may still run."""
        return f"{self.job.id}-{self.job.attempt}"

    @property
    def threads(self) -> int:
        return self._jobs.params.n_threads

    def progress(self, stage: str, fraction: float) -> None:
        """Report the current step and the fraction done, 0..1. Raise Cancelled if the job should stop."""
        self._reported = (stage[:200], min(1.0, max(0.0, float(fraction))))
        self.check()

    def check(self) -> None:
        if self._stop.is_set():
            raise Cancelled("the job was asked to stop")

    @property
    def reported(self) -> tuple[str | None, float]:
        return self._reported

    def stop(self) -> None:
        self._stop.set()

    async def will_write(self, prefix: str) -> None:
        """Note that the job owns the artifacts below ``prefix``. Await it before the first of them is written.

        Choose a prefix of this attempt alone. Uncommitted artifacts are deleted when the job ends or is retried.
        """
        self.check()
        await self._jobs.add_owned_prefix(self.job, prefix)

    async def range(self, after: Offset | None, until: Offset | None) -> None:
        """Note in the record which log entries the job reads: those after ``after``, up to ``until``."""
        data_range = {"after": str(after) if after else None, "until": str(until) if until else None}
        await self._jobs.update(self.job, data_range=data_range)

    async def so_far(self, outcome: dict[str, Any]) -> None:
        """Save an intermediate outcome in the record. The next attempt finds it in ``job.outcome``."""
        await self._jobs.update(self.job, outcome=outcome)

    async def commit(self, *prefixes: str) -> None:
        """Commit the job, right before its first log entry makes the result visible.

        From then on the job cannot be cancelled, and the artifacts below ``prefixes`` belong to the log entry: they
        stay, however the job ends. If the job dies or fails after that, it is started again with ``job.committed``
        true, these prefixes in ``job.kept``, and the same ``job.id``. The method must then reach the same result. A
        committed job is never given up, only retried later each time.

        Raises Cancelled if the job should stop or has another holder, UnknownModel if the model was deleted.
        """
        self.check()
        await model_of(self.store, self.job)
        if prefixes:
            await self.serving_keys()
        if not await self._jobs.commit(self.job, *prefixes):
            self.stop()
            raise Cancelled("the job was asked to stop")
        self.committed = True

    async def serving_keys(self) -> ModelKeys:
        """Return the keys of the incarnation that is served now, which may have replaced that of the job.

        Raises Conflict if the one of the job is not kept: its events may have been forgotten.
        """
        catalog = await read_catalog(self.store)
        name, keys = self.job.model, self.living.keys
        living, former = catalog.get(name), catalog.former.get(name)
        if living is None:
            raise UnknownModel(f"the model {name} was deleted")
        if living.keys != keys and (former is None or former.keys != keys):
            raise Conflict(f"the model {name} was replaced while the job ran; submit the job again")
        return living.keys

    async def pin(self, offset: Offset) -> None:
        """Keep everything after ``offset`` in history while the job runs; await it before reading there.

        The pin is renewed until the job has ended. A later pin replaces an earlier one.
        """
        self._pinned = offset
        await self.renew_pin()

    async def renew_pin(self) -> None:
        if self._pinned is not None:
            await pins.pin(self.store, self.living.keys, f"job-{self.attempt_name}", self._pinned)

    async def unpin(self) -> None:
        if self._pinned is not None:
            with contextlib.suppress(StoreUnavailable):  # the pin expires on its own
                await pins.unpin(self.store, self.living.keys, f"job-{self.attempt_name}")


async def model_of(store: Store, job: Job) -> CatalogModel:
    """Return the catalog entry of a job's model. Raises UnknownModel even if another model has the same name by now."""
    living = (await read_catalog(store)).get(job.model)
    if living is None or living.origin != job.origin:
        raise UnknownModel(f"the model {job.model} was deleted")
    return living


async def delete_uncommitted(jobs: JobRepository, job: Job, artifacts: ArtifactStore | None) -> None:
    """Delete the artifacts that a job wrote and did not commit. Repeating it is safe.

    A failover of the store may have lost the commit although the result is visible. So a version that has its card
    stays, because the card is written after the commit.
    """
    for prefix in await jobs.owned_prefixes(job.id):
        if artifacts is None:
            raise ArtifactsUnavailable(
                "the artifacts of the job cannot be deleted without an artifact store: set ABOUND_ARTIFACTS_URL here"
            )
        if f"{prefix}/{CARD}" in await artifacts.names(prefix):
            continue
        await artifacts.clear(prefix)
