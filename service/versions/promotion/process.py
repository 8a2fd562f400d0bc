"""Process that follows the contests of all models, so that versions are promoted and rolled back.

The worker starts it: ``python -m abound.service.versions.promotion.process``. It runs in a process of its own,
with low priority, since it holds an index and the loaded versions of each model that it follows. A lease per
model ensures that one process at a time follows it. When that process dies, another one continues from the
saved standings.

It follows models that have challengers or an active version. For drift marks it also follows other models, as
long as their indexes fit into ``ContendingParams.memory``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import structlog
import uvloop

from abound.core.comparison.sequential_test import GateParams
from abound.core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    StoreUnavailable,
    UnknownApplyVersion,
)
from abound.service.artifacts.artifact_store import PATIENCE_SECONDS, ArtifactStore
from abound.service.artifacts.file_cache import cache_in
from abound.service.log.catalog import Catalog, CatalogModel, reread_catalog
from abound.service.log.stream import LogParams
from abound.service.processes import entry
from abound.service.processes.status_pipe import Report, Reporter
from abound.service.settings import Settings
from abound.service.snapshots import manifest as manifests
from abound.service.store.client import Store, StoreParams, store_errors
from abound.service.store.lease import LEASE_SECONDS, LeaseLost, acquire
from abound.service.tasks import cancel_and_wait
from abound.service.versions.cache_cleanup import CacheCleaner
from abound.service.versions.promotion.contest import ContestFollower
from abound.service.versions.promotion.params import ContendingParams
from abound.service.versions.promotion.standings import PURPOSE
from abound.service.versions.retention import VersionParams

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
AGAIN_SECONDS = 2.0
AWAY_SECONDS = 60.0
DAMAGED_PAUSE_SECONDS = 60.0
DAMAGED_VERSION_SECONDS = 4 * 3600.0
NICE = 10


class IndexTooLarge(Exception):
    """Raised for a model without challengers whose index is too large to be followed for drift marks alone."""


class FollowedModel:
    """Model that is followed, or may be, and its state in the store when it was last read.

    Attributes
    ----------
    is_contested : bool
        It has challengers or an active version.
    should_follow : bool
    wake : asyncio.Event
        Set when there are new log entries or the challengers changed.
    """

    def __init__(self, living: CatalogModel) -> None:
        self.living = living
        self.is_contested = self.should_follow = False
        self.wake = asyncio.Event()
        self.changed = True
        self.n_bytes = 0
        self.too_large = False
        self.task: asyncio.Task[None] | None = None
        self._entered: frozenset[bytes] = frozenset()
        self._last: bytes | None = None

    def update(self, entered: frozenset[bytes], active: bytes | None, last: bytes | None, drift: bool) -> None:
        """Update from the store: the entered challengers, the active version and the last entry of the log."""
        self.is_contested = bool(entered) or active not in (None, b"live")
        self.should_follow = self.is_contested or (drift and last is not None and not self.too_large)
        if entered != self._entered:
            self._entered, self.changed = entered, True
        if self.changed or last != self._last:
            self._last = last
            self.wake.set()


class RetrySchedule:
    """Retry schedule for versions that failed to load. The pause doubles after each attempt.

    An unavailable artifact store usually returns soon. A damaged version would be read completely at each
    attempt, so its pause may grow longer.
    """

    def __init__(self, now: float) -> None:
        self._pause = AGAIN_SECONDS
        self._at = now + self._pause

    def due(self, now: float, away: bool) -> bool:
        """Return whether a retry is due, and if so schedule the next one.

        ``away`` says that at least one version failed because a store was unavailable.
        """
        most = AWAY_SECONDS if away else DAMAGED_VERSION_SECONDS
        self._at = min(self._at, now + most)
        if now < self._at:
            return False
        self._pause = min(2 * self._pause, most)
        self._at = now + self._pause
        return True


class PromotionRunner:
    """Follows the contests of all models in a store until ``stop`` is called."""

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore | None,
        params: ContendingParams | None = None,
        gate: GateParams | None = None,
        log_params: LogParams | None = None,
        prepare_seconds: float = 300.0,
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._params = params or ContendingParams()
        self._gate = gate or GateParams()
        self._log_params = log_params
        self._prepare_seconds = prepare_seconds
        self._followed: dict[str, FollowedModel] = {}
        self._copies = CacheCleaner(store, artifacts, lambda: [one.living.keys for one in self._followed.values()])
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Stop following, after the standings of each model are written."""
        self._stopping.set()
        for one in self._followed.values():
            one.wake.set()

    async def run(self) -> None:
        """Poll the catalog and follow models until stopped. Raises CannotStart if the store is unsuitable."""
        await self._store.check()
        catalog = Catalog()
        copies: asyncio.Task[None] | None = None
        while not self._stopping.is_set():
            try:
                catalog = await self._look(catalog)
                if copies is None:  # cleaning before the models are known would delete files that they need
                    copies = asyncio.create_task(self._copies.run(), name="copies")
                elif copies.done():
                    copies.result()
            except StoreUnavailable as error:
                log.warning("the store is unavailable", reason=str(error))
            except (Corrupted, UnknownApplyVersion) as error:
                log.error("an entry in the store cannot be read", reason=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._stopping.wait()
        tasks = [one.task for one in self._followed.values() if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=LEASE_SECONDS)
        await cancel_and_wait(*tasks, *([] if copies is None else [copies]))

    async def _look(self, catalog: Catalog) -> Catalog:
        catalog = await reread_catalog(self._store, catalog)
        living = {one.keys.incarnation: one for one in catalog}
        for incarnation in self._followed.keys() - living.keys():
            gone = self._followed.pop(incarnation)
            if gone.task is not None:
                await cancel_and_wait(gone.task)
        for incarnation in living.keys() - self._followed.keys():
            self._followed[incarnation] = FollowedModel(living[incarnation])
        models = list(self._followed.values())
        async with self._store.client.pipeline(transaction=False) as pipe:
            for one in models:
                keys = one.living.keys
                pipe.hkeys(keys.key("contenders"))
                pipe.hget(keys.key("active"), "version")
                pipe.xrevrange(keys.log, count=1)
            with store_errors():
                found = iter(await pipe.execute())
        for one in models:
            entered, active, newest = next(found), next(found), next(found)
            one.update(frozenset(entered), active, newest[0][0] if newest else None, self._params.drift)
            if one.task is not None and one.task.done():
                done, one.task = one.task, None
                done.result()
            if one.should_follow and one.task is None:
                one.task = asyncio.create_task(self._follow(one), name=f"contest of {one.living.keys.name}")
        return catalog

    async def _follow(self, one: FollowedModel) -> None:
        """Follow a model while ``should_follow`` is set. Errors are logged and retried."""
        name = one.living.keys.name
        while one.should_follow and not self._stopping.is_set():
            seconds = AGAIN_SECONDS
            try:
                await self._follow_once(one)
                continue
            except IndexTooLarge:
                one.too_large, one.should_follow = True, False
                log.info("no drift marks: the index exceeds ABOUND_CONTENDING_MEMORY", model=name)
                return
            except Conflict:
                pass  # another process follows it
            except LeaseLost:
                log.warning("lost the lease: another process follows the contest", model=name)
            except (StoreUnavailable, ArtifactsUnavailable) as error:
                log.warning("contest interrupted; it will be retried", model=name, reason=str(error))
            except AboundError as error:
                log.error("contest interrupted; it will be retried", model=name, reason=str(error))
                seconds = DAMAGED_PAUSE_SECONDS
            finally:
                one.n_bytes = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()

    async def _follow_once(self, one: FollowedModel) -> None:
        await self._refuse_large(one)
        async with acquire(self._store, one.living.keys, LEASE_SECONDS, PURPOSE) as lease:
            contending = ContestFollower(
                self._store,
                self._artifacts,
                one.living,
                lease,
                self._params,
                self._gate,
                self._log_params,
                self._prepare_seconds,
            )
            try:
                await contending.open()
                await self._go_on(one, contending)
            finally:
                await contending.close()
            if not one.should_follow:
                await contending.drop_standings()

    async def _go_on(self, one: FollowedModel, contending: ContestFollower) -> None:
        loop = asyncio.get_running_loop()
        kept = 0.0
        again = RetrySchedule(loop.time())
        while True:
            one.n_bytes = contending.model.live.n_bytes
            self._check_size(one)
            if not contending.standing.trouble:
                again = RetrySchedule(loop.time())
            if one.changed or again.due(loop.time(), contending.is_store_away):
                one.changed = False
                await contending.reload_challengers()
            one.wake.clear()
            reached = await contending.follow_log()
            stopping = self._stopping.is_set() or not one.should_follow
            if stopping or loop.time() - kept >= self._params.keep_seconds:
                await contending.save()
                kept = loop.time()
            if stopping:
                return
            if reached:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._params.keep_seconds):
                        await one.wake.wait()

    async def _refuse_large(self, one: FollowedModel) -> None:
        """Raise IndexTooLarge if the newest snapshot shows that the index is too large, before it is loaded."""
        if one.is_contested:
            return
        newest = await manifests.newest(self._store, one.living.keys)
        if newest is not None:
            one.n_bytes = newest.size
        self._check_size(one)

    def _check_size(self, one: FollowedModel) -> None:
        if not one.is_contested:
            total = sum(other.n_bytes for other in self._followed.values() if not other.is_contested)
            if total > self._params.memory:
                raise IndexTooLarge


async def run_until_signal(settings: Settings, reporter: Reporter) -> None:
    """Run until SIGTERM or SIGINT."""
    store = Store(settings.store_url(), settings.group(StoreParams))
    place = settings.artifacts_location()
    cache = cache_in(settings.data_dir, settings.group(VersionParams).cache_bytes)
    gatekeeper = PromotionRunner(
        store,
        ArtifactStore(place, cache, PATIENCE_SECONDS) if place is not None else None,
        settings.group(ContendingParams),
        settings.group(GateParams),
        settings.group(LogParams),
        settings.prepare_seconds,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gatekeeper.stop)
    try:
        reporter.send(Report(stage="following contests", progress=1.0, ready=True))
        await gatekeeper.run()
    finally:
        await store.close()


def main() -> int:
    """Run the process and return its exit code."""

    def run(settings: Settings, reporter: Reporter) -> None:
        os.nice(NICE)
        entry.load_kernels(reporter)
        uvloop.run(run_until_signal(settings, reporter))

    return entry.run("gatekeeper", entry.parser("gatekeeper", __doc__).parse_args().status, run)


if __name__ == "__main__":
    sys.exit(main())
