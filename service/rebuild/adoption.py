"""Adopting an index: all replicas go over to it at one offset, while learning goes on.

 1. ``begin``: nobody else adopts for this model meanwhile (``service/model/adoption_lock.py``); what came after the
 log's present end A is
    pinned
 2. the index is made, to stand for everything up to A, and written into the artifact store
 3. ``Prepare`` is appended, and replicas bring up their shadows
 4. when every replica that is ready has said that its shadow is, or after a bound, the work is committed and ``Adopt``
    is appended, if nobody else adopts by then
 5. a snapshot past the adoption is made, so that no start needs the index any more; only then is A unpinned

Whatever fails before ``Adopt`` leaves the model as it was: shadows are dropped when nothing is pending any more, and
the index is taken away. After it the adoption stands. Adopting twice is harmless: the second time is passed over.

Where an index of a model is made and adopted, and who is told of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from abound.core.errors import Conflict, Damaged, OutcomeUnknown, StoreUnavailable
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history import pins
from abound.service.history.erasures import mark_token
from abound.service.history.history import History, HistoryParams
from abound.service.history.past import entries
from abound.service.history.replay import compact
from abound.service.log import stream
from abound.service.log.catalog import DEFAULT_MODEL, Living, read_catalog
from abound.service.log.events import APPLY_VERSION, Adopt, Entry, Mark, Prepare, decode_entry, encode
from abound.service.log.stream import LogParams
from abound.service.model import adoption_lock, presence
from abound.service.model.adoption_lock import PENDING_SECONDS, SWEEP, Pending
from abound.service.model.presence import SILENT_SECONDS
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import Manifest
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.snapshots.state_files import IndexManifest
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import LeaseLost
from abound.service.tasks import end

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.1
KNOWN_SECONDS = 10.0


WAIT_SECONDS = 0.5
RENEW_SECONDS = 5.0
APPEND_SECONDS = 60.0
SNAPSHOT_SECONDS = 600.0
MOST_PADDING = 2**20


class Adoption:
    """One adoption; ``begin`` makes it.

    Attributes
    ----------
    id : str
    after : Offset
        The log's end when it began: what the index is to stand for.
    committed : bool
        It may be adopted already.
    """

    def __init__(self, place: Place, name: str, after: Offset) -> None:
        self.id = name
        self.after = after
        self.committed = False
        self._place = place
        self._pending = Pending(name)
        self._said = asyncio.get_running_loop().time()
        self._lapsed = False
        self._origin = secrets.token_bytes(8)

    async def go_on(self) -> None:
        """Let the next index stand for everything up to the log's present end. StoreUnavailable."""
        self.after = (await stream.tail(self._place.store, self._place.keys.log)).last

    async def adopt(self, index: IndexManifest, reason: str, padded: bool = False) -> Offset:
        """Let all replicas go over to an index; the offset at which they do.

        Parameters
        ----------
        padded : bool
            Begin a new node of the stream, so that the ones before it can be freed with all their bytes.

        Raises
        ------
        Conflict
            Another adoption came between; nothing is adopted.
        StoreUnavailable, ArtifactsUnavailable, UnknownArtifact, Damaged
            Nothing is adopted.
        OutcomeUnknown
            It may or may not be.
        """
        place = self._place
        prepare = Prepare(self.id, index.id, str(self.after), index.digest, reason)
        self._pending = Pending(self.id, prepare)
        await self._say()
        await self._append(Entry(APPLY_VERSION, self._origin, 1, prepare))
        await self._until_known()
        await self._until_prepared(prepare)
        await self._check(index)
        padding = bytes(await _node_bytes(place.store)) if padded else b""
        adopt = Adopt(self.id, index.id, prepare.after, index.digest, reason, padding)
        await place.commit(f"{state_files.folder(place.keys)}/{index.id}")
        self.committed = True
        deadline = asyncio.get_running_loop().time() + APPEND_SECONDS
        is_sent = False
        while True:
            try:
                at = await self._append(Entry(APPLY_VERSION, self._origin, 2, adopt), f"{self.id}/{index.id}", index)
                break
            except Conflict as error:
                if is_sent:  # it may have been there before the other one, which alone is remembered
                    raise OutcomeUnknown(
                        f"the store went away when the index was adopted, and then: {error}"
                    ) from error
                raise
            except StoreUnavailable as error:
                is_sent = True
                if asyncio.get_running_loop().time() > deadline:
                    raise OutcomeUnknown(f"the store went away when the index was to be adopted: {error}") from error
                await asyncio.sleep(RENEW_SECONDS / 5)
                await self._say_if_possible()
        log.info("adopted an index", model=place.keys.name, index=index.id, offset=str(at), reason=reason)
        return at

    async def keep(self) -> None:
        """Say again and again that it is under way, for ever."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._say_if_possible()

    async def _check(self, index: IndexManifest) -> None:
        """Whether it is there and whole, as long as this is said to be under way: then nobody takes it away."""
        self._lapsed = False
        await state_files.check(self._place.artifacts, self._place.keys, index)

    def _has_lapsed(self) -> bool:
        return self._lapsed or asyncio.get_running_loop().time() - self._said > PENDING_SECONDS

    async def _say(self) -> None:
        self._lapsed, began = self._has_lapsed(), asyncio.get_running_loop().time()
        if not await adoption_lock.say(self._place.store, self._place.keys, self._pending):
            raise Conflict(f"another index is being made for {self._place.keys.name}")
        self._said = began

    async def _say_if_possible(self) -> None:
        with contextlib.suppress(StoreUnavailable, Conflict):
            await self._say()

    async def _append(self, entry: Entry, adopts: str = "", index: IndexManifest | None = None) -> Offset:
        place = self._place
        trim = await stream.trim_of(place.store, place.keys.log)
        name = None
        if await place.artifacts.is_known_to(place.store):  # else no replica would find the index
            there = not trim.covers(self.after)
            while index is not None and self._has_lapsed():  # somebody may have taken it for what a dead one left
                await self._say()
                await self._check(index)
            name = await adoption_lock.append(
                place.store, place.keys, self._pending, encode(entry), self.after, there=there, adopts=adopts
            )
        if name is None:
            raise Conflict(
                f"another index is being made for {place.keys.name}, this took too long, or the store has lost what "
                "the index was made of"
            )
        return Offset.of_entry(name)

    async def _until_known(self) -> None:
        """Wait until all replicas have said that they have the model, when it is new: others are not waited for."""
        place = self._place
        default = (await read_catalog(place.store)).get(DEFAULT_MODEL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_SECONDS
        while default is not None and loop.time() < deadline:
            await place.between()
            every, own = [
                {one.replica for one in await presence.present(place.store, keys)}
                for keys in (default.keys, place.keys)
            ]
            if every <= own:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _until_prepared(self, prepare: Prepare) -> None:
        place = self._place
        loop = asyncio.get_running_loop()
        deadline = loop.time() + place.prepare_seconds
        while True:
            await place.between()
            missing = [
                one.replica
                for one in await presence.present(place.store, place.keys, SILENT_SECONDS)
                if one.ready and one.prepared != prepare.index
            ]
            if not missing:
                return
            if loop.time() > deadline:
                log.warning("adopting an index before all replicas have it", model=place.keys.name, without=missing)
                return
            await asyncio.sleep(POLL_SECONDS)


@contextlib.asynccontextmanager
async def begin(
    place: Place, name: str, pinned: Offset | None = None, waiting: Callable[[], None] | None = None
) -> AsyncIterator[Adoption]:
    """Begin an adoption; one that dies can be begun again under the same name.

    Parameters
    ----------
    pinned : Offset or None
        Hold back retention from there on, if that is before the log's end.
    waiting : callable or None
        Wait until no other is under way, however long that takes, telling so again and again by this. One that died
        is under way for ``PENDING_SECONDS``.

    Raises
    ------
    Conflict
        Another one is under way, and ``waiting`` is None.
    StoreUnavailable
    """
    while not await adoption_lock.say(place.store, place.keys, Pending(name)):
        if waiting is not None:
            waiting()
        elif (await adoption_lock.pending(place.store, [place.keys]))[0] not in (
            None,
            Pending(SWEEP),
        ):  # that is soon over
            raise Conflict(f"another index is being made for {place.keys.name}")
        await place.between()
        await asyncio.sleep(WAIT_SECONDS)
    pin = None
    keeping: list[asyncio.Task[None]] = []
    try:
        after = (await stream.tail(place.store, place.keys.log)).last
        adoption = Adoption(place, name, after)
        pin = await pins.pin(place.store, place.keys, after if pinned is None else min(after, pinned))
        keeping = [asyncio.create_task(adoption.keep()), asyncio.create_task(_keep_pin(place, pin))]
        yield adoption
    finally:
        await end(*keeping)
        with contextlib.suppress(StoreUnavailable):
            await adoption_lock.let_go(place.store, place.keys, name)
            if pin is not None:
                await pins.remove(place.store, pin)


async def found(place: Place, name: str, since: Offset) -> tuple[Prepare | None, Offset | None]:
    """What the log has of an adoption begun after ``since``: its last ``Prepare``, and where that was adopted."""
    prepare, adopted = None, None
    contents = await History(place.store, place.artifacts, place.keys).contents()
    since = since if contents is None else max(since, contents.beginning)
    async with contextlib.aclosing(
        entries(place.store, place.artifacts, place.keys, since, params=place.log)
    ) as reading:
        async for elements in reading:
            for entry_id, fields in elements:
                event = decode_entry(fields).event
                if isinstance(event, Prepare) and event.adoption == name:
                    adopted = adopted if prepare is not None and prepare.index == event.index else None
                    prepare = event
                elif adopted is None and (
                    (isinstance(event, Adopt) and event.adoption == name) or event == Mark(mark_token(name))
                ):
                    adopted = Offset.of_entry(entry_id)
            await place.between()
    return prepare, adopted


async def snapshot_past(place: Place, at: Offset) -> Manifest:
    """A snapshot at an adoption or past it: the newest one, or one that is made now.

    Raises
    ------
    Conflict
        The adoption was passed over, since another one came first.
    Damaged, StoreUnavailable, ArtifactsUnavailable
        None can be made.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SNAPSHOT_SECONDS
    while True:
        for manifest in (await manifests.manifests(place.store, place.keys))[:1]:
            if manifest.position.offset[:2] >= at[:2]:
                if manifest.position.adopted[:2] < at[:2]:
                    raise Conflict(f"the index was not adopted at {at}: another one was before it")
                return manifest
        try:
            await compact(place.store, place.living, place.snapshots, place.log, artifacts=place.artifacts)
        except (Conflict, LeaseLost):  # the worker makes one, it may be past the adoption
            if loop.time() > deadline:
                raise Damaged(f"no snapshot past the adoption at {at} came to be") from None
            await asyncio.sleep(POLL_SECONDS)


async def _keep_pin(place: Place, pin: pins.Pin) -> None:
    while True:
        await asyncio.sleep(pins.PIN_SECONDS / 4)
        with contextlib.suppress(StoreUnavailable):
            await pins.renew(place.store, pin)


async def _node_bytes(store: Store) -> int:
    """About as much as the store puts into one node of a stream."""
    with contextlib.suppress(StoreUnavailable), reaching():
        found = await store.client.config_get("stream-node-max-bytes")
        return min(MOST_PADDING, max(4096, int(found.get("stream-node-max-bytes", 4096))))
    return 4096


async def _nothing(*_: str) -> None:
    """Nobody has to be told."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an index is made and adopted.

    Attributes
    ----------
    store : Store
    artifacts : Artifacts
        Joined.
    living : Living
        The model.
    between : async callable
        Awaited now and then; what it raises ends the work, until it is committed.
    will_write : async callable
        Told the folder in the artifact store that is written next.
    commit : async callable
        Told right before the adoption is appended, with the folders that are the model's own from then on; what it
        raises ends the work.
    prepare_seconds : float
        Longest wait for replicas to be ready; those that are not by then halt until they are.
    log, snapshots, history : parameters of these
    """

    store: Store
    artifacts: Artifacts
    living: Living
    between: Callable[[], Awaitable[None]] = _nothing
    will_write: Callable[[str], Awaitable[None]] = _nothing
    commit: Callable[..., Awaitable[None]] = _nothing
    prepare_seconds: float = 300.0
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    history: HistoryParams = field(default_factory=HistoryParams)

    @property
    def keys(self) -> ModelKeys:
        """Of the model."""
        return self.living.keys
