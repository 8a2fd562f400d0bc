"""A replica: every model in memory, kept at the end of its log, and the way for requests into it.

>>> replica = Replica(Store("unix:///run/store.sock"))
>>> await replica.start(lambda stage, progress: None)
>>> learned = await replica.learn("default", [Draft(records, 1)])
>>> replica.model("default").live.rank(vector, 10)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from core.config import ModelConfig
from core.errors import (
    CannotStart,
    Conflict,
    InvalidInstance,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownModel,
)
from core.limits import Limits
from core.live import warmup
from core.types import Offset
from service import log as stream
from service import presence, snapshots, wanted
from service.appender import Appender, Draft, Learned
from service.artifacts import Artifacts
from service.catalog import DEFAULT_MODEL, append_to_catalog
from service.ending import end
from service.events import Configure, Created, Deleted, Mark
from service.follower import Follower
from service.housekeeping import Housekeeping
from service.keeping import Keeping
from service.line import Line
from service.log import LogParams
from service.manifest import Manifest, manifests
from service.model_replica import Applied, ModelReplica, NotLoaded, NotPrepared
from service.shadows import Shadows
from service.shelf import ServingParams, Shelf
from service.snapshots import SnapshotParams
from service.source import Source
from service.status import Durability, Status
from service.store import Facts, Store

log = structlog.get_logger(__name__)

Progress = Callable[[str, float], None]

DEFAULT_PAUSE_SECONDS = 1.0

WATCH_SECONDS = 0.25

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParams:
    """What a replica is made of.

    Attributes
    ----------
    durability : ``log`` | ``fsync`` | ``replica``
        What requests ask for by default. A store that cannot reach it is refused at the start.
    max_models : int
        At which no more are created.
    limits, log, snapshots, serving
        The bounds of what comes through the door, of the log, of the snapshots and of the versions that are loaded.
    """

    durability: str = "log"
    max_models: int = 1000
    limits: Limits = field(default_factory=Limits)
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    serving: ServingParams = field(default_factory=ServingParams)


class Replica:
    """The state of every model of one store, and the only way to change it.

    The protocol, from a request to its answer and from a crash to being ready:

     1. ``start`` refuses a store that could lose the log, reads the catalog, loads the newest good snapshot of each
        model and replays its log. The model ``default`` is created if there is none.
     2. One follower reads all logs and applies them entry by entry. Nothing else changes a model.
     3. ``learn`` appends. Requests at one time share an entry; the store's reply makes them durable.
     4. The follower meets the entry, applies it in slices, knows it by its origin as its own, and the requests get
        offset, ranks and whether the index changed.
     5. When the store goes away, the models answer on. What was not sent is refused, what was sent and not answered
        is of unknown outcome until the follower meets it, and nothing is ever sent twice.
     6. When the store comes back, the entry applied last must be there with its checksum; if not, the model is
        dropped and loaded anew.
     7. At a mark, applying rests while the digest is taken, which is published under the mark's token.
     8. An entry that cannot be read stops its model for good: not ready, and it says why.
    """

    def __init__(self, store: Store, params: ReplicaParams | None = None, artifacts: Artifacts | None = None) -> None:
        self.store = store
        self.artifacts = artifacts
        self.params = params or ReplicaParams()
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._origin = secrets.token_bytes(8)
        self._sequences = itertools.count(1)
        self._follower = Follower(store, self.params.log, self.params.limits, self, artifacts)
        self._line = Line(store, "append", knows=self._follower.knows)
        source = Source(store, artifacts, self.params.log)
        self._shadows = Shadows(store, source, self._follower.models)
        self.shelf = Shelf(store, artifacts, self._follower.models, self.params.serving)
        self._stage = ("connecting", 0.0)
        self._cut_off_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._housekeeping = Housekeeping(store, self.id, self._line, self._follower)
        self.keeping = Keeping(store, artifacts, self._follower.models)

    # life

    async def start(self, progress: Progress = lambda stage, done: None) -> None:
        """Come to be ready. ``progress`` is told the stage and how far it is.

        Returns when the replica follows all logs; one whose log is damaged returns too, and is not ready.

        Raises
        ------
        CannotStart
            The store is not one to trust, or what it holds cannot be used.
        """

        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.store.params.start_seconds

        def tell(stage: str, done: float) -> None:
            nonlocal deadline
            if stage != "connecting":  # it comes on
                deadline = loop.time() + self.store.params.start_seconds
            self._stage = (stage, done)
            progress(stage, done)

        tell("warming", 0.0)
        warmup()
        tell("connecting", 0.0)
        await self.store.check()
        self._line.start()
        while True:
            try:
                await self.keeping.join()
                await self._follower.load(tell)
                if DEFAULT_MODEL not in self._follower.models:
                    await self._change_catalog(Created(DEFAULT_MODEL, ModelConfig().to_dict()))
                    continue
                break
            except (StoreUnavailable, OutcomeUnknown) as error:
                if loop.time() > deadline:
                    raise CannotStart(f"the store went away while the service started: {error}") from error
                tell("connecting", 0.0)
                await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(self.store.params.start_seconds):
                await self._line.opened()
        except TimeoutError:
            raise CannotStart(
                f"no connection to append over can be had from the store at {self.store.address}"
            ) from None
        self._refuse_level()
        self._tasks = [
            asyncio.create_task(self._follow(), name="follower"),
            asyncio.create_task(self._watch_store(), name="store"),
            asyncio.create_task(self._housekeeping.watch(), name="watch"),
            asyncio.create_task(self._housekeeping.keep_presence(), name="presence"),
            asyncio.create_task(self._shadows.keep(), name="shadows"),
            asyncio.create_task(self.shelf.keep(), name="shelf"),
            asyncio.create_task(self.keeping.keep(), name="keeping"),
        ]
        tell("ready", 1.0)

    def drain(self) -> None:
        """Take nothing new to learn; what is on its way goes on."""
        self._stage = ("draining", 0.0)

    async def stop(self) -> None:
        """End everything. Requests that still wait are told that they were refused or that their outcome is unknown."""
        self.drain()
        await end(*self._tasks, *self._errands)
        await self._shadows.stop()
        await self.shelf.stop()
        for model in self._follower.models.values():
            if model.appender is not None:
                await model.appender.stop("the service is stopping")
        with contextlib.suppress(StoreUnavailable):
            await self._housekeeping.withdraw()
        await self._line.stop()
        await self.store.close()

    def status(self) -> Status:
        """How this replica does; costs nothing."""
        stage, progress = self._stage
        models = self._follower.models.values()
        reasons = [self._follower.trouble] if self._follower.trouble else []
        reasons += [model.trouble for model in models if model.trouble is not None]
        reasons += [
            f"{model.name} waits: {model.halted}" if model.halted else f"{model.name} is being loaded anew"
            for model in models
            if not (model.ready or model.trouble)
        ]
        if stage != "ready":
            reasons.append(f"{stage}, {progress:.0%}" if progress else stage)
        away = self._cut_off()
        facts = self._line.facts
        lags = [model.lag for model in models if model.lag is not None]
        return Status(
            stage=stage,
            progress=progress,
            ready=not reasons,
            reason="; ".join(reasons) or None,
            log="connected" if away is None else "cut off",
            since=away,
            lag=sum(lags) if lags else None,
            durability=Durability(facts.appendfsync, facts.levels, facts.warning) if facts is not None else None,
            history=self.keeping.trouble,
        )

    def facts(self) -> Facts | None:
        """What the store said of itself last; None before the first connection."""
        return self._line.facts

    # models

    def names(self) -> list[str]:
        """The names of all models, in order of creation."""
        return [living.keys.name for living in self._follower.catalog if living.keys.name in self._follower.models]

    def model(self, name: str) -> ModelReplica:
        """The model of this name; UnknownModel when there is none."""
        model = self._follower.models.get(name)
        if model is None:
            raise UnknownModel(f"there is no model {name[:64]!r}")
        return model

    async def learn(
        self,
        name: str,
        drafts: Sequence[Draft],
        wait: Literal["applied", "log"] = "applied",
        durability: str = "log",
        timeout: float = 10.0,  # noqa: ASYNC109  a deadline of the group, not of this coroutine
    ) -> list[Learned]:
        """Append drafts to the log of a model and say what came of each.

        With ``wait`` ``applied`` (always so for a draft with a key) answers when the events are applied here. When
        that takes longer than ``timeout`` seconds the answer has ``applied`` False: the event is durable all the same.

        Raises
        ------
        UnknownModel, NotReady, Overloaded, StoreUnavailable
            Nothing was appended.
        OutcomeUnknown
            The store did not answer, or an event with a key was not applied in time.
        InvalidInstance
            The store cannot confirm that level of durability; or (one draft only, else ``Learned.refused``) its key
            came before with another body.
        """
        model = self._changeable(name)
        has_key = drafts[0].key is not None if len(drafts) == 1 else any(draft.key is not None for draft in drafts)
        learned = await _appender(model).learn(drafts, durability, has_key or wait == "applied", timeout)
        if len(learned) == 1 and learned[0].refused is not None:
            raise learned[0].refused
        return learned

    async def create(self, name: str, config: ModelConfig, timeout: float = 10.0) -> bool:  # noqa: ASYNC109
        """Create a model, unless its name is in use; True when this call created it.

        Raises
        ------
        InvalidInstance
            The name (field ``model``) is not one of letters, digits, ``.``, ``_`` and ``-``, 1 to 64 of them.
        Conflict
            There are as many models as there may be.
        StoreUnavailable, OutcomeUnknown, NotReady
            As for ``learn``.
        """
        if MODEL_NAME.fullmatch(name) is None:
            raise InvalidInstance("a model's name has 1 to 64 letters, digits, dots, underscores and hyphens", "model")
        if name in self._follower.models:
            return False
        if len(self._follower.models) >= self.params.max_models:
            raise Conflict(f"there are {len(self._follower.models)} models, of at most {self.params.max_models}")
        self._check_taking()
        created = await self._change_catalog(Created(name, config.to_dict()))
        await self._until(lambda: self._follower.catalog.offset >= created, timeout)
        model = self._follower.models.get(name)
        return model is not None and model.incarnation == created.entry

    async def configure(self, name: str, changes: dict[str, Any], timeout: float = 10.0) -> ModelConfig:  # noqa: ASYNC109
        """Change fields of a model's configuration; the configuration that it then has.

        Raises
        ------
        InvalidInstance
            A field is unknown or its value is out of range.
        Conflict
            The model has learned, and a field cannot change any more.
        UnknownModel, StoreUnavailable, OutcomeUnknown, NotReady
            As for ``learn``.
        """
        model = self._changeable(name)
        changed = model.live.check_change(changes)
        if changed == model.live.config:
            return changed
        await _appender(model).event(Configure(changes), timeout)
        model.live.check_change(changes)  # something may have been learned before the change came to be applied
        return model.live.config

    async def delete(self, name: str, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Delete a model and everything that the store holds of it. Raises what ``learn`` raises.

        What the artifact store holds of it is left to the worker, who sweeps it some minutes later: a store that loses
        its last second, or fails over, has the model again, and needs its history.

        The model ``default`` is always there: deleting it makes a new one.
        """
        model = self.model(name)
        self._check_taking()
        last = await self._change_catalog(Deleted(name, model.incarnation))
        if name == DEFAULT_MODEL:
            last = await self._change_catalog(Created(name, ModelConfig().to_dict()))
        await self._until(lambda: self._follower.catalog.offset >= last, timeout)
        await snapshots.erase(self.store, model.keys)

    async def mark(self, name: str, token: str, timeout: float = 10.0) -> Offset:  # noqa: ASYNC109
        """Append a mark, at which every replica publishes its digest under ``token``; its offset."""
        return await _appender(self._changeable(name)).event(Mark(token), timeout)

    async def wait_for(self, name: str, offset: Offset, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the event at ``offset`` is applied here.

        Raises
        ------
        InvalidInstance
            The log ends before it (field ``min_offset``).
        NotReady
            It was not applied in time; names the lag.
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
                    await model.whole_entry()
        except TimeoutError:
            raise NotReady(f"this replica is behind {offset}: it is at {model.offset}", lag=model.lag) from None
        if model.offset < offset:
            raise beyond

    async def replicas(self, name: str) -> list[presence.Presence]:
        """All live replicas of a model, as they describe themselves."""
        return await presence.present(self.store, self.model(name).keys)

    async def snapshots(self, name: str) -> list[Manifest]:
        """The snapshots of a model, newest first."""
        return await manifests(self.store, self.model(name).keys)

    async def request_snapshot(self, name: str) -> Manifest:
        """Have the worker make a snapshot at the present offset or past it, and wait for it.

        Raises
        ------
        NotReady
            No worker is there, or it takes too long.
        """
        model = self.model(name)
        return await wanted.request(self.store, model.keys, model.offset, self.params.snapshots.wanted_seconds)

    # what the follower tells

    def came(self, model: ModelReplica) -> None:
        """Give a new model its way to append, and to answer with versions."""
        self.shelf.came(model)
        model.appender = Appender(
            model.keys.log,
            self._origin,
            self._sequences,
            self._line,
            Line(
                self.store,
                f"careful-{model.name}",
                2 * self.params.log.wait_store_seconds,  # what it asks comes behind WAITAOF and WAIT
                self._follower.knows,
            ),
            self.params.log,
            self.store.params.reply_seconds,
            lambda: model.held_bytes,
        )

    def gone(self, model: ModelReplica) -> None:
        """End what waits for a model that was deleted."""
        model.shadow = None
        self.shelf.gone(model)
        self._housekeeping.forget(model.name)
        if model.appender is not None:
            self._run_errand(model.appender.stop(f"the model {model.name} was deleted"))
        if model.name == DEFAULT_MODEL:
            self._run_errand(self._make_default())

    def sighted(self, model: ModelReplica, applied: Applied) -> None:
        """Hand what came of an own entry to its requests."""
        entry, (milliseconds, sequence, _), applying = applied
        if entry.origin == self._origin and model.appender is not None:
            model.appender.sighted(entry.sequence, Offset(milliseconds, sequence, 0), applying)

    async def marked(self, model: ModelReplica, token: str) -> None:
        """Take the digest and publish it."""
        digest = await model.take_digest()
        if digest is not None:
            self._run_errand(_publish_mark(self.store, model, token, self.id, model.offset, digest))

    def prepared(self, model: ModelReplica) -> None:
        """Bring up a shadow for the index that is about to be adopted, or load what is about to be activated."""
        self._shadows.look()
        self.shelf.look()

    def halted(self, model: ModelReplica, missing: NotPrepared | NotLoaded) -> None:
        """Get a model over an adoption that it has no shadow for, or an activation of what it has not loaded."""
        if isinstance(missing, NotPrepared):
            self._shadows.halt(model, missing)
        else:
            self.shelf.halt(model, missing)

    # inside

    async def _follow(self) -> None:
        """Follow for ever; should that ever end, say so instead of answering from a state that stands still."""
        try:
            await self._follower.follow()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._follower.trouble = f"the follower stopped: {type(error).__name__}: {error}"
            log.exception("the follower stopped")
            raise

    async def _watch_store(self) -> None:
        """Note since when the store has been away, whether anybody asks or not. For ever."""
        while True:
            self._cut_off()
            await asyncio.sleep(WATCH_SECONDS)

    async def _change_catalog(self, event: Created | Deleted) -> Offset:
        """Append to the catalog; the offset of the entry."""
        try:
            async with asyncio.timeout(self.store.params.connect_seconds):
                await self._line.opened()
        except TimeoutError:
            raise StoreUnavailable("the store is away; nothing was changed") from None
        if self._line.facts is not None:
            self._line.facts.check_safe()
        return await append_to_catalog(self._line, event, self.store.params.reply_seconds)

    async def _make_default(self) -> None:
        """Make the default model anew when a store that was emptied has none; whoever deletes one makes it at once."""
        while True:
            await asyncio.sleep(DEFAULT_PAUSE_SECONDS)
            if DEFAULT_MODEL in self._follower.models:
                return
            with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
                await self._change_catalog(Created(DEFAULT_MODEL, ModelConfig().to_dict()))

    async def _until(self, condition: Callable[[], bool], timeout: float) -> None:  # noqa: ASYNC109
        """Wait until the follower has made something true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not condition():
            if loop.time() > deadline:
                raise NotReady("the change is in the catalog; this replica has not come to it yet")
            await asyncio.sleep(0.002)

    def _changeable(self, name: str) -> ModelReplica:
        model = self.model(name)
        if not model.ready:
            raise NotReady(model.trouble or model.halted or f"the model {name} is being loaded", lag=model.lag)
        if self._stage[0] != "ready":
            self._check_taking()
        return model

    def _check_taking(self) -> None:
        if self._stage[0] != "ready":
            raise NotReady(f"this replica takes nothing: {self._stage[0]}")

    def _refuse_level(self) -> None:
        """CannotStart when the store cannot reach the durability that requests ask for by default."""
        facts = self._line.facts
        try:
            if facts is not None:
                facts.check_level(self.params.durability)
        except InvalidInstance as error:
            raise CannotStart(f"ABOUND_DURABILITY is {self.params.durability}, but {error}") from None

    def _cut_off(self) -> float | None:
        """Seconds for which the store has been away for reading or for appending, None when it is there."""
        if self._stage[0] == "connecting" or (self._follower.cut_off is None and self._line.link is not None):
            self._cut_off_at = None
            return None
        now = asyncio.get_running_loop().time()
        if self._cut_off_at is None:
            self._cut_off_at = now
        return now - self._cut_off_at

    def _run_errand(self, errand: Any) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


async def _publish_mark(
    store: Store, model: ModelReplica, token: str, replica: str, offset: Offset, digest: str
) -> None:
    try:
        await presence.publish_mark(store, model.keys, token, replica, offset, digest)
    except StoreUnavailable as error:
        log.warning("could not publish the digest at a mark", model=model.name, reason=str(error))


def _appender(model: ModelReplica) -> Appender:
    if model.appender is None:
        raise AssertionError("a model of a replica has an appender")
    return model.appender
