"""One model on one replica: its live state, its position in the log, and the only function that changes it.

Start-up, following and replays all go through :meth:`ReplicatedModel.apply`, entry by entry in log order. An entry
that cannot be applied stops the model permanently: ``failure`` holds the reason, and no later entry is applied.

A **version** that is activated (``abound/versions/activation.py``) is loaded before that. A model that serves requests
and has not loaded the version stops before the activation and raises ``VersionNotLoaded``. A model that is not
serving yet continues, and must have the version that is active at the end of the log.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from abound.log.appender import Appender
from abound.log.events import (
    ActivateEvent,
    ConfigureEvent,
    Entry,
    Event,
    LearnEvent,
    checksum_of,
    decode_entry,
)
from abound.log.stream import DAMAGED_ENTRY_ADVICE, UNTRIMMED, Element, entry_size
from abound.processes import kernel_compiler
from abound.state.position import AT_START, Position
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance, NotReady, UnknownApplyVersion
from abound_core.limits import Limits
from abound_core.model.active_version import ServingState
from abound_core.model.entry_application import EntryApplication
from abound_core.model.live_model import STATE_GROUP, LiveModel
from abound_core.types import Offset

LARGE_ENTRY = 2**20  # bytes of an entry above which a thread checks and decodes it

SLICE_BYTES = 2**16  # of records that are applied before other tasks get a turn

REPLAY_SLICE = 1024


class AppliedEntry(NamedTuple):
    entry: Entry
    offset: Offset  # of its last event
    applying: EntryApplication | None  # None if it has no records


class VersionInfo(NamedTuple):
    digest: str
    n_bytes: int


class VersionNotLoaded(Exception):
    """The version that is active, or becomes active with the next entry, is not loaded. Nothing was applied."""

    def __init__(self, version: str, digest: str, at: Offset) -> None:
        super().__init__(f"the version {version} is active from {at} on and is not loaded yet")
        self.version = version
        self.digest = digest
        self.at = at


def new_secret() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)


async def learn(
    live: LiveModel,
    event: LearnEvent,
    at: Offset,
    slice_events: int,
    passed: Callable[[int], None] = lambda n_done: None,
) -> EntryApplication:
    """Apply an event of instances to a state in slices; other tasks run between slices.

    Before each pause, ``passed`` is called with the number of applied positions.
    """
    applying = live.begin(event.records, event.n, event.units, at)
    slice_events = max(1, min(slice_events, SLICE_BYTES * event.n // max(1, len(event.records))))
    await step(live, applying, slice_events)
    while not applying.done:
        passed(applying.n_done)
        await asyncio.sleep(0)
        await step(live, applying, slice_events)
    return applying


async def step(live: LiveModel, applying: EntryApplication, limit: int) -> None:
    """Apply a slice. What would take long is done in a thread; nothing may change the state meanwhile."""
    if live.is_crowded:
        live.replace_tables(await asyncio.to_thread(live.enlarged))
    applying.step(limit)


async def configure(live: LiveModel, event: ConfigureEvent) -> None:
    try:
        await kernel_compiler.wait_until_loaded(live.configured(event.changes))
        live.configure(event.changes)
    except InvalidInstance as error:
        raise Corrupted(f"it changes the configuration to an invalid one: {error}") from error


class ReplicatedModel:
    """One model of one replica.

    Attributes
    ----------
    live : LiveModel
        Safe to read between two ``await``; only ``apply`` changes it.
    failure : str or None
        Why the model has stopped permanently.
    halted : str or None
        Why the model waits: the active version is not loaded yet.
    lacks_version : bool
        The last attempt to load the active version failed.
    resumes : bool
        The reason for the halt has ended, or is to be retried; the follower continues with the model.
    ready : bool
        It has caught up with the log once and its state is trusted.
    lag : int or None
        Entries behind the log, as last measured.
    n_classified : int
        Instances classified since the metrics were last updated.
    coming : ReplicatedModel or None
        The incarnation that is about to replace this one, loaded beside it.
    appender : Appender or None
        None where nothing is appended.
    versions : dict of VersionInfo by id, or None
        The versions that are loaded to rank by; None if this model serves no requests.
    """

    def __init__(
        self,
        keys: ModelKeys,
        config: ModelConfig,
        slice_events: int = 32,
        limits: Limits | None = None,
        origin: str = "",
    ) -> None:
        self.keys = keys
        self.origin = origin
        self.log_key = keys.log
        self.limits = limits or Limits()
        self.n_classified = 0
        self.appender: Appender | None = None
        self.coming: ReplicatedModel | None = None
        self.versions: dict[str, VersionInfo] | None = None
        self.lacks_version = False
        self.failure: str | None = None
        self.halted: str | None = None
        self.resumes = False
        self.ready = False
        self.lag: int | None = None
        self.trim = UNTRIMMED
        self.digest: str | None = None
        self.digest_offset: Offset | None = None
        self.slice_events = slice_events
        self._config = config
        self._turn = asyncio.Lock()
        self._awaited: list[tuple[Offset, int, asyncio.Future[None]]] = []
        self._n_awaited = 0
        self._n_wanting = 0
        self.reset()

    @property
    def name(self) -> str:
        return self.keys.name

    @property
    def incarnation(self) -> str:
        return self.keys.incarnation

    @property
    def offset(self) -> Offset:
        return self.position.offset

    @property
    def log_bytes(self) -> int:
        return self.position.log_bytes

    @property
    def held_log_bytes(self) -> int:
        held = self.position.log_bytes - self.trim.log_bytes
        return held if held > 0 else 0

    @property
    def n_coming_bytes(self) -> int:
        """Bytes of the incarnation that is loaded beside this one; until it is loaded, those of this one."""
        if self.coming is None:
            return 0
        return self.coming.live.n_bytes if self.coming.ready else self.live.n_bytes

    @property
    def n_loaded_bytes(self) -> int:
        return sum([loaded.n_bytes for loaded in (self.versions or {}).values()])

    def check_ready(self) -> None:
        """Raise NotReady, with the reason and the lag, while the model is being loaded, is halted, or has failed."""
        if not self.ready:
            raise NotReady(self.failure or self.halted or f"the model {self.name} is being loaded", lag=self.lag)

    def check_serving(self, serving: ServingState | None = None) -> None:
        """Raise VersionNotLoaded when this model serves requests and the active version is not loaded."""
        serving = serving or self.live.serving
        if self.versions is not None and not serving.is_live:
            loaded = self.versions.get(serving.version)
            if loaded is None or loaded.digest != serving.digest:
                raise VersionNotLoaded(serving.version, serving.digest, Offset.parse(serving.at))

    def reset(self) -> None:
        self.restore(LiveModel(self._config, new_secret(), self.limits), AT_START)

    def restore(self, live: LiveModel, position: Position) -> None:
        self.live = live
        self.position = position
        self.digest = self.digest_offset = None
        self._wake()

    async def become(self, by: ReplicatedModel) -> None:
        """Take over the state of the incarnation that replaces this one. Nothing may be applied to either meanwhile."""
        async with self._turn, by._turn:  # no digest is half computed then
            self.keys, self.log_key, self._config = by.keys, by.log_key, by._config
            self.live, self.position, self.trim = by.live, by.position, by.trim
            self.digest, self.digest_offset = by.digest, by.digest_offset
            self.failure, self.halted, self.resumes, self.ready = by.failure, by.halted, by.resumes, by.ready
            self.lag, self.coming = by.lag, None
        self._wake()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        async with self._turn:  # no entry is half applied then
            yield

    async def apply(self, element: Element) -> AppliedEntry:
        """Apply the next entry of the log, in slices; other tasks run between slices.

        After VersionNotLoaded nothing was applied, and the entry can be tried again. After Corrupted and
        UnknownApplyVersion the model keeps its state, and ``failure`` holds the reason from now on.
        """
        entry_id, fields = element
        try:
            is_large = sum(map(len, fields)) > LARGE_ENTRY
            entry = await asyncio.to_thread(decode_entry, fields) if is_large else decode_entry(fields)
            event = entry.event
            at = Offset.of_entry(entry_id)
            self._n_wanting += 1
            async with self._turn:
                self._n_wanting -= 1
                applying = await self._apply_event(event, at)
                if applying is not None:
                    at = Offset(at.milliseconds, at.sequence, len(applying.ranks) - 1)
                before = self.position
                self.position = Position(
                    at, checksum_of(fields), before.n_entries + 1, before.log_bytes + entry_size(fields)
                )
        except (Corrupted, UnknownApplyVersion) as error:
            self.ready = False
            advice = f". {DAMAGED_ENTRY_ADVICE}" if isinstance(error, Corrupted) else ""
            self.failure = f"entry {entry_id.decode()} of the log of {self.name} cannot be applied: {error}{advice}"
            raise type(error)(self.failure) from error
        if self._awaited:
            self._wake()
        return AppliedEntry(entry, at, applying)

    async def _apply_event(self, event: Event, at: Offset) -> EntryApplication | None:
        if type(event) is LearnEvent:
            return await learn(self.live, event, at, self.slice_events, lambda n_done: self._pass(at, n_done))
        if type(event) is ConfigureEvent:
            await configure(self.live, event)
        elif type(event) is ActivateEvent:
            serving = self.live.serving.after_activation(event.activation, event.version, event.digest, at)
            if self.ready:
                self.check_serving(serving)
            self.live.serving = serving
        return None

    def _pass(self, at: Offset, n_done: int) -> None:
        offset = Offset(at.milliseconds, at.sequence, max(0, n_done - 1))
        self.position = self.position._replace(offset=offset)

    @property
    def has_waiting_entry(self) -> bool:
        return self._n_wanting > 0

    async def wait_entry_complete(self) -> None:
        async with self._turn:
            pass

    async def compute_digest(self, give_way: bool = False) -> str | None:
        """Compute the digest of the current state, in slices; nothing is applied meanwhile.

        With ``give_way``, return None as soon as an entry waits to be applied, or if the kernels are not compiled yet.
        """
        try:
            await kernel_compiler.wait_for_groups([STATE_GROUP], 0.0 if give_way else None)
        except NotReady:
            return None
        async with self._turn:
            for _ in self.live.digest_steps():
                await asyncio.sleep(0)
                if give_way and self.has_waiting_entry:
                    return None
            self.digest, self.digest_offset = self.live.digest(), self.offset
            return self.digest

    async def wait_for(self, offset: Offset) -> None:
        if self.offset >= offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._n_awaited += 1
        bisect.insort(self._awaited, (offset, self._n_awaited, future))
        try:
            await future
        finally:
            self._awaited = [awaited for awaited in self._awaited if awaited[2] is not future]

    def _wake(self) -> None:
        for offset, _, future in self._awaited:
            if offset > self.offset:
                return
            if not future.done():
                future.set_result(None)
