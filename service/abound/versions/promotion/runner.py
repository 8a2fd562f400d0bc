"""Follow the contests of all models, so that versions are promoted and rolled back. The worker runs this.

Each followed model has a task of its own, which shares the event loop with the snapshots and jobs of the worker
and lets them run after each slice of events. A lease per model ensures that one worker at a time follows it. When
that worker dies, another one continues from the saved standings.

The worker follows models that have challengers or an active version.
"""

from __future__ import annotations

import asyncio

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.log.catalog import Catalog, CatalogModel, reread_catalog
from abound.log.stream import LogGone, LogParams, trimmed_key
from abound.settings import Settings
from abound.store.client import Store, store_errors
from abound.store.lease import LeaseLost, acquire
from abound.tasks import cancel_and_wait, wait_for_event
from abound.versions.cache_cleanup import CacheCleaner
from abound.versions.promotion import standings
from abound.versions.promotion.contest import ContestFollower
from abound.versions.promotion.params import ChallengerParams
from abound_core.errors import (
    AboundError,
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    StoreUnavailable,
    UnknownApplyVersion,
)
from abound_core.promotion_rule import GateParams

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
STOP_SECONDS = 3.0  # longest wait of each part of the worker for the end of its current step
READ_SECONDS = 30.0  # longest pause between two reads, in case ``FollowedModel.update`` missed an entry

PAUSE_SECONDS = 2.0  # after an interruption
DAMAGED_PAUSE_SECONDS = 60.0  # after an interruption that rarely passes without intervention

AWAY_SECONDS = 30.0  # before loading versions again, while a store is unavailable
DAMAGED_VERSION_SECONDS = 3600.0  # before loading versions again, if no store was unavailable


class FollowedModel:
    """Model that is followed, or may be, and its state in the store when it was last read."""

    def __init__(self, living: CatalogModel) -> None:
        self.living = living
        self.should_follow = False  # it has challengers or an active version
        self.wake = asyncio.Event()  # set when there are new log entries or the challengers changed
        self.changed = True
        self.task: asyncio.Task[None] | None = None
        self.not_before = 0.0  # when it may be followed again after an interruption, in time of the loop
        self._entered: frozenset[bytes] = frozenset()
        self._log: tuple[int, bytes | None] = (0, None)

    def update(self, entered: frozenset[bytes], active: bytes | None, log: tuple[int, bytes | None]) -> None:
        self.should_follow = bool(entered) or active not in (None, b"live")
        self.changed = self.changed or entered != self._entered
        if self.changed or log != self._log:
            self.wake.set()
        self._entered, self._log = entered, log


class PromotionRunner:
    def __init__(
        self, settings: Settings, store: Store, artifacts: ArtifactStore | None, stopping: asyncio.Event
    ) -> None:
        self._settings = settings
        self._params = settings.group(ChallengerParams)
        self._store = store
        self._artifacts = artifacts
        self._followed: dict[str, FollowedModel] = {}
        self._cleaner = CacheCleaner(store, artifacts, lambda: [one.living.keys for one in self._followed.values()])
        self._stopping = stopping

    async def run(self) -> None:
        """Poll the catalog and follow models until ``stopping`` is set; then write the standings of each model."""
        catalog = Catalog()
        cleaning: asyncio.Task[None] | None = None
        try:
            while not self._stopping.is_set():
                try:
                    catalog = await self._poll(catalog)
                    # Cleaning before the models are known would delete files that they need.
                    cleaning = cleaning or asyncio.create_task(self._cleaner.run(), name="cache cleaning")
                except StoreUnavailable as error:
                    log.warning("the store is unavailable", reason=str(error))
                except (Corrupted, UnknownApplyVersion) as error:
                    log.error("an entry in the store cannot be read", reason=str(error))
                await wait_for_event(self._stopping, LOOK_SECONDS)
        finally:
            for one in self._followed.values():
                one.wake.set()
            tasks = [one.task for one in self._followed.values() if one.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=STOP_SECONDS)
            await cancel_and_wait(*tasks, *([cleaning] if cleaning else []))

    async def _poll(self, catalog: Catalog) -> Catalog:
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
                pipe.hkeys(keys.key("challengers"))
                pipe.hget(keys.key("active"), "version")
                pipe.xlen(keys.log)  # not the last entry, which may be large
                pipe.get(trimmed_key(keys.log))
            with store_errors():
                found = iter(await pipe.execute())
        now = asyncio.get_running_loop().time()
        for one in models:
            entered, active, length, trimmed = (next(found) for _ in range(4))
            one.update(frozenset(entered), active, (length, trimmed))
            if one.should_follow and now >= one.not_before and (one.task is None or one.task.done()):
                one.task = asyncio.create_task(self._follow(one), name=f"contest of {one.living.keys.name}")
        return catalog

    async def _follow(self, one: FollowedModel) -> None:
        """Follow a model while ``should_follow`` is set. Errors are logged; ``_poll`` starts again after a pause."""
        name, pause = one.living.keys.name, PAUSE_SECONDS
        try:
            await self._follow_leased(one)
        except LeaseLost:
            log.warning("lost the lease: another worker follows the contest", model=name)
        except (Conflict, LogGone):
            pass  # another worker follows it, or it was deleted
        except (StoreUnavailable, ArtifactsUnavailable) as error:
            log.warning("contest interrupted; it will be retried", model=name, reason=str(error))
        except Exception as error:  # a contest must not end the worker
            unexpected = not isinstance(error, AboundError)
            log.error("contest interrupted; it will be retried", model=name, reason=str(error), exc_info=unexpected)
            pause = DAMAGED_PAUSE_SECONDS
        finally:
            one.not_before = asyncio.get_running_loop().time() + pause

    async def _follow_leased(self, one: FollowedModel) -> None:
        keys = one.living.keys
        async with acquire(self._store, keys, purpose=standings.PURPOSE) as lease:
            contest = ContestFollower(
                self._store,
                self._artifacts,
                one.living,
                lease,
                self._params,
                self._settings.group(GateParams),
                self._settings.group(LogParams),
                self._settings.prepare_seconds,
            )
            await contest.open()
            await self._run(one, contest)
            if not one.should_follow:
                await standings.drop(lease)

    async def _run(self, one: FollowedModel, contest: ContestFollower) -> None:
        loop = asyncio.get_running_loop()
        saved = retry_at = read = 0.0
        reached = False
        while True:
            if one.changed or (contest.standing.trouble and loop.time() >= retry_at):
                one.changed = False
                await contest.reload_challengers()
                reached = False
                retry_at = loop.time() + (AWAY_SECONDS if contest.is_store_away else DAMAGED_VERSION_SECONDS)
            if not reached or one.wake.is_set() or loop.time() - read >= READ_SECONDS:
                one.wake.clear()
                reached = await contest.follow_log()
                read = loop.time()
            going = one.should_follow and not self._stopping.is_set()
            if not going or loop.time() - saved >= self._params.keep_seconds:
                await contest.save()
                saved = loop.time()
            if not going:
                return
            if reached:
                await wait_for_event(one.wake, self._params.keep_seconds)
