"""Adoption: switch all replicas to a rebuilt model state at one offset, while learning goes on.

 1. ``begin`` takes the model's adoption lock (``service/model/adoption_lock.py``), so that no other adoption
    runs. It pins the log after its present end A, so that retention keeps those entries.
 2. The caller builds a state that stands for everything up to A, and writes it as a state file.
 3. ``PrepareEvent`` is appended; the replicas build standby states from the state file.
 4. When every ready replica reports its standby state, or after ``prepare_seconds``, the job is committed.
    ``AdoptEvent`` is then appended, unless another adoption has come first.
 5. The caller takes a snapshot past the adoption, so that no start needs the state file any more. Only then is
    A unpinned.

A failure before ``AdoptEvent`` leaves the model unchanged: replicas drop their standby states when no adoption is
pending, and the state file is deleted. After ``AdoptEvent`` the adoption is final. A second ``AdoptEvent`` of the same
state is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from abound.core.errors import Conflict, Corrupted, OutcomeUnknown, StoreUnavailable
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history import pins
from abound.service.history.erasures import mark_token
from abound.service.history.history import History, HistoryParams
from abound.service.history.past import read_entries
from abound.service.history.replay import compact
from abound.service.log import stream
from abound.service.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.service.log.events import APPLY_VERSION, AdoptEvent, Entry, MarkEvent, PrepareEvent, decode_entry, encode
from abound.service.log.stream import LogParams
from abound.service.model import adoption_lock, presence
from abound.service.model.adoption_lock import PENDING_SECONDS, SWEEP, PendingAdoption
from abound.service.model.presence import SILENT_SECONDS
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import state_files
from abound.service.snapshots.manifest import SnapshotManifest
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.snapshots.state_files import StateFileManifest
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import LeaseLost
from abound.service.tasks import cancel_and_wait, do_nothing

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.1
KNOWN_SECONDS = 10.0


WAIT_SECONDS = 0.5
RENEW_SECONDS = 5.0
APPEND_SECONDS = 60.0
SNAPSHOT_SECONDS = 600.0
MOST_PADDING = 2**20


class Adoption:
    """One adoption; ``begin`` creates it.

    Attributes
    ----------
    id : str
    after : Offset
        The end of the log when it began; the rebuilt state stands for everything up to here.
    committed : bool
        The state may already be adopted.
    """

    def __init__(self, place: AdoptionContext, name: str, after: Offset) -> None:
        self.id = name
        self.after = after
        self.committed = False
        self._place = place
        self._pending = PendingAdoption(name)
        self._said = asyncio.get_running_loop().time()
        self._lapsed = False
        self._origin = secrets.token_bytes(8)

    async def go_on(self) -> None:
        """Move ``after`` to the present end of the log, for the next state. Raises StoreUnavailable."""
        self.after = (await stream.tail(self._place.store, self._place.keys.log)).last

    async def adopt(self, index: StateFileManifest, reason: str, padded: bool = False) -> Offset:
        """Switch all replicas to the state in a state file; return the offset of the switch.

        Parameters
        ----------
        padded : bool
            Begin a new node of the stream, so that the nodes before it can be freed completely.

        Raises
        ------
        Conflict
            Another adoption came first; nothing is adopted.
        StoreUnavailable, ArtifactsUnavailable, UnknownArtifact, Corrupted
            Nothing is adopted.
        OutcomeUnknown
            The state may or may not be adopted.
        """
        place = self._place
        prepare = PrepareEvent(self.id, index.id, str(self.after), index.digest, reason)
        self._pending = PendingAdoption(self.id, prepare)
        await self._say()
        await self._append(Entry(APPLY_VERSION, self._origin, 1, prepare))
        await self._until_known()
        await self._until_prepared(prepare)
        await self._check(index)
        padding = bytes(await _node_bytes(place.store)) if padded else b""
        adopt = AdoptEvent(self.id, index.id, prepare.after, index.digest, reason, padding)
        await place.commit(f"{state_files.folder(place.keys)}/{index.id}")
        self.committed = True
        deadline = asyncio.get_running_loop().time() + APPEND_SECONDS
        is_sent = False
        while True:
            try:
                at = await self._append(Entry(APPLY_VERSION, self._origin, 2, adopt), f"{self.id}/{index.id}", index)
                break
            except Conflict as error:
                if is_sent:  # it may have been appended before the other one; the store remembers only the last
                    raise OutcomeUnknown(
                        f"the store became unavailable when the state was adopted, and then: {error}"
                    ) from error
                raise
            except StoreUnavailable as error:
                is_sent = True
                if asyncio.get_running_loop().time() > deadline:
                    raise OutcomeUnknown(f"the store became unavailable during the adoption: {error}") from error
                await asyncio.sleep(RENEW_SECONDS / 5)
                await self._say_if_possible()
        log.info("adopted a rebuilt state", model=place.keys.name, index=index.id, offset=str(at), reason=reason)
        return at

    async def renew_forever(self) -> None:
        """Renew the adoption lock until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._say_if_possible()

    async def _check(self, index: StateFileManifest) -> None:
        """Check that the state file is intact. While the lock is held, garbage collection does not delete the file."""
        self._lapsed = False
        await state_files.check(self._place.artifacts, self._place.keys, index)

    def _has_lapsed(self) -> bool:
        return self._lapsed or asyncio.get_running_loop().time() - self._said > PENDING_SECONDS

    async def _say(self) -> None:
        self._lapsed, began = self._has_lapsed(), asyncio.get_running_loop().time()
        if not await adoption_lock.renew(self._place.store, self._place.keys, self._pending):
            raise Conflict(f"another rebuild of {self._place.keys.name} is running; try again when it has ended")
        self._said = began

    async def _say_if_possible(self) -> None:
        with contextlib.suppress(StoreUnavailable, Conflict):
            await self._say()

    async def _append(self, entry: Entry, adopts: str = "", index: StateFileManifest | None = None) -> Offset:
        place = self._place
        trim = await stream.trim_of(place.store, place.keys.log)
        name = None
        if await place.artifacts.is_known_to(place.store):  # else no replica would find the state file
            there = not trim.covers(self.after)
            while index is not None and self._has_lapsed():  # garbage collection may have deleted the state file
                await self._say()
                await self._check(index)
            name = await adoption_lock.append(
                place.store, place.keys, self._pending, encode(entry), self.after, there=there, adopts=adopts
            )
        if name is None:
            raise Conflict(
                f"another rebuild of {place.keys.name} is running, this one took too long, or the store has lost the "
                "entries that the state was built from; start the job again"
            )
        return Offset.of_entry(name)

    async def _until_known(self) -> None:
        """Wait until all replicas report this model, in case it is new.

        The wait is bounded; replicas that have not reported the model by then are not waited for later.
        """
        place = self._place
        default = (await read_catalog(place.store)).get(DEFAULT_MODEL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_SECONDS
        while default is not None and loop.time() < deadline:
            await place.checkpoint()
            every, own = [
                {one.replica for one in await presence.live_replicas(place.store, keys)}
                for keys in (default.keys, place.keys)
            ]
            if every <= own:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _until_prepared(self, prepare: PrepareEvent) -> None:
        place = self._place
        loop = asyncio.get_running_loop()
        deadline = loop.time() + place.prepare_seconds
        while True:
            await place.checkpoint()
            missing = [
                one.replica
                for one in await presence.live_replicas(place.store, place.keys, SILENT_SECONDS)
                if one.ready and one.prepared != prepare.index
            ]
            if not missing:
                return
            if loop.time() > deadline:
                log.warning("adopting a state before all replicas are prepared", model=place.keys.name, without=missing)
                return
            await asyncio.sleep(POLL_SECONDS)


@contextlib.asynccontextmanager
async def begin(
    place: AdoptionContext, name: str, pinned: Offset | None = None, waiting: Callable[[], None] | None = None
) -> AsyncIterator[Adoption]:
    """Begin an adoption. One whose job died can be begun again under the same name.

    Parameters
    ----------
    pinned : Offset or None
        Hold back retention from here on, if this is before the end of the log.
    waiting : callable or None
        Wait until no other adoption runs, however long that takes, and call this repeatedly meanwhile. The lock
        of a job that died expires after ``PENDING_SECONDS``.

    Raises
    ------
    Conflict
        Another adoption is running, and ``waiting`` is None.
    StoreUnavailable
    """
    while not await adoption_lock.renew(place.store, place.keys, PendingAdoption(name)):
        if waiting is not None:
            waiting()
        elif (await adoption_lock.pending_adoptions(place.store, [place.keys]))[0] not in (
            None,
            PendingAdoption(SWEEP),
        ):  # garbage collection soon ends
            raise Conflict(f"another rebuild of {place.keys.name} is running; try again when it has ended")
        await place.checkpoint()
        await asyncio.sleep(WAIT_SECONDS)
    try:
        after = (await stream.tail(place.store, place.keys.log)).last
        adoption = Adoption(place, name, after)
        oldest = after if pinned is None else min(after, pinned)
        async with pins.hold_pin(place.store, place.keys, secrets.token_hex(8), oldest):
            keeping = asyncio.create_task(adoption.renew_forever())
            try:
                yield adoption
            finally:
                await cancel_and_wait(keeping)
    finally:
        with contextlib.suppress(StoreUnavailable):
            await adoption_lock.release(place.store, place.keys, name)


async def find_adoption(place: AdoptionContext, name: str, since: Offset) -> tuple[PrepareEvent | None, Offset | None]:
    """Find an adoption begun after ``since`` in the log.

    Return its last ``PrepareEvent``, and the offset at which that state was adopted.
    """
    prepare, adopted = None, None
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    since = since if contents is None else max(since, contents.start)
    async with contextlib.aclosing(
        read_entries(place.store, place.artifacts, place.keys, since, params=place.log)
    ) as reading:
        async for elements in reading:
            for entry_id, fields in elements:
                event = decode_entry(fields).event
                if isinstance(event, PrepareEvent) and event.adoption == name:
                    adopted = adopted if prepare is not None and prepare.index == event.index else None
                    prepare = event
                elif adopted is None and (
                    (isinstance(event, AdoptEvent) and event.adoption == name) or event == MarkEvent(mark_token(name))
                ):
                    adopted = Offset.of_entry(entry_id)
            await place.checkpoint()
    return prepare, adopted


async def snapshot_past(place: AdoptionContext, at: Offset) -> SnapshotManifest:
    """Return the newest snapshot if it is at or past an adoption, else make one.

    Raises
    ------
    Conflict
        The adoption was ignored, since another one came first.
    Corrupted, StoreUnavailable, ArtifactsUnavailable
        No snapshot can be made.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SNAPSHOT_SECONDS
    while True:
        for manifest in (await manifests.read_manifests(place.store, place.keys))[:1]:
            if manifest.position.offset[:2] >= at[:2]:
                if manifest.position.adopted[:2] < at[:2]:
                    raise Conflict(f"the adoption at {at} was ignored: another one came first; start the job again")
                return manifest
        try:
            await compact(place.store, place.living, place.snapshots, place.log, artifacts=place.artifacts)
        except (Conflict, LeaseLost):  # the worker is making a snapshot, which may be past the adoption
            if loop.time() > deadline:
                raise Corrupted(f"no snapshot past the adoption at {at} was made in time; check the worker") from None
            await asyncio.sleep(POLL_SECONDS)


async def _node_bytes(store: Store) -> int:
    """Return about how many bytes the store puts into one node of a stream."""
    with contextlib.suppress(StoreUnavailable), store_errors():
        found = await store.client.config_get("stream-node-max-bytes")
        return min(MOST_PADDING, max(4096, int(found.get("stream-node-max-bytes", 4096))))
    return 4096


@dataclass(frozen=True, kw_only=True)
class AdoptionContext:
    """Stores, model, callbacks and limits of an adoption.

    Attributes
    ----------
    store : Store
    artifacts : ArtifactStore
        Already joined to the store (``ArtifactStore.join``).
    living : CatalogModel
        The model.
    checkpoint : async callable
        Awaited repeatedly until the job is committed. An exception from it ends the work.
    will_write : async callable
        Called with the folder in the artifact store that is written next.
    commit : async callable
        Called right before ``AdoptEvent`` is appended, with the folders that belong to the model from then on. An
        exception from it ends the work.
    prepare_seconds : float
        Longest wait for replicas to prepare. Replicas that are not ready by then halt until they are.
    log, snapshots, history
        Parameters of the log, snapshots and history.
    """

    store: Store
    artifacts: ArtifactStore
    living: CatalogModel
    checkpoint: Callable[[], Awaitable[None]] = do_nothing
    will_write: Callable[[str], Awaitable[None]] = do_nothing
    commit: Callable[..., Awaitable[None]] = do_nothing
    prepare_seconds: float = 300.0
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    history: HistoryParams = field(default_factory=HistoryParams)

    @property
    def keys(self) -> ModelKeys:
        """Keys of the model."""
        return self.living.keys
