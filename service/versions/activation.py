"""Activation: switch all replicas to another version at one offset, while learning goes on.

 1. Take the model's activation fence. While it is held, no other activation runs and no version is deleted.
 2. Load the version once, to check that it is intact.
 3. Append ``PrepareVersionEvent``; the replicas load the version.
 4. Wait until every ready replica reports that it has loaded the version, or until ``prepare_seconds`` have
    passed. Then append ``ActivateEvent``. The script that appends it also checks the fence and, if requested, the
    active version.

A failure before step 4 leaves the model unchanged; replicas release the version later. A replica that reads
``ActivateEvent`` without having the version stops there and is not ready until it has loaded it
(``service/replica/loaded_versions.py``). It never answers for a later offset with the former version. Switching
back works the same way; the index (``live``) needs no preparation.

Two records in the store:

    ...:activating    JSON of ``FenceRecord``, renewed by its holder; expires soon after the holder dies
    ...:active        hash: version, digest, former, activation, at; changed by the script that appends
                      ``ActivateEvent``

The first is the fence. A replica that starts between ``PrepareVersionEvent`` and ``ActivateEvent`` reads from it which
version to load. The second is for processes that do not follow the log: it names the active version at the
log's end. Neither is part of the replicated state.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec
import structlog

from abound.core.errors import ArtifactsUnavailable, Conflict, NotReady, OutcomeUnknown, StoreUnavailable
from abound.core.model.active_version import LIVE
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.log.events import APPLY_VERSION, ActivateEvent, Entry, PrepareVersionEvent, WeighEvent, encode
from abound.service.model import presence
from abound.service.model.presence import SILENT_SECONDS
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.tasks import cancel_and_wait, do_nothing
from abound.service.versions import repository as versions

POLL_SECONDS = 0.1
RENEW_SECONDS = 5.0
APPEND_SECONDS = 60.0

log = structlog.get_logger(__name__)


class ActivationContext(NamedTuple):
    """Store, model and limits of an activation.

    Attributes
    ----------
    artifacts : ArtifactStore or None
        Joined. None: only the index can be activated.
    prepare_seconds : float
        Longest wait for replicas to load the version. Replicas that have not loaded it by then halt until they have.
    checkpoint : async callable
        Awaited repeatedly until ``ActivateEvent`` is appended. An exception from it ends the activation.
    """

    store: Store
    artifacts: ArtifactStore | None
    keys: ModelKeys
    prepare_seconds: float = 300.0
    checkpoint: Callable[[], Awaitable[None]] = do_nothing


class _Held:
    """Activation fence while it is held.

    Attributes
    ----------
    record : FenceRecord
        The content of the fence.
    lost : Conflict or None
        Set when the fence is lost.
    """

    def __init__(self, store: Store, keys: ModelKeys, holder: str) -> None:
        self.record = FenceRecord(holder)
        self.lost: Conflict | None = None
        self._turn = asyncio.Lock()
        self._store = store
        self._keys = keys

    async def acquire(self) -> None:
        """Acquire the fence. Raises Conflict when another process holds it."""
        if not await acquire(self._store, self._keys, self.record):
            raise Conflict(f"another version of {self._keys.name} is being activated or deleted; try again soon")

    async def renew(self, what: FenceRecord | None = None) -> None:
        """Renew the fence, with a new record if one is given. Raises Conflict when it is lost."""
        async with self._turn:
            what = what or self.record
            if not await renew(self._store, self._keys, self.record, what):
                self.lost = Conflict(f"activating a version of {self._keys.name} took too long; try again")
                raise self.lost
            self.record = what

    async def renew_forever(self) -> None:
        """Renew the fence until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreUnavailable, Conflict):
                await self.renew()


@contextlib.asynccontextmanager
async def fence(store: Store, keys: ModelKeys) -> AsyncIterator[_Held]:
    """Hold the activation fence: meanwhile no other process activates or deletes a version of the model.

    Raises
    ------
    Conflict
        Another process holds it.
    StoreUnavailable
    """
    held = _Held(store, keys, secrets.token_hex(8))
    await held.acquire()
    keeping = asyncio.create_task(held.renew_forever())
    try:
        yield held
    finally:
        await cancel_and_wait(keeping)
        with contextlib.suppress(StoreUnavailable):
            await release(store, keys, held.record)


async def activate(place: ActivationContext, version: str, reason: str, if_active: str | None = None) -> Offset:
    """Switch all replicas to a version at one offset; return that offset. ``live`` is the index.

    If the version is already active, nothing is appended, and the offset of its activation is returned.

    Parameters
    ----------
    if_active : str or None
        Activate only if this version is active.

    Raises
    ------
    UnknownVersion, UnknownApplyVersion, Corrupted
        The version does not exist or cannot be used.
    Conflict
        Another activation is in progress, or another version than ``if_active`` is active.
    NotReady
        There are replicas, and none could load the version in time.
    ArtifactsUnavailable, StoreUnavailable
        Nothing is activated.
    OutcomeUnknown
        The version may or may not be activated.
    """
    store, keys = place.store, place.keys
    async with fence(store, keys) as held:
        before = await read_active(store, keys)
        if if_active not in (None, before.version):
            raise Conflict(f"the active version of {keys.name} is {before.version} and not {if_active}")
        if version == before.version:
            return before.at
        event = ActivateEvent(held.record.holder, version, await _digest_of(place, version), reason)
        origin = secrets.token_bytes(8)
        if version != LIVE:
            prepare = PrepareVersionEvent(event.activation, version, event.digest, reason)
            await held.renew(FenceRecord(held.record.holder, prepare))
            await _append(store, keys, Entry(APPLY_VERSION, origin, 1, prepare))
            await _until_loaded(place, prepare, held)
        packed = encode(Entry(APPLY_VERSION, origin, 2, event))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_SECONDS
        while True:
            try:
                at = await append(store, keys, held.record, event, packed, if_active)
                break
            except StoreUnavailable as error:
                if loop.time() > deadline:
                    raise OutcomeUnknown(
                        f"the store became unavailable during the activation; check which version is active: {error}"
                    ) from error
                await asyncio.sleep(RENEW_SECONDS / 5)
                with contextlib.suppress(StoreUnavailable, Conflict):
                    await held.renew()
    log.info(
        "activated a version", model=keys.name, version=version, former=before.version, offset=str(at), reason=reason
    )
    return at


async def append_weights(store: Store, keys: ModelKeys, version: str, weights: tuple[float, float]) -> Offset:
    """Append new blend weights of the index and a version; return their offset. Raises StoreUnavailable."""
    return await _append(store, keys, Entry(APPLY_VERSION, secrets.token_bytes(8), 1, WeighEvent(version, weights)))


async def _digest_of(place: ActivationContext, version: str) -> str:
    """Load the version to check it, and return its digest; empty for the index."""
    if version == LIVE:
        return ""
    if place.artifacts is None:
        raise ArtifactsUnavailable("activating a version needs an artifact store: set ABOUND_ARTIFACTS_URL")
    await place.artifacts.join(place.store)
    loaded = await versions.load(place.artifacts, place.keys, version)
    return loaded.card.digest


async def _until_loaded(place: ActivationContext, prepare: PrepareVersionEvent, held: _Held) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + place.prepare_seconds
    while True:
        await place.checkpoint()
        if held.lost is not None:
            raise held.lost
        present = await presence.live_replicas(place.store, place.keys, SILENT_SECONDS)
        ready = [one for one in present if one.ready]
        missing = [one.replica for one in ready if prepare.version not in one.versions]
        if not missing:
            return
        if loop.time() > deadline:
            if len(missing) == len(ready):
                raise NotReady(
                    f"no replica could load the version {prepare.version} within {place.prepare_seconds:g} s; see the "
                    "logs of the replicas"
                )
            log.warning("activating a version before all replicas loaded it", model=place.keys.name, without=missing)
            return
        await asyncio.sleep(POLL_SECONDS)


async def _append(store: Store, keys: ModelKeys, entry: Entry) -> Offset:
    payload, checksum = encode(entry)
    with store_errors():
        return Offset.of_entry(await store.client.xadd(keys.log, {"e": payload, "c": checksum}))


FENCE_SECONDS = 15.0

_NOT_EXPECTED = b"-"


class FenceRecord(msgspec.Struct, frozen=True):
    """Content of the fence: its holder, and ``event`` as soon as replicas should load a version."""

    holder: str
    event: PrepareVersionEvent | None = None


class ActiveVersion(NamedTuple):
    """Last activated version and the offset of its activation; ``former`` was active before it."""

    version: str = LIVE
    digest: str = ""
    at: Offset = START
    former: str = LIVE


_decoder = msgspec.json.Decoder(FenceRecord)

_TAKE = """
-- One whose holder died before the store's clock was set back would stay for as much longer (as in lease.py).
if redis.call('EXISTS', KEYS[1]) == 1 then
  if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_SAY = """
local now = redis.call('GET', KEYS[1])
if now ~= ARGV[1] and now ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""

_LET_GO = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

_APPEND = """
if redis.call('HGET', KEYS[3], 'activation') == ARGV[4] then return redis.call('HGET', KEYS[3], 'at') end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local active = redis.call('HGET', KEYS[3], 'version') or 'live'
if ARGV[7] ~= '' and ARGV[7] ~= active then return '-' end
local at = redis.call('XADD', KEYS[2], '*', 'e', ARGV[2], 'c', ARGV[3])
redis.call('HSET', KEYS[3], 'activation', ARGV[4], 'version', ARGV[5], 'digest', ARGV[6], 'at', at, 'former', active)
return at
"""


def _fence_of(keys: ModelKeys) -> bytes:
    return keys.key("activating")


async def prepared_versions(store: Store, models: Iterable[ModelKeys]) -> list[PrepareVersionEvent | None]:
    """Return, for each model, the version that is being activated, or None."""
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(_fence_of(keys))
            return [_parse(text) for text in await pipe.execute()]


def _parse(text: bytes | None) -> PrepareVersionEvent | None:
    try:
        return None if text is None else _decoder.decode(text).event
    except msgspec.MsgspecError:
        return None  # written by another release


async def read_active(store: Store, keys: ModelKeys) -> ActiveVersion:
    """Return the active version at the end of a model's log."""
    with store_errors():
        found = await store.client.hmget(keys.key("active"), ["version", "digest", "at", "former"])
    if found[0] is None:
        return ActiveVersion()
    version, digest, at, former = (text.decode() for text in found)
    return ActiveVersion(version, digest, Offset.of_entry(at), former)


async def acquire(store: Store, keys: ModelKeys, what: FenceRecord) -> bool:
    """Acquire the fence; return False when it is held."""
    with store_errors():
        words = (msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
        return bool(await store.client.eval(_TAKE, 1, _fence_of(keys), *words))


async def renew(store: Store, keys: ModelKeys, before: FenceRecord, what: FenceRecord) -> bool:
    """Renew the fence and replace its record; return False when it is lost. ``before`` is the record last written.

    A lost fence is not acquired again, since another process may have held it meanwhile.
    """
    words = (msgspec.json.encode(before), msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
    with store_errors():
        return bool(await store.client.eval(_SAY, 1, _fence_of(keys), *words))


async def release(store: Store, keys: ModelKeys, what: FenceRecord) -> None:
    """Release the fence, unless another process holds it."""
    with store_errors():
        await store.client.eval(_LET_GO, 1, _fence_of(keys), msgspec.json.encode(what))


async def append(
    store: Store,
    keys: ModelKeys,
    held: FenceRecord,
    event: ActivateEvent,
    packed: tuple[bytes, bytes],
    if_active: str | None,
) -> Offset:
    """Append an activation and return its offset. Retries append it only once.

    Raises Conflict when another process holds the fence, or another version than ``if_active`` is active.
    """
    words = (msgspec.json.encode(held), *packed, event.activation, event.version, event.digest, if_active or "")
    with store_errors():
        at: bytes | None = await store.client.eval(_APPEND, 3, _fence_of(keys), keys.log, keys.key("active"), *words)
    if at is None:
        raise Conflict(
            f"another version of {keys.name} is being activated, or this activation took too long; try again"
        )
    if at == _NOT_EXPECTED:
        raise Conflict(f"the active version of {keys.name} is no longer {if_active}")
    return Offset.of_entry(at)
