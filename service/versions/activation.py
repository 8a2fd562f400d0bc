"""Activation: all replicas answer with another version from one offset on, while learning goes on.

 1. the fence of the model is taken (``service/versions/activation.py``): nobody else activates, and no version is
 deleted meanwhile
 2. the version is loaded once, to see that it is whole
 3. ``PrepareVersion`` is appended, and replicas load it
 4. when every replica that is ready has said that it has it, or after a bound, ``Activate`` is appended in one script
    with the check of the fence, and of what is active until then where that matters

Whatever fails before step 4 leaves the model as it was, and replicas let go of the version in their own time. A replica
that meets ``Activate`` without the version stops there, unready, until it has it
(``service/replica/loaded_versions.py``): it answers nothing from past that offset with the version before. The way back
is the same; the index (``live``) needs no preparation.

What stands in the store about activations of a model: who is at it, and what was activated last.

    ...:activating    JSON of ``Activating``, renewed by who does it; gone soon after that one is
    ...:active        hash: version, digest, former, activation, at; changed in the one script that appends ``Activate``

The first is the fence: one activation a model at a time, and no version is deleted meanwhile. From it a replica
that starts between ``PrepareVersion`` and ``Activate`` learns what to load. The second tells those who follow no log
what is active at its end. Neither is part of the replicated state.
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
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.log.events import APPLY_VERSION, Activate, Entry, PrepareVersion, Weigh, encode
from abound.service.model import presence
from abound.service.model.presence import SILENT_SECONDS
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.tasks import end
from abound.service.versions import repository as versions

POLL_SECONDS = 0.1
RENEW_SECONDS = 5.0
APPEND_SECONDS = 60.0

log = structlog.get_logger(__name__)

__all__ = ["Active", "Place", "activate", "active", "fence", "weigh"]


async def _nothing() -> None:
    """Nobody has to be told."""


class Place(NamedTuple):
    """Where a version is activated.

    Attributes
    ----------
    artifacts : Artifacts or None
        Joined. None: only the index can be activated.
    prepare_seconds : float
        Longest wait for replicas to load the version; those that have not by then halt until they have.
    between : async callable
        Awaited now and then; what it raises ends the work, until it is appended.
    """

    store: Store
    artifacts: Artifacts | None
    keys: ModelKeys
    prepare_seconds: float = 300.0
    between: Callable[[], Awaitable[None]] = _nothing


class _Held:
    """The fence, as long as it is held.

    Attributes
    ----------
    what : Activating
        What is said by it.
    lost : Conflict or None
        It is not held any more.
    """

    def __init__(self, store: Store, keys: ModelKeys, holder: str) -> None:
        self.what = Activating(holder)
        self.lost: Conflict | None = None
        self._turn = asyncio.Lock()
        self._store = store
        self._keys = keys

    async def take(self) -> None:
        """Take it; Conflict when another one has it."""
        if not await take(self._store, self._keys, self.what):
            raise Conflict(f"a version of {self._keys.name} is being activated or deleted; try again soon")

    async def say(self, what: Activating | None = None) -> None:
        """Say more by it, or the same again; Conflict when it is lost."""
        async with self._turn:
            what = what or self.what
            if not await say(self._store, self._keys, self.what, what):
                self.lost = Conflict(f"activating a version of {self._keys.name} took too long; try again")
                raise self.lost
            self.what = what

    async def keep(self) -> None:
        """Renew it, for ever."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StoreUnavailable, Conflict):
                await self.say()


@contextlib.asynccontextmanager
async def fence(store: Store, keys: ModelKeys) -> AsyncIterator[_Held]:
    """As long as this lasts, nobody else activates or deletes a version of the model.

    Raises
    ------
    Conflict
        Somebody does.
    StoreUnavailable
    """
    held = _Held(store, keys, secrets.token_hex(8))
    await held.take()
    keeping = asyncio.create_task(held.keep())
    try:
        yield held
    finally:
        await end(keeping)
        with contextlib.suppress(StoreUnavailable):
            await let_go(store, keys, held.what)


async def activate(place: Place, version: str, reason: str, if_active: str | None = None) -> Offset:
    """Let a version answer from one offset on, on all replicas; that offset. ``live`` is the index.

    What is active already stays so, and the offset is the one since when it is.

    Parameters
    ----------
    if_active : str or None
        Only while this one is active.

    Raises
    ------
    UnknownVersion, UnknownApplyVersion, Damaged
        There is no such version, or it cannot be used.
    Conflict
        Another activation is under way, or another version than ``if_active`` is active.
    NotReady
        Replicas are there and none could load it in time.
    ArtifactsUnavailable, StoreUnavailable
        Nothing is activated.
    OutcomeUnknown
        It may or may not be.
    """
    store, keys = place.store, place.keys
    async with fence(store, keys) as held:
        before = await active(store, keys)
        if if_active not in (None, before.version):
            raise Conflict(f"the active version of {keys.name} is {before.version} and not {if_active}")
        if version == before.version:
            return before.at
        event = Activate(held.what.holder, version, await _digest_of(place, version), reason)
        origin = secrets.token_bytes(8)
        if version != LIVE:
            prepare = PrepareVersion(event.activation, version, event.digest, reason)
            await held.say(Activating(held.what.holder, prepare))
            await _append(store, keys, Entry(APPLY_VERSION, origin, 1, prepare))
            await _until_loaded(place, prepare, held)
        packed = encode(Entry(APPLY_VERSION, origin, 2, event))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_SECONDS
        while True:
            try:
                at = await append(store, keys, held.what, event, packed, if_active)
                break
            except StoreUnavailable as error:
                if loop.time() > deadline:
                    raise OutcomeUnknown(f"the store went away when the version was activated: {error}") from error
                await asyncio.sleep(RENEW_SECONDS / 5)
                with contextlib.suppress(StoreUnavailable, Conflict):
                    await held.say()
    log.info(
        "activated a version", model=keys.name, version=version, former=before.version, offset=str(at), reason=reason
    )
    return at


async def weigh(store: Store, keys: ModelKeys, version: str, weights: tuple[float, float]) -> Offset:
    """Let the index and a version be blended by these weights from one offset on; that offset. StoreUnavailable."""
    return await _append(store, keys, Entry(APPLY_VERSION, secrets.token_bytes(8), 1, Weigh(version, weights)))


async def _digest_of(place: Place, version: str) -> str:
    """The digest of a version that is whole; none of the index."""
    if version == LIVE:
        return ""
    if place.artifacts is None:
        raise ArtifactsUnavailable("no version can be activated without an artifact store: set ABOUND_ARTIFACTS_URL")
    await place.artifacts.join(place.store)
    loaded = await versions.load(place.artifacts, place.keys, version)
    return loaded.card.digest


async def _until_loaded(place: Place, prepare: PrepareVersion, held: _Held) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + place.prepare_seconds
    while True:
        await place.between()
        if held.lost is not None:
            raise held.lost
        present = await presence.present(place.store, place.keys, SILENT_SECONDS)
        ready = [one for one in present if one.ready]
        missing = [one.replica for one in ready if prepare.version not in one.versions]
        if not missing:
            return
        if loop.time() > deadline:
            if len(missing) == len(ready):
                raise NotReady(
                    f"no replica could load the version {prepare.version} within {place.prepare_seconds:g} s; the log "
                    "lines of the replicas say why"
                )
            log.warning("activating a version before all replicas have it", model=place.keys.name, without=missing)
            return
        await asyncio.sleep(POLL_SECONDS)


async def _append(store: Store, keys: ModelKeys, entry: Entry) -> Offset:
    payload, checksum = encode(entry)
    with reaching():
        return Offset.of_entry(await store.client.xadd(keys.log, {"e": payload, "c": checksum}))


FENCE_SECONDS = 15.0

_NOT_EXPECTED = b"-"


class Activating(msgspec.Struct, frozen=True):
    """Who has the fence; ``event`` as soon as a version is to be loaded."""

    holder: str
    event: PrepareVersion | None = None


class Active(NamedTuple):
    """What was activated last, and where; ``former`` is what was active before."""

    version: str = LIVE
    digest: str = ""
    at: Offset = START
    former: str = LIVE


_decoder = msgspec.json.Decoder(Activating)

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
    return keys.of("activating")


async def under_way(store: Store, models: Iterable[ModelKeys]) -> list[PrepareVersion | None]:
    """The version that is about to be activated, for each model."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            for keys in models:
                pipe.get(_fence_of(keys))
            return [_parse(text) for text in await pipe.execute()]


def _parse(text: bytes | None) -> PrepareVersion | None:
    try:
        return None if text is None else _decoder.decode(text).event
    except msgspec.MsgspecError:
        return None  # of another release


async def active(store: Store, keys: ModelKeys) -> Active:
    """What is active at the end of a model's log."""
    with reaching():
        found = await store.client.hmget(keys.of("active"), ["version", "digest", "at", "former"])
    if found[0] is None:
        return Active()
    version, digest, at, former = (text.decode() for text in found)
    return Active(version, digest, Offset.of_entry(at), former)


async def take(store: Store, keys: ModelKeys, what: Activating) -> bool:
    """Take the fence; False when it is taken."""
    with reaching():
        words = (msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
        return bool(await store.client.eval(_TAKE, 1, _fence_of(keys), *words))


async def say(store: Store, keys: ModelKeys, before: Activating, what: Activating) -> bool:
    """Renew the fence or say more by it; False when it is lost. ``before``: what it said last.

    One that was lost is not taken again: somebody else may have had it meanwhile.
    """
    words = (msgspec.json.encode(before), msgspec.json.encode(what), int(FENCE_SECONDS * 1000))
    with reaching():
        return bool(await store.client.eval(_SAY, 1, _fence_of(keys), *words))


async def let_go(store: Store, keys: ModelKeys, what: Activating) -> None:
    """Give the fence back, unless another one has it."""
    with reaching():
        await store.client.eval(_LET_GO, 1, _fence_of(keys), msgspec.json.encode(what))


async def append(
    store: Store, keys: ModelKeys, held: Activating, event: Activate, packed: tuple[bytes, bytes], if_active: str | None
) -> Offset:
    """Append an activation, once however often it is tried; where.

    Conflict when the fence is another's by now, or what is active is not ``if_active``.
    """
    words = (msgspec.json.encode(held), *packed, event.activation, event.version, event.digest, if_active or "")
    with reaching():
        at: bytes | None = await store.client.eval(_APPEND, 3, _fence_of(keys), keys.log, keys.of("active"), *words)
    if at is None:
        raise Conflict(f"another version of {keys.name} is being activated, or this took too long")
    if at == _NOT_EXPECTED:
        raise Conflict(f"the active version of {keys.name} is not {if_active} any more")
    return Offset.of_entry(at)
