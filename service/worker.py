"""The worker: snapshots and jobs, beside the replicas and not inside them. ``python -m abound.service.worker``.

Jobs are seen to by ``service/jobs/supervisor.py``, and done by processes of their own; so are contests
(``service/versions/promotion/launcher.py``).

As to snapshots: every second it looks at each model. A snapshot is due when

* somebody asked for one (``wanted``), or
* the log has grown by ``every_bytes`` since the newest one, or
* the newest one is ``every_seconds`` old and something came since (without one, the model's creation counts).

With each snapshot, what no snapshot needs any more moves from the log to history (``service/history/archive.py``),
which is kept within its bounds (``service/history/retention.py``). Without an artifact store there is no history and
the log is not trimmed.

The **lease** of a model (``service/store/lease.py``) sees to it that one worker at a time does this, and that one which
was stopped and comes back too late changes nothing. Now and then the worker also takes out of both stores what nothing
points to (``service/history/garbage.py``). SIGTERM ends it between two steps; whatever it was making is made again by
the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator

import structlog
import uvloop

from abound.core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Damaged,
    NotReady,
    StoreUnavailable,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
)
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import PATIENCE_SECONDS, Artifacts
from abound.service.artifacts.availability import Joining
from abound.service.datasets.repository import Datasets
from abound.service.history import worker_status
from abound.service.history.archive import BASE_PREFIX, Archiving, archive
from abound.service.history.garbage import IndexSweep, sweep_artifacts, sweep_store
from abound.service.history.high_water import Mark, Marks
from abound.service.history.history import HistoryParams
from abound.service.history.replay import compact
from abound.service.history.retention import retain
from abound.service.jobs.repository import JobParams, Jobs
from abound.service.jobs.rq_worker import Stable
from abound.service.jobs.supervisor import JobKeeper
from abound.service.log.catalog import Catalog, Living, read_catalog, read_on, shorten_catalog
from abound.service.log.stream import LogParams, Trim, trimmed_key
from abound.service.model import presence
from abound.service.processes import entry
from abound.service.processes.status_pipe import Report, Reporter
from abound.service.settings import Settings
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import requests as snapshot_requests
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import Manifest
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.store.client import Store, StoreParams, reaching
from abound.service.store.lease import LEASE_SECONDS, Lease, LeaseLost, take
from abound.service.tasks import end
from abound.service.versions import retention as version_retention
from abound.service.versions.promotion.launcher import ContestKeeper

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
SWEEP_SECONDS = 300.0
DAMAGED_PAUSE_SECONDS = 60.0

STOP_SECONDS = 3.0
"""Longest wait for the end of a step."""

LOST = "there is no history, and logs are not trimmed"
NO_HISTORY = "history cannot be kept, so the log is not trimmed"


class Stopped(Exception):
    """The worker was told to stop."""


class Worker:
    """Makes the snapshots and the history of all models of a store until ``stop`` is called."""

    def __init__(
        self,
        store: Store,
        params: SnapshotParams | None = None,
        log_params: LogParams | None = None,
        artifacts: Artifacts | None = None,
        history_params: HistoryParams | None = None,
        marks: Marks | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}"
        self._store = store
        self._params = params or SnapshotParams()
        self._log_params = log_params or LogParams()
        self._artifacts = artifacts
        self._history_params = history_params or HistoryParams()
        self._joining = Joining(store, artifacts, LOST) if artifacts is not None else None
        self._marks = marks or Marks(store, None, artifacts)
        self._stopping = asyncio.Event()
        self._resting: dict[str, float] = {}
        self._without_history: dict[str, float] = {}
        self._newest: dict[str, Manifest] = {}
        self._unlisted: set[str] = set()
        self._indexes = IndexSweep(store, self._log_params)
        self._told: dict[str, set[str]] = {}

    def stop(self) -> None:
        """Come to an end at the next step."""
        self._stopping.set()

    async def run(self) -> None:
        """Look at every model again and again. CannotStart when the store is not one to trust."""
        await self._store.check()
        showing = asyncio.create_task(self._show())
        swept = asyncio.get_running_loop().time()
        catalog = Catalog()
        try:
            while not self._stopping.is_set():
                try:
                    catalog = await self._catalog_now(catalog)
                    if catalog.has_grown and await shorten_catalog(self._store, catalog):
                        log.info("made the catalog shorter", models=len(catalog))
                    for living in catalog:
                        try:
                            await self._look_at(living)
                        except Damaged as error:  # the others get their turn
                            await self._rest(living, error)
                    if asyncio.get_running_loop().time() - swept > SWEEP_SECONDS:
                        await self.sweep(catalog)
                        swept = asyncio.get_running_loop().time()
                except StoreUnavailable as error:
                    log.warning("the store is away", reason=str(error))
                except (Damaged, UnknownApplyVersion) as error:
                    log.error("the store holds what cannot be read", reason=str(error))
                except Stopped:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._stopping.wait()
            await self._note(None)
        finally:
            await end(showing)
            if self._joining is not None:
                await self._joining.stop()
            with contextlib.suppress(StoreUnavailable):
                await snapshot_requests.hide_worker(self._store, self.id)

    async def sweep(self, catalog: Catalog) -> int:
        """Take out of both stores what nothing points to, and see to histories that nothing is added to.

        Returns the number of keys and files that went.
        """
        swept = await sweep_store(self._store, catalog)
        artifacts = await self._joining.look() if self._joining is not None else None
        if artifacts is None:
            return swept
        for living in catalog:
            with self._nobody_else():
                async with take(self._store, living.keys, LEASE_SECONDS) as lease:
                    await self._archive(living, lease)
        try:
            swept += await sweep_artifacts(self._store, artifacts, catalog, self._unlisted)
            swept += await self._indexes.sweep(artifacts, catalog)
            for living in catalog:
                swept += await version_retention.sweep(self._store, artifacts, living.keys)
                await self._measure(artifacts, living)
            swept += await Datasets(self._store).sweep(artifacts)
        except (ArtifactsUnavailable, Damaged) as error:
            log.warning("the artifact store is not swept", reason=str(error))
        return swept

    async def _measure(self, artifacts: Artifacts, living: Living) -> None:
        """Say how much the indexes take that were made to be adopted: they are not counted among the segments."""
        sizes = await artifacts.sizes(state_files.folder(living.keys))
        size = sum(size for name, size in sizes.items() if f"/{BASE_PREFIX}" not in name)
        await worker_status.say(self._store, living.keys, index_bytes=size)

    async def _show(self) -> None:
        """Say that this worker is there, for ever."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                await snapshot_requests.show_worker(self._store, self.id)
            await asyncio.sleep(snapshot_requests.WORKER_FRESH_SECONDS / 4)

    async def _catalog_now(self, known: Catalog) -> Catalog:
        catalog = await read_on(self._store, known)
        living = {one.keys.incarnation for one in catalog}
        for noted in (self._newest, self._resting, self._without_history, self._told):
            for incarnation in noted.keys() - living:
                del noted[incarnation]
        return catalog

    async def _look_at(self, living: Living) -> None:
        """Make a snapshot of a model if one is due."""
        now = asyncio.get_running_loop().time()
        if self._resting.get(living.keys.incarnation, 0.0) > now:
            return
        why = await self._due(living)
        if why is None:
            return
        with self._nobody_else():
            async with take(self._store, living.keys, LEASE_SECONDS) as lease:
                if await self._due(living) is None:  # another worker was faster
                    return
                await self._archive(living, lease)  # what another one left undone; it may make room for what comes
                try:
                    await self._compact(living, lease, why)
                except (ArtifactsUnavailable, Damaged, UnknownApplyVersion, UnknownArtifact) as error:
                    await self._rest(living, error)
                    return
                await self._well(living, "snapshots")
                await self._archive(living, lease)

    async def _rest(self, living: Living, error: Exception) -> None:
        """Leave a model alone for a while."""
        log.error("no snapshot can be made", model=living.keys.name, reason=str(error))
        self._resting[living.keys.incarnation] = asyncio.get_running_loop().time() + DAMAGED_PAUSE_SECONDS
        await self._tell(living, "snapshots", f"no snapshot can be made: {error}")

    async def _tell(self, living: Living, work: str, trouble: str) -> None:
        """Let replicas say why some work on a model cannot be done."""
        await worker_status.say(self._store, living.keys, **{work: trouble})
        self._told.setdefault(living.keys.incarnation, set()).add(work)

    async def _well(self, living: Living, work: str) -> None:
        """Some work was done; what another worker has told of it before is over by itself after a while."""
        told = self._told.get(living.keys.incarnation, set())
        if work in told:
            await worker_status.say(self._store, living.keys, **{work: None})
            told.discard(work)

    async def _compact(self, living: Living, lease: Lease, why: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        manifest = await compact(
            self._store,
            living,
            self._params,
            self._log_params,
            self._going_on(lease),
            self._artifacts,
            lease=lease,
        )
        log.info(
            "made a snapshot",
            model=living.keys.name,
            why=why,
            offset=manifest.offset,
            bytes=manifest.size,
            seconds=round(loop.time() - began, 3),
        )
        await self._note(living, manifest)

    async def _note(self, living: Living | None, manifest: Manifest | None = None) -> None:
        """Write down how far a model has come with a snapshot, or the whole store: see
        ``service/history/high_water.py``."""
        marks = None
        if living is not None and manifest is not None:
            last = Offset.parse(manifest.offset).entry
            marks = {living.keys.incarnation: Mark(living.keys.name, last, manifest.n_entries)}
        try:
            artifacts = await self._joining.look() if self._joining is not None else None
            await self._marks.note(await read_catalog(self._store), artifacts, marks)
        except (ArtifactsUnavailable, Damaged, OSError, StoreUnavailable, UnknownApplyVersion) as error:
            log.warning("how far the store has come is not written down", reason=str(error))

    async def _archive(self, living: Living, lease: Lease) -> None:
        """Move to history what can be, and keep that within its bounds; say why when it cannot be done."""
        now = asyncio.get_running_loop().time()
        if self._without_history.get(living.keys.incarnation, 0.0) > now:
            return
        if self._joining is None:
            return
        artifacts = await self._joining.look()
        if artifacts is None:
            await self._tell(living, "history", f"{NO_HISTORY}: {self._joining.trouble}")
            return
        to = Archiving(
            self._store, artifacts, living, lease, self._history_params, self._log_params, self._going_on(lease)
        )
        try:
            contents = await archive(to)
            if contents is not None:
                await retain(to, contents)
        except (
            ArtifactsUnavailable,
            Damaged,
            NotReady,
            UnknownApplyVersion,
            UnknownArtifact,
            UnknownOffset,
        ) as error:
            log.error(NO_HISTORY, model=living.keys.name, reason=str(error))
            self._without_history[living.keys.incarnation] = now + DAMAGED_PAUSE_SECONDS
            await self._tell(living, "history", f"{NO_HISTORY}: {error}")
            return
        await self._well(living, "history")

    def _going_on(self, lease: Lease) -> Callable[[], Awaitable[None]]:
        async def between() -> None:
            if self._stopping.is_set():
                raise Stopped
            if lease.lost:
                raise LeaseLost

        return between

    async def _due(self, living: Living) -> str | None:
        """Why a snapshot of a model is due, None when none is. One round trip while nothing is learned."""
        keys = living.keys
        newest = await manifests.newest(self._store, keys, self._newest.get(keys.incarnation))
        if newest is not None:
            self._newest[keys.incarnation] = newest
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.get(keys.of("snapshot-wanted"))
            pipe.xlen(keys.log)
            pipe.get(trimmed_key(keys.log))
            pipe.time()
            with reaching():
                text, n_held, trimmed, (seconds, _) = await pipe.execute()
        n_entries = n_held + Trim.parse(trimmed).n_entries
        asked = snapshot_requests.parse(text)
        if asked is not None and (newest is None or newest.position.offset < asked):
            return "asked for"
        if n_entries <= (newest.n_entries if newest else 0):
            return None
        made = newest.created if newest else int(keys.incarnation.partition("-")[0])
        age = seconds - made / 1000
        if age > self._params.every_seconds or age < -1.0:  # of the future: the store's clock was set back
            return "it is time"
        sizes = [replica.log_bytes for replica in await presence.present(self._store, keys)]
        grown = max(sizes, default=0) - (newest.log_bytes if newest else 0)
        return "the log has grown" if grown > self._params.every_bytes else None

    @contextlib.contextmanager
    def _nobody_else(self) -> Iterator[None]:
        """Leave alone what another process has, or has taken over."""
        try:
            yield
        except Conflict:
            return
        except LeaseLost:
            log.warning("another process has taken over")


def run(settings: Settings, reporter: Reporter) -> None:
    """Run a worker, snapshots and jobs, until SIGTERM or SIGINT. It forks, so the process has no threads yet."""
    uvloop.run(_work(settings, reporter, Stable(settings)))


async def _work(settings: Settings, reporter: Reporter, stable: Stable) -> None:
    params = settings.group(StoreParams)
    store, jobs_store = Store(settings.store_url(), params), Store(settings.jobs_store_url(), params)
    place = settings.artifacts_place()
    artifacts = Artifacts(place, patience=PATIENCE_SECONDS) if place is not None else None
    marks = Marks.of(settings, store, artifacts)
    worker = Worker(
        store,
        settings.group(SnapshotParams),
        settings.group(LogParams),
        artifacts,
        settings.group(HistoryParams),
        marks,
    )
    keeper = JobKeeper(settings, store, Jobs(jobs_store, settings.group(JobParams)), stable)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await store.check()
        await jobs_store.check()
        with contextlib.suppress(StoreUnavailable, Damaged, UnknownApplyVersion):  # it says so itself, and waits
            await marks.check()
        reporter.say(Report(stage="working", progress=1.0, ready=True))
        contests = ContestKeeper(settings, store)
        parts = [asyncio.create_task(part) for part in (worker.run(), keeper.run(stopping), contests.run(stopping))]
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        worker.stop()
        await asyncio.wait(parts[:1], timeout=STOP_SECONDS)
        if not parts[0].done():  # something hangs; what it was making is made again
            await end(parts[0])
        await asyncio.gather(stopped, *(part for part in parts if not part.cancelled()))
    finally:
        await store.close()
        await jobs_store.close()


def main() -> int:
    """Run the process; returns its exit code."""

    def work(settings: Settings, reporter: Reporter) -> None:
        entry.warm(reporter)
        run(settings, reporter)

    return entry.run("worker", entry.parser("worker", __doc__).parse_args().status, work)


if __name__ == "__main__":
    sys.exit(main())
