"""One model as one replica has it: the live state, how far it is, and the one way in which it changes.

Start-up, following and rebuilding all go through :meth:`ModelReplica.apply`, entry by entry in log order. An entry
that cannot be applied stops the model for good: ``trouble`` says why, and nothing that comes after is applied.

An index that is to be adopted has a **shadow** beside the live state (``service/model/standby.py``). Once the shadow
has come as far as the live state it is attached: whatever is applied is applied to both, so at the adoption it takes
the live state's place at once. A model without its shadow cannot apply the adoption: it stays before it, and
``NotPrepared`` says so.

So it is with a **version** that is activated (``service/versions/activation.py``): a model that answers and does not
have it stays before the activation, and ``NotLoaded`` says so. One that answers nobody yet goes on, and must have what
is active at the end.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple

from abound.core.config import ModelConfig
from abound.core.errors import Damaged, InvalidInstance, NotReady, UnknownApplyVersion
from abound.core.limits import Limits
from abound.core.model.active_version import Serving
from abound.core.model.apply import Applying
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.log.appender import Appender
from abound.service.log.events import Activate, Adopt, Configure, Entry, Event, Learn, Weigh, checksum_of, decode_entry
from abound.service.log.stream import MENDING, UNTRIMMED, Element, bytes_with
from abound.service.model.position import AT_START, Position
from abound.service.processes import kernel_compiler
from abound.service.store.keys import ModelKeys

if TYPE_CHECKING:
    from abound.service.model.standby import Shadow
    from abound.service.versions.repository import Loaded


REPLAY_SLICE = 1024


class Applied(NamedTuple):
    """An entry that was applied, the offset of its last event, and what came of its records (None: it had none)."""

    entry: Entry
    offset: Offset
    applying: Applying | None


class NotPrepared(Exception):
    """The next entry adopts an index whose shadow is not there yet. Nothing was applied; try again with it."""

    def __init__(self, adopt: Adopt, at: Offset) -> None:
        super().__init__(f"the index {adopt.index} is adopted at {at} and is not loaded yet")
        self.adopt = adopt
        self.at = at


class NotLoaded(Exception):
    """The version that is active, or is so after the next entry, is not loaded. Nothing was applied."""

    def __init__(self, version: str, digest: str, at: Offset) -> None:
        super().__init__(f"the version {version} is active from {at} on and is not loaded yet")
        self.version = version
        self.digest = digest
        self.at = at


def new_secret() -> tuple[int, int]:
    """A secret for the key tables of this process."""
    return secrets.randbits(64), secrets.randbits(64)


async def learn(
    live: LiveModel,
    event: Learn,
    at: Offset,
    slice_events: int,
    passed: Callable[[int], None] = lambda n_done: None,
) -> Applying:
    """Apply an event of instances to a state in slices; other work gets its turn between two of them.

    ``passed`` is told before each pause how many positions are applied.
    """
    if live.crowded:
        await enlarge(live)
    applying = live.begin(event.records, event.n, event.units, at)
    applying.step(slice_events)
    while not applying.done:
        passed(applying.n_done)
        await asyncio.sleep(0)
        if live.crowded:
            await enlarge(live)
        applying.step(slice_events)
    return applying


async def configure(live: LiveModel, event: Configure) -> None:
    """Apply a change of the configuration; Damaged when it leads to one that cannot be."""
    try:
        await kernel_compiler.loaded(live.config.changed(event.changes))
        live.configure(event.changes)
    except InvalidInstance as error:
        raise Damaged(f"it changes the configuration to one that cannot be: {error}") from error


async def enlarge(live: LiveModel) -> None:
    """Let another thread make larger tables; nothing may change the state meanwhile."""
    live.take(await asyncio.to_thread(live.enlarged))


class ModelReplica:
    """One model of one replica.

    Attributes
    ----------
    keys : ModelKeys
    log_key : bytes
        ``keys.log``, made once.
    live : LiveModel
        Read it as you like between two ``await``; nobody but ``apply`` changes it.
    position : Position
    trouble : str or None
        Why the model's state cannot go on.
    halted : str or None
        Why it does not go on for now: its shadow is not there yet for an adoption, or the version that is active.
    lacks : bool
        The version that is active could not be loaded when that was last tried.
    resumes : bool
        What halted it is over, or to be tried again; the follower is to go on with it.
    ready : bool
        It has caught up with the log once and its state is trusted.
    lag : int or None
        Entries behind, as measured last.
    trim : Trim
        What was trimmed off the log, as far as is known here.
    digest, digest_offset : the newest digest that was taken, and where
    appender : Appender or None
        None where nothing is appended, as in a rebuild.
    shadow : Shadow or None
        The index that may be adopted next.
    versions : dict of Loaded by id, or None
        What is loaded to answer with, the one that was asked last at the end; None where nobody is answered.
    """

    def __init__(
        self, keys: ModelKeys, config: ModelConfig, slice_events: int = 32, limits: Limits | None = None
    ) -> None:
        self.keys = keys
        self.log_key = keys.log
        self.limits = limits or Limits()
        self.appender: Appender | None = None
        self.shadow: Shadow | None = None
        self.versions: dict[str, Loaded] | None = None
        self.lacks = False
        self.trouble: str | None = None
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
        self.start_anew()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.keys.name

    @property
    def incarnation(self) -> str:
        """Id of the catalog entry that created the model."""
        return self.keys.incarnation

    @property
    def offset(self) -> Offset:
        """Of the event applied last, START when none was."""
        return self.position.offset

    @property
    def log_bytes(self) -> int:
        """Size of the log, since its beginning, as far as it has been applied."""
        return self.position.log_bytes

    @property
    def held_bytes(self) -> int:
        """Size of what the log holds now, without what was trimmed off it."""
        held = self.position.log_bytes - self.trim.log_bytes
        return held if held > 0 else 0

    @property
    def prepared(self) -> str | None:
        """The index that can be adopted at the next entry."""
        return self.shadow.index if self.shadow is not None and self.shadow.attached else None

    @property
    def n_shadow_bytes(self) -> int:
        """Bytes of memory of the index that may be adopted next, from when it is begun to be loaded on."""
        return self.shadow.n_bytes if self.shadow is not None else 0

    @property
    def n_loaded_bytes(self) -> int:
        """Bytes of the versions that are loaded."""
        return sum([loaded.card.n_bytes for loaded in (self.versions or {}).values()])

    def check_ready(self) -> None:
        """NotReady when its state is not to be trusted now; says why, and names the lag."""
        if not self.ready:
            raise NotReady(self.trouble or self.halted or f"the model {self.name} is being loaded", lag=self.lag)

    def check_serving(self, serving: Serving | None = None) -> None:
        """NotLoaded when what is active, or would be, is a version that is not loaded, and somebody is answered."""
        serving = serving or self.live.serving
        if self.versions is not None and not serving.is_live:
            loaded = self.versions.get(serving.version)
            if loaded is None or loaded.card.digest != serving.digest:
                raise NotLoaded(serving.version, serving.digest, Offset.parse(serving.at))

    def start_anew(self) -> None:
        """Drop the state for that of the model's first moment."""
        self.restore(LiveModel(self._config, new_secret(), self.limits), AT_START)

    def restore(self, live: LiveModel, position: Position) -> None:
        """Take over a state that was loaded. A shadow may have seen another log; it goes."""
        self.live = live
        self.position = position
        self.shadow = None
        self.digest = self.digest_offset = None
        self._wake()

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """As long as the context lasts nothing is applied, and no entry is half applied."""
        async with self._turn:
            yield

    async def apply(self, element: Element) -> Applied:
        """Apply the next entry of the log, in slices; other work gets its turn between two of them.

        Raises
        ------
        NotPrepared
            It adopts an index that is not here yet. Nothing was applied.
        NotLoaded
            It activates a version that is not loaded, and the model is ready. Nothing was applied.
        Damaged, UnknownApplyVersion
            It cannot be applied. The model keeps its state, and ``trouble`` says so from here on.
        """
        entry_id, fields = element
        try:
            entry = decode_entry(fields)
            event = entry.event
            first = at = Offset.of_entry(entry_id)
            self._n_wanting += 1
            async with self._turn:
                self._n_wanting -= 1
                adopted = self._adopts(event, at)
                applying = await self._apply_event(event, at)
                if applying is not None:
                    at = Offset(at.milliseconds, at.sequence, len(applying.ranks) - 1)
                if self.shadow is not None and self.shadow.attached:
                    self.position = self.position._replace(offset=at)  # answers come from behind the entry by now
                    await self.shadow.apply(event, first)
                before = self.position
                self.position = Position(
                    at,
                    checksum_of(fields),
                    before.n_entries + 1,
                    bytes_with(before.log_bytes, fields),
                    first if adopted else before.adopted,
                )
        except (Damaged, UnknownApplyVersion) as error:
            self.ready = False
            mending = f". {MENDING}" if isinstance(error, Damaged) else ""
            self.trouble = f"entry {entry_id.decode()} of the log of {self.name} cannot be applied: {error}{mending}"
            raise type(error)(self.trouble) from error
        if self._awaited:
            self._wake()
        return Applied(entry, at, applying)

    def _adopts(self, event: Event, at: Offset) -> bool:
        """Take the shadow for the live state when an event says so; whether it does."""
        if type(event) is not Adopt or Offset.parse(event.after) < self.position.adopted:
            return False
        if self.shadow is None or not self.shadow.attached or self.shadow.index != event.index:
            raise NotPrepared(event, at)
        self.shadow.live.serving = self.live.serving  # an index takes another's place, and no version's
        self.live = self.shadow.live
        self.shadow = None
        self.digest = self.digest_offset = None
        return True

    async def _apply_event(self, event: Event, at: Offset) -> Applying | None:
        if type(event) is Learn:
            return await learn(self.live, event, at, self.slice_events, lambda n_done: self._pass(at, n_done))
        if type(event) is Configure:
            await configure(self.live, event)
        elif type(event) is Activate:
            serving = self.live.serving.activated(event.activation, event.version, event.digest, at)
            if self.ready:
                self.check_serving(serving)
            self.live.serving = serving
        elif type(event) is Weigh:
            self.live.serving = self.live.serving.weighed(event.version, event.weights)
        return None

    def _pass(self, at: Offset, n_done: int) -> None:
        offset = Offset(at.milliseconds, at.sequence, max(0, n_done - 1))
        self.position = self.position._replace(offset=offset)

    @property
    def is_wanted(self) -> bool:
        """Whether an entry waits to be applied."""
        return self._n_wanting > 0

    async def whole_entry(self) -> None:
        """Wait until no entry is half applied."""
        async with self._turn:
            pass

    async def take_digest(self, give_way: bool = False) -> str | None:
        """The digest of the state as it is now, in slices; nothing is applied meanwhile.

        With ``give_way``, None as soon as an entry waits to be applied.
        """
        async with self._turn:
            for _ in self.live.digest_steps():
                await asyncio.sleep(0)
                if give_way and self.is_wanted:
                    return None
            self.digest, self.digest_offset = self.live.digest(), self.offset
            return self.digest

    async def wait_for(self, offset: Offset) -> None:
        """Wait until the event at ``offset`` is applied."""
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
