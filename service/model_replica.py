"""One model as one replica has it: the live state, how far it is, and the one way in which it changes.

Start-up, following and rebuilding all go through :meth:`ModelReplica.apply`, entry by entry in log order. An entry
that cannot be applied stops the model for good: ``trouble`` says why, and nothing that comes after is applied.
"""

from __future__ import annotations

import asyncio
import bisect
import secrets
from typing import NamedTuple

from core.applying import Applying
from core.config import ModelConfig
from core.errors import Damaged, InvalidInstance, UnknownApplyVersion
from core.limits import Limits
from core.live import LiveModel
from core.types import START, Offset
from service.appender import Appender
from service.catalog import ModelKeys
from service.events import Configure, Entry, Learn, Mark, checksum_of, decode_entry
from service.log import Element, size_of


class Position(NamedTuple):
    """How far a state is in its log.

    Attributes
    ----------
    offset : Offset
        Of the event applied last.
    checksum : bytes
        Of that event's entry, by which the log is known again.
    n_entries, log_bytes : int
        Entries of the log so far, and their size.
    """

    offset: Offset
    checksum: bytes
    n_entries: int
    log_bytes: int


class Applied(NamedTuple):
    """An entry that was applied, the offset of its last event, and what came of its records (None: it had none)."""

    entry: Entry
    offset: Offset
    applying: Applying | None


AT_START = Position(START, b"", 0, 0)


def new_secret() -> tuple[int, int]:
    """A secret for the key tables of this process."""
    return secrets.randbits(64), secrets.randbits(64)


class ModelReplica:
    """One model of one replica.

    Attributes
    ----------
    keys : ModelKeys
    live : LiveModel
        Read it as you like between two ``await``; nobody but ``apply`` changes it.
    position : Position
    trouble : str or None
        Why the model's state cannot go on.
    ready : bool
        It has caught up with the log once and its state is trusted.
    lag : int or None
        Entries behind, as measured last.
    digest, digest_offset : the newest digest that was taken, and where
    appender : Appender or None
        None where nothing is appended, as in a rebuild.
    """

    def __init__(
        self, keys: ModelKeys, config: ModelConfig, slice_events: int = 32, limits: Limits | None = None
    ) -> None:
        self.keys = keys
        self.limits = limits or Limits()
        self.appender: Appender | None = None
        self.trouble: str | None = None
        self.ready = False
        self.lag: int | None = None
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
        """Size of the log as far as it has been applied."""
        return self.position.log_bytes

    def start_anew(self) -> None:
        """Drop the state for that of the model's first moment."""
        self.restore(LiveModel(self._config, new_secret(), self.limits), AT_START)

    def restore(self, live: LiveModel, position: Position) -> None:
        """Take over a state that was loaded."""
        self.live = live
        self.position = position
        self.digest = self.digest_offset = None

    async def apply(self, element: Element) -> Applied:
        """Apply the next entry of the log, in slices; other work gets its turn between two of them.

        Raises
        ------
        Damaged, UnknownApplyVersion
            It cannot be applied. The model keeps its state, and ``trouble`` says so from here on.
        """
        entry_id, fields = element
        try:
            entry = decode_entry(fields)
            at = Offset.of_entry(entry_id)
            self._n_wanting += 1
            async with self._turn:
                self._n_wanting -= 1
                applying = await self._apply_event(entry.event, at)
                if applying is not None:
                    at = Offset(at.milliseconds, at.sequence, len(applying.ranks) - 1)
                before = self.position
                self.position = Position(
                    at, checksum_of(fields), before.n_entries + 1, before.log_bytes + size_of(fields)
                )
        except (Damaged, UnknownApplyVersion) as error:
            self.ready = False
            self.trouble = f"entry {entry_id.decode()} of the log of {self.name} cannot be applied: {error}"
            raise type(error)(self.trouble) from error
        if self._awaited:
            self._wake()
        return Applied(entry, at, applying)

    async def _apply_event(self, event: Learn | Configure | Mark, at: Offset) -> Applying | None:
        if type(event) is Learn:
            if self.live.crowded:
                await self._enlarge()
            applying = self.live.begin(event.records, event.n, event.units, at)
            applying.step(self.slice_events)
            while not applying.done:
                offset = Offset(at.milliseconds, at.sequence, max(0, applying.n_done - 1))
                self.position = self.position._replace(offset=offset)
                await asyncio.sleep(0)
                if self.live.crowded:
                    await self._enlarge()
                applying.step(self.slice_events)
            return applying
        if type(event) is Configure:
            try:
                self.live.configure(event.changes)
            except InvalidInstance as error:
                raise Damaged(f"it changes the configuration to one that cannot be: {error}") from error
        return None

    async def _enlarge(self) -> None:
        """Let another thread make larger tables. Nothing changes the model meanwhile: this is its turn."""
        live = self.live
        live.take(await asyncio.to_thread(live.enlarged))

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
