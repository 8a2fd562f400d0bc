"""Adoption: switch all replicas to a rebuilt model state at one offset, while learning goes on.

A is the end of the log when an adoption begins. The caller of ``begin`` builds a state that stands for everything up to
A, and writes it as a state file. Afterwards it takes a snapshot past the adoption, so that no start needs the state
file any more.

A failure before ``AdoptEvent`` leaves the model unchanged: replicas drop their standby states when no adoption is
pending, and the state file is deleted. After ``AdoptEvent`` the adoption is final. A second ``AdoptEvent`` of the same
state is ignored.

    ...:adopted    hash: adoption (and index), at; written by the script that appends ``AdoptEvent``

With this key the script recognizes an ``AdoptEvent`` that is repeated because its reply was lost. A store that loses
the end of the log loses this key with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import pins
from abound.history.erasures import mark_token
from abound.history.full_log import read_entries
from abound.history.history import History, HistoryParams
from abound.history.replay import compact
from abound.log import stream
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.events import APPLY_VERSION, AdoptEvent, Entry, MarkEvent, PrepareEvent, decode_entry, encode
from abound.log.stream import LogParams
from abound.state import replica_status, snapshots, state_files
from abound.state.replica_status import SILENT_SECONDS
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import ADOPTION, Lease, acquire
from abound.tasks import do_nothing, wait_until
from abound_core.errors import Conflict, Corrupted, OutcomeUnknown, StoreUnavailable
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.1
KNOWN_SECONDS = 10.0


COLLECT_SECONDS = 5.0  # longest wait for garbage collection, which holds the lease of adoptions too
RETRY_SECONDS = 1.0
APPEND_SECONDS = 60.0
SNAPSHOT_SECONDS = 600.0
MOST_PADDING = 2**20


class Adoption:
    """One adoption; ``begin`` creates it."""

    def __init__(self, place: AdoptionContext, name: str, after: Offset, lease: Lease) -> None:
        self.id = name
        self.after = after  # the end of the log when it began; the rebuilt state stands for everything up to here
        self.committed = False  # True: the state may already be adopted
        self._place = place
        self._lease = lease
        self._origin = secrets.token_bytes(8)

    async def adopt(self, index: StateManifest, reason: str, padded: bool = False) -> Offset:
        """Switch all replicas to the state in a state file; return the offset of the switch.

        ``padded`` begins a new node of the stream, so that the nodes before it can be freed completely. After
        OutcomeUnknown the state may or may not be adopted; after any other error it is not. Conflict: another adoption
        came first.
        """
        place = self._place
        # The replicas build standby states from the state file.
        prepare = PrepareEvent(self.id, index.id, str(self.after), index.digest, reason)
        await self._lease.renew(msgspec.json.encode(prepare))
        await self._append(Entry(APPLY_VERSION, self._origin, 1, prepare))
        await self._until_known()
        await self._until_prepared(prepare)
        await state_files.check(place.artifacts, place.keys, index)
        padding = bytes(await _node_bytes(place.store)) if padded else b""
        adopt = AdoptEvent(self.id, index.id, prepare.after, index.digest, reason, padding)
        # Every ready replica reports its standby state by now, or ``prepare_seconds`` have passed.
        await place.commit(f"{state_files.folder(place.keys)}/{index.id}")
        self.committed = True
        deadline = asyncio.get_running_loop().time() + APPEND_SECONDS
        is_sent = False
        while True:
            try:
                at = await self._append(Entry(APPLY_VERSION, self._origin, 2, adopt), f"{self.id}/{index.id}")
                break
            except Conflict as error:
                if is_sent:  # it may have been appended before the other one; the store remembers only the last
                    raise OutcomeUnknown(
                        f"the store became unavailable while the state was adopted, and refused a repetition: {error}"
                    ) from error
                raise
            except StoreUnavailable as error:
                is_sent = True
                if asyncio.get_running_loop().time() > deadline:
                    raise OutcomeUnknown(f"the store became unavailable during the adoption: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)
        log.info("adopted a rebuilt state", model=place.keys.name, index=index.id, offset=str(at), reason=reason)
        return at

    async def _append(self, entry: Entry, adopts: str = "") -> Offset:
        place = self._place
        trim = await stream.trim_of(place.store, place.keys.log)
        with store_errors():
            adoption, at = await place.store.client.hmget(place.keys.key("adopted"), ["adoption", "at"])
        # Replicas would ignore the adoption.
        if at is not None and adoption != adopts.encode() and Offset.of_entry(at)[:2] > self.after[:2]:
            raise Conflict(f"another rebuild of {place.keys.name} came first; start the job again")
        if not await place.artifacts.is_known_to(place.store):  # no replica would find the state file
            raise Conflict("the store has lost the name of the artifact store; start the job again")
        after = START if trim.covers(self.after) else self.after
        fields = {"adoption": adopts} if adopts else {}
        return await self._lease.append(encode(entry), after, "adopted", **fields)

    async def _until_known(self) -> None:
        """Wait, a bounded time, until all replicas report this model, in case it is new."""
        place = self._place
        default = (await read_catalog(place.store)).get(DEFAULT_MODEL)
        if default is None:
            return
        models = (default.keys, place.keys)

        async def is_known() -> bool:
            await place.checkpoint()
            every, own = [
                {one.replica for one in await replica_status.live_replicas(place.store, keys)} for keys in models
            ]
            return every <= own

        await wait_until(is_known, POLL_SECONDS, KNOWN_SECONDS)

    async def _until_prepared(self, prepare: PrepareEvent) -> None:
        place = self._place
        missing: list[str] = []

        async def is_prepared() -> bool:
            nonlocal missing
            await place.checkpoint()
            missing = [
                one.replica
                for one in await replica_status.live_replicas(place.store, place.keys, SILENT_SECONDS)
                if one.ready and one.prepared != prepare.index
            ]
            return not missing

        if not await wait_until(is_prepared, POLL_SECONDS, place.prepare_seconds):
            log.warning("adopting a state before all replicas are prepared", model=place.keys.name, without=missing)


@contextlib.asynccontextmanager
async def begin(
    place: AdoptionContext, name: str, waiting: Callable[[], None] | None = None
) -> AsyncIterator[Adoption]:
    """Begin an adoption. If its job dies, it can begin again under the same name once the lease has expired.

    Without ``waiting``, raise Conflict if another adoption is running. With it, wait until none is, however long that
    takes, and call it repeatedly meanwhile.
    """

    async def between() -> None:
        if waiting is not None:
            waiting()
        await place.checkpoint()

    patience = COLLECT_SECONDS if waiting is None else math.inf
    async with acquire(place.store, place.keys, purpose=ADOPTION, wait_seconds=patience, waiting=between) as lease:
        after = (await stream.tail(place.store, place.keys.log)).last
        # The caller may read history several times.
        async with pins.hold_pin(place.store, place.keys, secrets.token_hex(8), START):
            yield Adoption(place, name, after, lease)


async def find_adoption(place: AdoptionContext, name: str, since: Offset) -> tuple[Offset, Offset] | None:
    """Find an adoption begun after ``since`` in the log.

    Return the offsets of the last event that the adopted state contains, and of the adoption; None if nothing was
    adopted.
    """
    after = None
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    since = since if contents is None else max(since, contents.start)
    async with contextlib.aclosing(
        read_entries(place.store, place.artifacts, place.keys, since, params=place.log)
    ) as reading:
        async for elements in reading:
            for entry_id, fields in elements:
                event = decode_entry(fields).event
                if isinstance(event, PrepareEvent) and event.adoption == name:
                    after = Offset.parse(event.after)
                elif (isinstance(event, AdoptEvent) and event.adoption == name) or event == MarkEvent(mark_token(name)):
                    return after or since, Offset.of_entry(entry_id)
            await place.checkpoint()
    return None


async def snapshot_past(place: AdoptionContext, at: Offset) -> StateManifest:
    """Return the newest snapshot if it is at or past an adoption, else make one.

    Raises Conflict if the adoption was ignored, since another one came first.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SNAPSHOT_SECONDS
    while True:
        manifest = await snapshots.newest(place.store, place.keys)
        if manifest is not None and manifest.position.offset[:2] >= at[:2]:
            if manifest.position.adopted[:2] < at[:2]:
                raise Conflict(f"the adoption at {at} was ignored: another one came first; start the job again")
            return manifest
        try:
            await compact(place.store, place.living, place.snapshots, place.log, artifacts=place.artifacts)
        except Conflict:  # the worker is making a snapshot, which may be past the adoption
            if loop.time() > deadline:
                raise Corrupted(f"no snapshot past the adoption at {at} was made in time; check the worker") from None
            await asyncio.sleep(POLL_SECONDS)


async def _node_bytes(store: Store) -> int:
    with contextlib.suppress(StoreUnavailable), store_errors():
        found = await store.client.config_get("stream-node-max-bytes")
        return min(MOST_PADDING, max(4096, int(found.get("stream-node-max-bytes", 4096))))
    return 4096


@dataclass(frozen=True, kw_only=True)
class AdoptionContext:
    """Stores, model, callbacks and limits of an adoption."""

    store: Store
    artifacts: ArtifactStore  # already joined to the store
    living: CatalogModel
    # Awaited repeatedly until the job is committed. An exception from it ends the work.
    checkpoint: Callable[[], Awaitable[None]] = do_nothing
    # Called with the folder in the artifact store that is written next.
    will_write: Callable[[str], Awaitable[None]] = do_nothing
    # Called right before ``AdoptEvent`` is appended, with the folders that belong to the model from then on. An
    # exception from it ends the work.
    commit: Callable[..., Awaitable[None]] = do_nothing
    # Longest wait for replicas to prepare. Replicas that are not ready by then halt until they are.
    prepare_seconds: float = 300.0
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    history: HistoryParams = field(default_factory=HistoryParams)

    @property
    def keys(self) -> ModelKeys:
        return self.living.keys
