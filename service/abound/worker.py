"""The worker process: snapshots, history, contests and jobs, beside the replicas. ``python -m abound.worker``.

The **lease** of a model (``abound/store/lease.py``) ensures that only one worker at a time changes it. A worker that
was suspended and resumes too late changes nothing. SIGTERM stops the worker between two steps; unfinished work is
repeated by the next worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog
import uvloop

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.availability import AvailabilityMonitor
from abound.artifacts.file_cache import cache_in
from abound.artifacts.times import PATIENCE_SECONDS
from abound.datasets.repository import DatasetRepository
from abound.history import high_water, worker_status
from abound.history.archive import ArchiveContext, archive
from abound.history.garbage import FileCollector, collect_keys
from abound.history.history import HistoryParams
from abound.history.replay import compact
from abound.history.retention import enforce_retention
from abound.jobs.dispatcher import JobDispatcher
from abound.jobs.fork_server import ForkServer
from abound.jobs.repository import JobParams, JobRepository
from abound.log.catalog import Catalog, CatalogModel, compact_catalog, reread_catalog
from abound.log.closing import append_fenced
from abound.log.events import IncarnationDropped
from abound.log.stream import LogGone, LogParams
from abound.processes import child_main
from abound.processes.encoder_files import use_encoders
from abound.processes.status_pipe import Report, Reporter
from abound.replace.replace import end_abandoned
from abound.settings import Settings
from abound.state import schedule, snapshots
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store import expiring
from abound.store.client import Store, StoreParams
from abound.store.lease import REPLACEMENT, Lease, LeaseLost, acquire
from abound.tasks import cancel_and_wait, forever, wait_for_event
from abound.versions import versions as versions
from abound.versions.promotion.runner import DAMAGED_PAUSE_SECONDS, STOP_SECONDS, PromotionRunner
from abound.versions.retention import VersionParams
from abound_core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    NotReady,
    StoreRefused,
    StoreUnavailable,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
)

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
SWEEP_SECONDS = 300.0

ALIVE_FILE = "worker-alive"  # in the data directory; each heartbeat touches it, and ``docker/health.py`` reads its age

LOST = "there is no history, and logs are not trimmed"
NO_HISTORY = "history cannot be kept, so the log is not trimmed"


class WorkerStopped(Exception):
    """The worker was asked to stop."""


class Worker:
    """Makes the snapshots and the history of all models of a store until ``stop`` is called."""

    def __init__(
        self,
        store: Store,
        params: SnapshotParams | None = None,
        log_params: LogParams | None = None,
        artifacts: ArtifactStore | None = None,
        history_params: HistoryParams | None = None,
        jobs: JobRepository | None = None,
        kinds: Sequence[str] = (),
        alive_file: Path | None = None,
        undo_seconds: float = 7 * 86_400.0,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}"
        self._store = store
        self._params = params or SnapshotParams()
        self._log_params = log_params or LogParams()
        self._artifacts = artifacts
        self._history_params = history_params or HistoryParams()
        self._joining = AvailabilityMonitor(store, artifacts, LOST) if artifacts is not None else None
        self._jobs = jobs or JobRepository(store)
        self._kinds = kinds
        self._alive_file = alive_file
        self._stopping = asyncio.Event()
        self._resting: dict[str, float] = {}
        self._without_history: dict[str, float] = {}
        self._newest: dict[str, StateManifest] = {}
        self._collector = FileCollector(store)
        self._undo_seconds = undo_seconds
        self._logged: dict[str, set[str]] = {}

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        showing = asyncio.create_task(forever(self._send_heartbeat, schedule.WORKER_FRESH_SECONDS / 4))
        swept = asyncio.get_running_loop().time()
        catalog = Catalog()
        try:
            while not self._stopping.is_set():
                try:
                    catalog = await self._catalog_now(catalog)
                    if catalog.has_grown and await compact_catalog(self._store, catalog):
                        log.info("shortened the catalog", models=len(catalog))
                    for name in catalog.coming:
                        await end_abandoned(self._store, catalog, name)
                    for living in catalog:
                        try:
                            await self._snapshot_if_due(living)
                        except (Corrupted, StoreRefused) as error:  # continue with the other models
                            await self._pause_model(living, error)
                    if asyncio.get_running_loop().time() - swept > SWEEP_SECONDS:
                        swept = asyncio.get_running_loop().time()  # also if it fails: it may take long
                        await self.sweep(catalog)
                except StoreUnavailable as error:
                    log.warning("the store cannot be reached; trying again", reason=str(error))
                except (Corrupted, UnknownApplyVersion) as error:
                    log.error("data in the store cannot be read", reason=str(error))
                except WorkerStopped:
                    break
                await wait_for_event(self._stopping, LOOK_SECONDS)
        finally:
            await cancel_and_wait(showing)
            if self._joining is not None:
                await self._joining.stop()
            with contextlib.suppress(StoreUnavailable):
                await expiring.remove(self._store, schedule.WORKERS_KEY, self.id)

    async def _send_heartbeat(self) -> None:
        """Tell the container, then the replicas, that the event loop runs; the store may be away for the latter."""
        if self._alive_file is not None:
            with contextlib.suppress(OSError):  # not writable, or the directory is gone
                self._alive_file.touch()
        await expiring.put(self._store, schedule.WORKERS_KEY, self.id, msgspec.json.encode(self._kinds))

    async def sweep(self, catalog: Catalog) -> int:
        """Collect garbage in both stores, and archive models without new entries; return how much was deleted."""
        await self._drop_old_former(catalog)
        swept = await collect_keys(self._store, catalog)
        artifacts = await self._joining.poll() if self._joining is not None else None
        if artifacts is None:
            return swept
        for living in catalog:
            with self._skip_if_leased():
                async with acquire(self._store, living.keys) as lease:
                    await self._archive(living, lease)
        try:
            swept += await self._collector.collect(artifacts, catalog)
            for living in catalog:
                swept += await versions.collect_garbage(
                    self._store, artifacts, living.keys, self._jobs.committed_prefixes
                )
            swept += await DatasetRepository(self._store).collect_garbage(artifacts)
        except (ArtifactsUnavailable, Corrupted) as error:
            log.warning("garbage collection in the artifact store failed; trying again later", reason=str(error))
        return swept

    async def _drop_old_former(self, catalog: Catalog) -> None:
        """Give up replaced models that have been kept for long enough."""
        now = await self._store.now()
        for name, former in catalog.former.items():
            living = catalog.get(name)
            if living is not None and now - former.replaced / 1000 > self._undo_seconds:
                with self._skip_if_leased():
                    async with acquire(self._store, living.keys, purpose=REPLACEMENT) as lease:
                        event = IncarnationDropped(name, former.keys.incarnation)
                        await append_fenced(self._store, lease, event)

    async def _catalog_now(self, known: Catalog) -> Catalog:
        catalog = await reread_catalog(self._store, known)
        living = {one.keys.incarnation for one in catalog}
        for noted in (self._newest, self._resting, self._without_history, self._logged):
            for incarnation in noted.keys() - living:
                del noted[incarnation]
        return catalog

    async def _snapshot_if_due(self, living: CatalogModel) -> None:
        now = asyncio.get_running_loop().time()
        if self._resting.get(living.keys.incarnation, 0.0) > now:
            return
        why = await self._why_due(living)
        if why is None:
            return
        with self._skip_if_leased():
            async with acquire(self._store, living.keys) as lease:
                if await self._why_due(living) is None:  # another worker has made it
                    return
                await self._archive(living, lease)  # finish an interrupted archiving, which may free space
                try:
                    await self._compact(living, lease, why)
                except LogGone:
                    return  # the model was deleted
                except (
                    ArtifactsUnavailable,
                    Corrupted,
                    MemoryError,
                    StoreUnavailable,  # a reply may have been too large to arrive in time
                    UnknownApplyVersion,
                    UnknownArtifact,
                    UnknownOffset,
                ) as error:
                    await self._pause_model(living, error)
                    return
                await self._clear_trouble(living, "snapshots")
                await self._archive(living, lease)

    async def _pause_model(self, living: CatalogModel, error: Exception) -> None:
        """Report the error and pause work on a model. Raises StoreUnavailable if the whole store is."""
        why = str(error) or repr(error)
        await self._report_trouble(living, "snapshots", f"no snapshot can be made: {why}")
        log.error("no snapshot can be made", model=living.keys.name, reason=why)
        self._resting[living.keys.incarnation] = asyncio.get_running_loop().time() + DAMAGED_PAUSE_SECONDS

    async def _report_trouble(self, living: CatalogModel, work: str, trouble: str) -> None:
        """Publish why some work on a model fails, for the replicas. A full store refuses it."""
        with contextlib.suppress(StoreRefused):
            await worker_status.report(self._store, living.keys, **{work: trouble})
            self._logged.setdefault(living.keys.incarnation, set()).add(work)

    async def _clear_trouble(self, living: CatalogModel, work: str) -> None:
        """Withdraw this worker's report about some work on a model. Reports of other workers expire."""
        reported = self._logged.get(living.keys.incarnation, set())
        if work in reported:
            await worker_status.report(self._store, living.keys, **{work: None})
            reported.discard(work)

    async def _compact(self, living: CatalogModel, lease: Lease, why: str) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await snapshots.drop_unlisted(self._store, living.keys, lease)  # they may fill the store
        manifest = await compact(
            self._store,
            living,
            self._params,
            self._log_params,
            self._between_steps(lease),
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

    async def _archive(self, living: CatalogModel, lease: Lease) -> None:
        """Move log entries that no snapshot needs to history, and keep it within bounds. Publish a failure."""
        now = asyncio.get_running_loop().time()
        if self._without_history.get(living.keys.incarnation, 0.0) > now:
            return
        if self._joining is None:  # without an artifact store there is no history, and the log is not trimmed
            return
        artifacts = await self._joining.poll()
        if artifacts is None:
            await self._report_trouble(living, "history", f"{NO_HISTORY}: {self._joining.trouble}")
            return
        to = ArchiveContext(
            self._store, artifacts, living, lease, self._history_params, self._log_params, self._between_steps(lease)
        )
        try:
            contents = await archive(to)
            if contents is not None:
                await enforce_retention(to, contents)
        except LeaseLost:
            raise
        except (
            ArtifactsUnavailable,
            Conflict,
            Corrupted,
            MemoryError,
            NotReady,
            StoreUnavailable,
            UnknownApplyVersion,
            UnknownArtifact,
            UnknownOffset,
        ) as error:
            why = str(error) or repr(error)
            await self._report_trouble(living, "history", f"{NO_HISTORY}: {why}")
            log.error(NO_HISTORY, model=living.keys.name, reason=why)
            self._without_history[living.keys.incarnation] = now + DAMAGED_PAUSE_SECONDS
            return
        await self._clear_trouble(living, "history")

    def _between_steps(self, lease: Lease) -> Callable[[], Awaitable[None]]:
        async def between() -> None:
            if self._stopping.is_set():
                raise WorkerStopped
            if lease.lost:
                raise LeaseLost

        return between

    async def _why_due(self, living: CatalogModel) -> str | None:
        incarnation = living.keys.incarnation
        newest = await snapshots.newest(self._store, living.keys, self._newest.get(incarnation))
        if newest is not None:
            self._newest[incarnation] = newest
        return await schedule.why_due(self._store, living.keys, newest, self._params)

    @contextlib.contextmanager
    def _skip_if_leased(self) -> Iterator[None]:
        try:
            yield
        except LeaseLost:
            log.warning("another process has taken over the lease of a model")
        except Conflict:
            return


def run(settings: Settings, reporter: Reporter) -> None:
    """Run a worker until SIGTERM or SIGINT. It forks, so the process must not have started a thread yet."""
    use_encoders(settings.encoders_dir)
    uvloop.run(_work(settings, reporter, ForkServer(settings)))


async def _work(settings: Settings, reporter: Reporter, fork_server: ForkServer) -> None:
    store = Store(settings.store_url(), settings.group(StoreParams))
    place = settings.artifacts_location()
    cache = cache_in(settings.data_dir, settings.group(VersionParams).cache_bytes)
    artifacts = ArtifactStore(place, cache, PATIENCE_SECONDS) if place is not None else None
    jobs = JobRepository(store, settings.group(JobParams))
    worker = Worker(
        store,
        settings.group(SnapshotParams),
        settings.group(LogParams),
        artifacts,
        settings.group(HistoryParams),
        jobs,
        settings.job_kinds,
        settings.data_dir / ALIVE_FILE,
        settings.undo_seconds,
    )
    keeper = JobDispatcher(settings, store, jobs, fork_server)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await store.check()
        await high_water.check(settings, store)
        reporter.send(Report(stage="working", progress=1.0, ready=True))
        contests = PromotionRunner(settings, store, artifacts, stopping)
        parts = [asyncio.create_task(part) for part in (worker.run(), keeper.run(stopping), contests.run())]
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        worker.stop()
        await asyncio.wait(parts[:1], timeout=STOP_SECONDS)
        if not parts[0].done():  # the step hangs; the next worker repeats it
            await cancel_and_wait(parts[0])
        await asyncio.gather(stopped, *(part for part in parts if not part.cancelled()))
    finally:
        await store.close()


def main() -> int:
    def work(settings: Settings, reporter: Reporter) -> None:
        child_main.load_kernels(reporter)
        run(settings, reporter)

    return child_main.run("worker", child_main.parser("worker", __doc__).parse_args().status, work)


if __name__ == "__main__":
    sys.exit(main())
