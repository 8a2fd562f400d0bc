"""What a job is given to work with: the store, the artifacts, its model, and the ways to be stopped and cleaned up.

Three promises that a method keeps, so that a job leaves nothing behind, however it ends:

1. ``await context.will_write(prefix)`` before the first artifact below ``prefix`` is written. Everything there is
   deleted when the job has ended, or before it is begun again, unless it was committed. Indexes are left to their
   sweep, which asks history and log (``service/history/garbage.py``). The prefix names the job and its attempt
   (``context.own``), so that one that was taken for dead never writes among the files of the next.
2. ``await context.pin(offset)`` before it reads history or log after ``offset``. Pins are renewed while the job runs
   and taken away when it has ended.
3. ``await context.commit(prefix, ...)`` right before the first event that makes the result visible is appended. It
   raises Cancelled if the job is to stop, and UnknownModel if its model is gone; from then on it can no longer be
   cancelled, and these prefixes are the event's, not the job's: they stay, however the job ends. A job that dies or
   fails after that is begun again, with ``context.job.committed`` true, these prefixes in ``context.job.kept`` and the
   same ``context.job.id``: what it does must then come to the same end. It is not given up, only tried later each
   time.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from abound.core.errors import ArtifactsUnavailable, Cancelled, StoreUnavailable, UnknownModel
from abound.core.types import Offset
from abound.service.history import pins
from abound.service.jobs.record import Job
from abound.service.jobs.repository import Jobs
from abound.service.log.catalog import Living, read_catalog
from abound.service.settings import Settings
from abound.service.snapshots import state_files
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.versions.card import CARD

if TYPE_CHECKING:
    from abound.service.artifacts.artifact_store import Artifacts


class JobContext:
    """See above.

    Attributes
    ----------
    settings : Settings
    store : Store
        Of the events.
    artifacts : Artifacts
        Joined; ArtifactsUnavailable where there is none.
    living : Living
        The model as the catalog has it: keys and the configuration that it was created with.
    job : Job
        The record as it was when the job was begun (this time).
    committed : bool
        It has passed the point of no return, by now.
    """

    def __init__(
        self, settings: Settings, store: Store, artifacts: Artifacts | None, living: Living, jobs: Jobs, job: Job
    ) -> None:
        self.settings = settings
        self.store = store
        self.living = living
        self.job = job
        self.committed = job.committed
        self._artifacts = artifacts
        self._jobs = jobs
        self._told = (job.stage, job.progress)
        self._stop = threading.Event()
        self._pin: pins.Pin | None = None

    @property
    def artifacts(self) -> Artifacts:
        """The artifact store."""
        if self._artifacts is None:
            raise ArtifactsUnavailable("there is no artifact store: set ABOUND_ARTIFACTS_URL, the same for all hosts")
        return self._artifacts

    @property
    def own(self) -> str:
        """A name that no other job has, and no other attempt of this one: for prefixes."""
        return f"{self.job.id}-{self.job.attempt}"

    @property
    def threads(self) -> int:
        """How many threads may compute."""
        return self._jobs.params.computing

    async def now(self) -> float:
        """Seconds since 1970, by the clock of the store of jobs."""
        return await self._jobs.now()

    def progress(self, stage: str, fraction: float) -> None:
        """Say what is being done and how much of all is done, 0..1. Cancelled when the job is to stop."""
        self._told = (stage[:200], min(1.0, max(0.0, float(fraction))))
        self.check()

    def check(self) -> None:
        """Cancelled when the job is to stop."""
        if self._stop.is_set():
            raise Cancelled("the job was told to stop")

    @property
    def told(self) -> tuple[str | None, float]:
        """Stage and fraction as they were told last."""
        return self._told

    def stop(self) -> None:
        """Let ``check`` and ``progress`` raise from now on."""
        self._stop.set()

    async def will_write(self, prefix: str) -> None:
        """Note that what lies below ``prefix`` in the artifact store is this job's own."""
        self.check()
        await self._jobs.will_write(self.job, prefix)

    async def range(self, after: Offset | None, until: Offset | None) -> None:
        """Note in the record which events the job reads: those after one offset up to another."""
        told = {"after": str(after) if after else None, "until": str(until) if until else None}
        await self._jobs.note(self.job, data_range=told)

    async def so_far(self, outcome: dict[str, Any]) -> None:
        """Note in the record what has come of the job so far: whoever begins it again has it in ``job.outcome``."""
        await self._jobs.note(self.job, outcome=outcome)

    async def commit(self, *prefixes: str) -> None:
        """Pass the point of no return; what lies below ``prefixes`` is not the job's own any more.

        Raises
        ------
        Cancelled
            The job is to stop, or somebody else has taken it over.
        UnknownModel
            The model was deleted.
        """
        self.check()
        await living_of(self.store, self.job)
        if not await self._jobs.commit(self.job, *prefixes):
            self.stop()
            raise Cancelled("the job was told to stop")
        self.committed = True

    async def pin(self, offset: Offset) -> None:
        """Keep what comes after ``offset`` in history while the job runs; the pin before is let go of."""
        self._pin = pins.Pin(self.living.keys, f"job-{self.own}", offset)
        await self.renew_pin()

    async def renew_pin(self) -> None:
        """Say again what is pinned; nothing when nothing is."""
        if self._pin is not None:
            await pins.renew(self.store, self._pin)

    async def unpin(self) -> None:
        """Let go of what is pinned. With the store away the pin ends by itself."""
        made, self._pin = self._pin, None
        if made is not None:
            with contextlib.suppress(StoreUnavailable):
                await pins.remove(self.store, made)


async def living_of(store: Store, job: Job) -> Living:
    """The model of a job; UnknownModel when it was deleted, be there another of its name or not."""
    living = (await read_catalog(store)).get(job.model)
    if living is None or living.keys.incarnation != job.incarnation:
        raise UnknownModel(f"the model {job.model} was deleted")
    return living


async def clean(jobs: Jobs, job: Job, artifacts: Artifacts | None) -> None:
    """Delete what a job wrote and did not commit. May be done again; ArtifactsUnavailable when it cannot be.

    The store of jobs may have lost that it was committed, while the log names it. So an index stays, which only history
    and log can tell about, and so does a version that has its card: that is written after the commit.
    """
    indexed = state_files.folder(ModelKeys(job.model, job.incarnation))
    for prefix in await jobs.wrote(job.id):
        if artifacts is None:
            raise ArtifactsUnavailable("what the job wrote cannot be deleted: there is no artifact store here")
        if prefix.startswith(f"{indexed}/") or f"{prefix}/{CARD}" in await artifacts.names(prefix):
            continue
        await artifacts.clear(prefix)
