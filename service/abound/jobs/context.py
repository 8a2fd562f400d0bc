"""The context of a running job: store, artifact store, model, heartbeat state and cleanup.

A method follows three rules, so that a job leaves nothing behind however it ends:

1. It awaits ``context.will_write(prefix)`` before it writes the first artifact below ``prefix``. Uncommitted
   artifacts are deleted when the job ends or is retried. State files are left to the garbage collection, which
   checks history and log (``abound/history/garbage.py``). The prefix contains the job and its attempt
   (``context.attempt_name``). An attempt that was taken for dead therefore never writes among the files of the next
   one.
2. It awaits ``context.pin(offset)`` before it reads history or log after ``offset``. Pins are renewed while the job
   runs and removed when it has ended.
3. It awaits ``context.commit(prefix, ...)`` right before it appends the first log entry that makes the result
   visible. ``commit`` raises Cancelled if the job should stop, and UnknownModel if its model is gone. From then on
   the job cannot be cancelled, and the prefixes belong to the log entry: they stay, however the job ends. If the
   job dies or fails after that, it is started again with ``context.job.committed`` true, these prefixes in
   ``context.job.kept``, and the same ``context.job.id``. The method must then reach the same result. A committed
   job is never given up, only retried later each time.
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
from abound.state import state_files
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions.card import CARD
from abound_core.errors import ArtifactsUnavailable, Cancelled, StoreUnavailable, UnknownModel
from abound_core.types import Offset

if TYPE_CHECKING:
    from abound.artifacts.artifact_store import ArtifactStore


class JobContext:
    """The context that a method gets; the module describes its rules.

    Attributes
    ----------
    settings : Settings
    store : Store
        The store of the log entries.
    artifacts : ArtifactStore
        Joined; reading it raises ArtifactsUnavailable if no artifact store is configured.
    living : NamedTuple
        The model's entry in the catalog: its keys and the configuration that it was created with.
    job : Job
        The record as it was at the start of this attempt.
    committed : bool
        The job has committed.
    """

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
        """The artifact store."""
        if self._artifacts is None:
            raise ArtifactsUnavailable(
                "there is no artifact store: set ABOUND_ARTIFACTS_URL to the same value on all hosts"
            )
        return self._artifacts

    @property
    def attempt_name(self) -> str:
        """A name that is unique to this job and attempt, for prefixes."""
        return f"{self.job.id}-{self.job.attempt}"

    @property
    def threads(self) -> int:
        """Number of threads that the job may use."""
        return self._jobs.params.n_threads

    def progress(self, stage: str, fraction: float) -> None:
        """Report the current step and how much of the job is done, 0..1. Raise Cancelled if the job should stop."""
        self._reported = (stage[:200], min(1.0, max(0.0, float(fraction))))
        self.check()

    def check(self) -> None:
        """Raise Cancelled if the job should stop."""
        if self._stop.is_set():
            raise Cancelled("the job was asked to stop")

    @property
    def reported(self) -> tuple[str | None, float]:
        """The step and fraction that were reported last."""
        return self._reported

    def stop(self) -> None:
        """Make ``check`` and ``progress`` raise Cancelled from now on."""
        self._stop.set()

    async def will_write(self, prefix: str) -> None:
        """Note that the job owns the artifacts below ``prefix``."""
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
        """Commit the job: it can no longer be cancelled, and no longer owns the artifacts below ``prefixes``.

        Raises
        ------
        Cancelled
            The job should stop, or another worker has taken it over.
        UnknownModel
            The model was deleted.
        """
        self.check()
        await model_of(self.store, self.job)
        if not await self._jobs.commit(self.job, *prefixes):
            self.stop()
            raise Cancelled("the job was asked to stop")
        self.committed = True

    async def pin(self, offset: Offset) -> None:
        """Keep everything after ``offset`` in history while the job runs. A later pin replaces an earlier one."""
        self._pinned = offset
        await self.renew_pin()

    async def renew_pin(self) -> None:
        """Renew the pin, if there is one."""
        if self._pinned is not None:
            await pins.pin(self.store, self.living.keys, f"job-{self.attempt_name}", self._pinned)

    async def unpin(self) -> None:
        """Remove the pin. If the store cannot be reached, the pin expires on its own."""
        if self._pinned is not None:
            with contextlib.suppress(StoreUnavailable):
                await pins.unpin(self.store, self.living.keys, f"job-{self.attempt_name}")


async def model_of(store: Store, job: Job) -> CatalogModel:
    """Return the catalog entry of a job's model.

    Raises UnknownModel if the model was deleted, even if another model has the same name by now.
    """
    living = (await read_catalog(store)).get(job.model)
    if living is None or living.keys.incarnation != job.incarnation:
        raise UnknownModel(f"the model {job.model} was deleted")
    return living


async def delete_uncommitted(jobs: JobRepository, job: Job, artifacts: ArtifactStore | None) -> None:
    """Delete the artifacts that a job wrote and did not commit. Repeating it is safe.

    A failover of the store may have lost the commit although the result is visible. State files therefore stay: only
    history and log can tell whether they are used. A version that has its card stays too, because the card is
    written after the commit.

    Raises ArtifactsUnavailable if the artifacts cannot be deleted.
    """
    indexed = state_files.folder(ModelKeys(job.model, job.incarnation))
    for prefix in await jobs.owned_prefixes(job.id):
        if artifacts is None:
            raise ArtifactsUnavailable(
                "the artifacts of the job cannot be deleted without an artifact store: set ABOUND_ARTIFACTS_URL here"
            )
        if prefix.startswith(f"{indexed}/") or f"{prefix}/{CARD}" in await artifacts.names(prefix):
            continue
        await artifacts.clear(prefix)
