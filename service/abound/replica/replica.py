"""A replica: all models in memory, kept at the end of their logs, and the entry point for requests.

>>> replica = Replica(Store("unix:///run/store.sock"))
>>> await replica.start(lambda stage, progress: None)
>>> learned = await replica.learn("default", [LearnDraft(records, 1)])
>>> replica.model("default").live.rank(vector, 10)

Each model has an appender, from its creation to its deletion. The follower recognizes this process's own entries by
their origin and by a sequence number over all models.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.high_water import HighWaterRecorder
from abound.log import stream
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.log.appender import Appender
from abound.log.catalog import DEFAULT_MODEL, CatalogModel
from abound.log.events import ConfigureEvent, MarkEvent
from abound.log.stream import LogParams
from abound.metrics import Telemetry
from abound.processes import kernel_compiler
from abound.processes.tracing import Tracing
from abound.replica.follower import Follower
from abound.replica.health import Health, ReplicaStatus
from abound.replica.heartbeat import Heartbeat
from abound.replica.loaded_versions import LoadedVersions, ServingParams
from abound.replica.loader import Progress
from abound.replica.model_directory import ARRIVAL_SECONDS, ModelDirectory
from abound.replica.storage_status import StorageStatus
from abound.state import replica_status, schedule
from abound.state.replicated_model import ReplicatedModel, VersionNotLoaded
from abound.state.snapshots import SnapshotParams, read_manifests
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.durability import confirmed_durability
from abound.store.reconnecting_connection import ReconnectingConnection
from abound.store.server_info import ServerInfo
from abound.tasks import cancel_and_wait, wait_until
from abound.versions.cache_cleanup import CacheCleaner
from abound.versions.card import reading_settings
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, CannotStart, InvalidInstance, NotReady, OutcomeUnknown, StoreUnavailable
from abound_core.limits import Limits
from abound_core.types import Offset

log = structlog.get_logger(__name__)

PRESENCE_POLL_SECONDS = 0.05

STOP_RECORDING_SECONDS = 3.0  # longest wait for an artifact store

MODELS_AT_ONCE = 50  # models whose figures are read without giving way to requests, about 1 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParams:
    """Parameters of a replica."""

    durability: str = "log"  # log, fsync or replica; a store that cannot reach it is refused at the start
    max_models: int = 1000  # no more are created
    default_update: str = "fsu"  # update rule of a new model that names none
    limits: Limits = field(default_factory=Limits)
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    serving: ServingParams = field(default_factory=ServingParams)


class Replica:
    """The state of every model of one store, and the only way to change it.

    One follower reads all logs and applies them entry by entry; nothing else changes a model. ``learn`` appends, and
    the follower reads the entry back. While the store is away, the models keep answering.
    """

    def __init__(
        self,
        store: Store,
        params: ReplicaParams | None = None,
        artifacts: ArtifactStore | None = None,
        tracing: Tracing | None = None,
        classified: Callable[[], list[int]] = list,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.params = params or ReplicaParams()
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._follower = Follower(store, self.params.log, self.params.limits, self, artifacts)
        self._connection = ReconnectingConnection(store, "append", knows=self._follower.continues_catalog)
        self._appenders = Appenders(store, self.params, self._connection, tracing)
        self.loaded_versions = LoadedVersions(store, artifacts, self._follower.models, self.params.serving)
        self.storage_status = StorageStatus(store, artifacts, self._follower.models)
        self._health = Health(self._follower, self._connection, self.storage_status)
        self.models = ModelDirectory(
            store, self._follower, self._connection, self._health, self.params.max_models, self.params.default_update
        )
        self._copies = CacheCleaner(
            store,
            artifacts,
            lambda: [model.keys for model in self._follower.models.values()],
            self.loaded_versions.wait_loaded,
        )
        self._heartbeat = Heartbeat(store, self.id, self._follower, self._copies, classified)
        self._recorder = (
            HighWaterRecorder(store, artifacts, lambda: self._follower.catalog, self._is_first_replica)
            if artifacts is not None
            else None
        )
        self._recording: asyncio.Task[None] | None = None
        self.crashed = asyncio.Event()  # a part has stopped with an unexpected error; only a restart helps
        self._tasks: list[asyncio.Task[None]] = []
        self._errands: set[asyncio.Task[None]] = set()

    # start and stop

    async def start(self, progress: Progress = lambda stage, done: None) -> None:
        """Start the replica; return when it follows all logs.

        The process has checked the store (``Store.check``) and loaded the kernels. A model whose log is damaged does
        not prevent the start; it is not ready. Raises CannotStart if the data of the store cannot be used.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.store.params.start_seconds

        def tell(stage: str, done: float) -> None:
            nonlocal deadline
            if stage != "connecting":  # there is progress
                deadline = loop.time() + self.store.params.start_seconds
            self._health.set_stage(stage, done)
            progress(stage, done)

        tell("connecting", 0.0)
        self._connection.start()
        while True:
            try:
                await self.storage_status.join()
                await self._follower.load(tell)  # catalog, newest good snapshots, then the logs
                if DEFAULT_MODEL not in self._follower.models:
                    await self.models.create_default()
                    continue
                break
            except (StoreUnavailable, OutcomeUnknown) as error:
                if loop.time() > deadline:
                    raise CannotStart(f"the store went away while the service started: {error}") from error
                tell("connecting", 0.0)
                await asyncio.sleep(0.2)
        tell("opening a connection to append over", 0.0)
        try:
            async with asyncio.timeout(self.store.params.start_seconds):
                await self._connection.wait_open()
        except TimeoutError:
            raise CannotStart(
                f"the store at {self.store.address} does not accept a connection for appending; "
                "see its log, and maxclients"
            ) from None
        self._refuse_level()
        self._tasks = [
            asyncio.create_task(self._follower.follow(), name="follower"),
            asyncio.create_task(self._health.run(), name="store"),
            asyncio.create_task(self._heartbeat.run(), name="presence"),
            asyncio.create_task(self.loaded_versions.run(), name="loaded versions"),
            asyncio.create_task(self.storage_status.run(), name="storage status"),
            asyncio.create_task(self._copies.run(), name="copies"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        if self._recorder is not None:
            self._recording = asyncio.create_task(self._recorder.run(), name="high-water marks")
            self._recording.add_done_callback(self._on_task_end)
        self._health.set_stage("ready", 1.0)

    async def _is_first_replica(self) -> bool:
        """The first of the live replicas records the high-water marks."""
        models = sorted(self._follower.models)
        live = await self.replicas(models[0]) if models else []
        return bool(live) and live[0].replica == self.id

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a part of the replica has stopped", part=task.get_name(), exc_info=error)
        if not isinstance(error, AboundError):  # after those, a restart does not help
            self.crashed.set()

    def drain(self) -> None:
        """Stop accepting events to learn; requests under way continue."""
        self._health.set_stage("draining")

    async def stop(self) -> None:
        """Stop everything. Waiting requests are refused, or end with an unknown outcome."""
        self.drain()
        await cancel_and_wait(*self._tasks, *self._errands)
        await self.storage_status.stop()
        await self._follower.incoming.stop()
        await self.loaded_versions.stop()
        for model in self._follower.models.values():
            await appender_of(model).stop("the service is stopping")
        if self._recorder is not None and self._recording is not None:
            self._recorder.stop()  # it records the end of the logs, for which cancelling it would be too early
            await asyncio.wait([self._recording], timeout=STOP_RECORDING_SECONDS)
            await cancel_and_wait(self._recording)
        with contextlib.suppress(StoreUnavailable):
            await self._heartbeat.withdraw()
        await self._connection.stop()
        await self.store.close()

    def status(self) -> ReplicaStatus:
        return self._health.status()

    async def update_metrics(self, telemetry: Telemetry) -> None:
        telemetry.set_connected(self.status().log == "connected")
        figures: dict[str, dict[str, float]] = {}
        for number, model in enumerate(self.models.all(), start=1):
            name, live = model.name, model.live
            figures[name] = {
                "learned": live.n_learned,
                "features": len(live.features),
                "classes": live.n_classes,
                "connections": live.index.n_connections,
                "memory": live.n_bytes + model.n_loaded_bytes + model.n_coming_bytes,
                "lag": model.lag or 0,
                "log_max_bytes": self.params.log.max_log_bytes,
                "activated": 0 if live.serving.is_live else Offset.parse(live.serving.at).milliseconds / 1e3,
                "loaded": len(model.versions or ()),
            }
            telemetry.count_classified(name, model.n_classified)
            model.n_classified = 0
            if (appender := model.appender) is not None:
                requests, n_bytes = appender.waiting
                figures[name] |= {"waiting_requests": requests, "waiting_bytes": n_bytes}
                telemetry.add_appends(*appender.timer.drain())
            if (kept := self.storage_status.get(model)) is not None:
                figures[name] |= kept.figures()
            if number % MODELS_AT_ONCE == 0:
                await asyncio.sleep(0)
        telemetry.set_models(figures)

    def server_info(self) -> ServerInfo | None:
        return self._connection.info

    async def confirmed_durability(self) -> str:
        """Query the store and return how durable all applied events are: ``fsync`` or ``log``."""
        return await confirmed_durability(self._connection, self.store.params.reply_seconds)

    # models

    def model(self, name: str) -> ReplicatedModel:
        return self.models.get(name)

    async def learn(
        self,
        name: str,
        drafts: Sequence[LearnDraft],
        wait: Literal["applied", "log"] = "applied",
        timeout: float = 10.0,  # noqa: ASYNC109  a deadline of the group, not of this coroutine
    ) -> list[LearnOutcome]:
        """Append drafts to the log of a model and return the outcome of each.

        With ``wait`` ``applied`` (always for a draft with a key), return when the events are applied here. If that
        takes longer than ``timeout`` seconds, ``applied`` is False in the result; the event is durable nevertheless.

        Raises
        ------
        UnknownModel, NotReady, Overloaded, StoreUnavailable
            Nothing was appended.
        OutcomeUnknown
            The store did not answer, or an event with a key was not applied in time.
        InvalidInstance
            The key was used before with another body (for a single draft only, else ``LearnOutcome.refused``).
        """
        learned = await appender_of(self._changeable(name)).learn(drafts, wait == "applied", timeout)
        if len(learned) == 1 and learned[0].refused is not None:
            raise learned[0].refused
        return learned

    async def configure(self, name: str, changes: dict[str, Any], timeout: float = 10.0) -> ModelConfig:  # noqa: ASYNC109
        """Change fields of a model's configuration; return the resulting configuration.

        Waits until other live replicas have it, too, for as long as a silent one counts as live. Raises
        InvalidInstance if a value is wrong, Conflict if the model has learned and a field can no longer change, and
        otherwise as ``learn``.
        """
        model = self._changeable(name)
        changed = model.live.check_change(changes)
        await kernel_compiler.wait_until_loaded(changed, kernel_compiler.PATIENCE_SECONDS)
        if changed == model.live.config:
            return changed
        at = await appender_of(model).event(ConfigureEvent(changes), timeout)
        model.live.check_change(changes)  # other events may have been applied before the change

        async def is_everywhere() -> bool:
            others = [one for one in await self.replicas(name) if one.ready and one.replica != self.id]
            return all(Offset.parse(one.offset) >= at for one in others)

        with contextlib.suppress(StoreUnavailable):
            await wait_until(is_everywhere, PRESENCE_POLL_SECONDS, replica_status.FRESH_SECONDS)
        return model.live.config

    async def mark(self, name: str, token: str, timeout: float = 10.0) -> Offset:  # noqa: ASYNC109
        """Append a mark, at which every replica publishes its digest under ``token``; return its offset."""
        return await appender_of(self._changeable(name)).event(MarkEvent(token), timeout)

    async def wait_for(self, name: str, offset: Offset, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the event at ``offset`` is applied here.

        Raises InvalidInstance if the log ends before it (field ``min_offset``), and NotReady with the lag if it was
        not applied in time.
        """
        model = self.model(name)
        if model.offset >= offset:
            return
        try:
            last = (await stream.tail(self.store, model.keys.log)).last
        except StoreUnavailable as error:
            raise NotReady(f"this replica is behind {offset} and cut off from the log", lag=model.lag) from error
        beyond = InvalidInstance(f"min_offset {offset} is beyond the end of the log", "min_offset")
        if last[:2] < offset[:2]:
            raise beyond
        in_last_entry = last[:2] == offset[:2]
        try:
            async with asyncio.timeout(timeout):
                await model.wait_for(last if in_last_entry else offset)
                if in_last_entry:
                    await model.wait_entry_complete()
        except TimeoutError:
            raise NotReady(f"this replica is behind {offset}: it is at {model.offset}", lag=model.lag) from None
        if model.offset < offset:
            raise beyond

    async def catch_up(self, name: str, timeout: float = ARRIVAL_SECONDS) -> None:  # noqa: ASYNC109
        """Wait until this replica has applied what the catalog and the log of a model have now.

        Everything that another replica has acknowledged before is then here. A model that is not ready, or waits for
        a version or a state, is not waited for. Raises StoreUnavailable, and NotReady if this replica is too far
        behind.
        """
        await self.models.catch_up(timeout)
        model = self._follower.models.get(name)
        if model is None or not model.ready or model.halted is not None:
            return
        try:
            async with asyncio.timeout(timeout):
                newest = await stream.newest_after(self.store, model.keys.log, model.offset)
                if newest is not None:
                    await model.wait_for(newest)
                await model.wait_entry_complete()
        except TimeoutError:
            raise NotReady(f"this replica is behind the log: it is at {model.offset}", lag=model.lag) from None

    async def replicas(self, name: str) -> list[replica_status.PublishedStatus]:
        return await replica_status.live_replicas(self.store, self.model(name).keys)

    async def snapshots(self, name: str) -> list[StateManifest]:
        return await read_manifests(self.store, self.model(name).keys)

    async def request_snapshot(self, name: str) -> StateManifest:
        """Request a snapshot from the worker, at the current offset or later, and wait for it.

        Raises NotReady if no worker is running, or it takes too long.
        """
        model = self.model(name)
        return await schedule.request_snapshot(
            self.store, model.keys, model.offset, self.params.snapshots.wanted_seconds
        )

    # callbacks of the follower

    def on_model_added(self, model: ReplicatedModel) -> None:
        self.loaded_versions.on_model_added(model)
        self._appenders.on_model_added(model)

    def on_incoming_loaded(self, model: ReplicatedModel) -> None:
        self._run_errand(self._heartbeat.publish_soon())  # the replacement waits for it

    def on_model_replaced(self, model: ReplicatedModel, before: CatalogModel) -> None:
        self.loaded_versions.on_model_replaced(model, before.keys)
        keeps_requests = reading_settings(before.config) == reading_settings(model.live.config)
        appender_of(model).use_log(model.keys.log, keeps_requests)
        self._run_errand(self._heartbeat.replace_model(before.keys))

    def on_model_removed(self, model: ReplicatedModel) -> None:
        self.loaded_versions.on_model_removed(model)
        self._heartbeat.forget_model(model.keys)
        self._run_errand(appender_of(model).stop(f"the model {model.name} was deleted"))
        if model.name == DEFAULT_MODEL:
            self._run_errand(self.models.restore_default())

    async def on_mark(self, model: ReplicatedModel, token: str) -> None:
        """Publish the digest under the mark's token. Applying pauses while it is computed."""
        digest = await model.compute_digest()
        if digest is not None:
            self._run_errand(_publish_mark(self.store, model, token, self.id, model.offset, digest))

    def on_prepare(self, model: ReplicatedModel) -> None:
        self.loaded_versions.poll_soon()

    def on_halt(self, model: ReplicatedModel, missing: VersionNotLoaded) -> None:
        self.loaded_versions.on_halt(model, missing)

    # internals

    def _changeable(self, name: str) -> ReplicatedModel:
        model = self.model(name)
        self.models.check_changeable(model)
        return model

    def _refuse_level(self) -> None:
        info, level = self._connection.info, self.params.durability
        lack = None if info is None else info.lacks(level)
        if lack is not None:
            raise CannotStart(f"ABOUND_DURABILITY is {level}, but {lack}")

    def _run_errand(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


async def _publish_mark(
    store: Store, model: ReplicatedModel, token: str, replica: str, offset: Offset, digest: str
) -> None:
    try:
        await replica_status.publish_mark(store, model.keys, token, replica, offset, digest)
    except StoreUnavailable as error:
        log.warning("could not publish the digest at a mark", model=model.name, reason=str(error))


class Appenders:
    """Creates the appenders of a replica's models.

    All share ``connection``. For levels above ``log`` each has another one to the same servers.
    """

    def __init__(
        self, store: Store, params: ReplicaParams, connection: ReconnectingConnection, tracing: Tracing | None
    ) -> None:
        self._store = store
        self._params = params
        self._connection = connection
        self._tracing = tracing
        self._origin = secrets.token_bytes(8)
        self._sequences = itertools.count(1)

    def on_model_added(self, model: ReplicatedModel) -> None:
        weak = weakref.proxy(model)  # without a cycle, a deleted model is freed immediately
        own = None
        if self._params.durability != "log":
            own = ReconnectingConnection(
                self._store,
                f"append-{model.name}",
                2 * self._params.log.wait_store_seconds,  # its checks are queued behind WAITAOF and WAIT
                self._connection.knows,
            )
        model.appender = Appender(
            model.keys.log,
            self._origin,
            self._sequences,
            self._connection,
            own,
            self._params.durability,
            self._params.log,
            self._store.params.reply_seconds,
            partial(getattr, weak, "held_log_bytes"),
            self._tracing,
        )


def appender_of(model: ReplicatedModel) -> Appender:
    if model.appender is None:
        raise AssertionError("a model of a replica has an appender")
    return model.appender
