"""The key ring of a replica: the keys of the store in memory, so that a request is let in without asking anybody.

    **load**   everything, before the first request is answered
    **keep**   twice a second, whether there is another version of it; then everything again

So a new key opens, and a revoked one no longer does, within about a second. Cut off from the store a replica goes on
with what it knows; lives still end in time, by a clock that was set by the store's, runs on by itself and never goes
back. A key that was seen to have an end has it for good: where the store has lost that in a failover, it is written
there again.

Whether keys are asked for at all: as soon as there is one, revoked ones counted, or where ``locked``. A ring that has
asked for keys goes on asking if they vanish from the store, unless they were cleared on purpose.
"""

from __future__ import annotations

import asyncio
import time
from hmac import compare_digest

import structlog
from limits import RateLimitItem

from abound.core.errors import CannotStart, Forbidden, InvalidKey, StoreUnavailable, Unauthorized
from abound.service.security import key_store
from abound.service.security.key import SCOPES, Key, digest_of, id_of, rate_of
from abound.service.store.client import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
NOTE_SECONDS = 5.0
BEARER = b"bearer "


class Grant:
    """What one key may do; the form of a key that costs least to ask. ValueError when the key cannot be so.

    Attributes
    ----------
    id : str
    rate, source_rate : RateLimitItem or None
        Its own.
    is_limited : bool
        Whether it has one of them.
    used : bool
        It was shown since that was noted last.
    """

    __slots__ = (
        "_digest", "_expires", "_models", "_revoked", "_scopes", "id", "is_limited", "rate", "source_rate", "used",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.id = key.id
        self.used = False
        self.rate: RateLimitItem | None = None if key.rate is None else rate_of(key.rate)
        self.source_rate: RateLimitItem | None = None if key.source_rate is None else rate_of(key.source_rate)
        self.is_limited = self.rate is not None or self.source_rate is not None
        self._digest = bytes.fromhex(key.digest)
        self._scopes = frozenset(SCOPES if "admin" in key.scopes else key.scopes)
        self._models = None if key.models is None else frozenset(key.models)
        self._expires = key.expires
        self._revoked = key.revoked is not None

    @property
    def scopes(self) -> list[str]:
        """What it may do; ``admin`` with all that it includes."""
        return [scope for scope in SCOPES if scope in self._scopes]

    def is_for(self, model: str | None) -> bool:
        """Whether it is for this model; None: for all models."""
        return self._models is None or model in self._models

    def check(self, scope: str | None, model: str | None) -> None:
        """Forbidden unless it has the scope (None: any) and is for the model (None: for all)."""
        if scope is not None and scope not in self._scopes:
            raise Forbidden(f"this key does not have the scope {scope}", scope, None)
        if self._models is not None and model not in self._models:
            which = "that is not limited to models" if model is None else f"for the model {model[:64]}"
            raise Forbidden(f"this takes a key {which}", scope, model)


class KeyRing:
    """The keys of one replica.

    Parameters
    ----------
    locked : bool
        Ask for a key even when there is none, so that nobody gets in.

    Attributes
    ----------
    required : bool
        Whether requests must show a key.
    """

    def __init__(self, store: Store, locked: bool = False) -> None:
        self.required = locked
        self._locked = locked
        self._store = store
        self._version: bytes | None = None
        self._grants: dict[bytes, Grant] = {}
        self._ended: dict[str, Key] = {}  # those with an end
        self._heirs: list[Key] = []  # those that were made by a rotation
        self._ahead = float("-inf")  # of this process's monotonic clock: the store's clock

    def find(self, given: bytes | None) -> Grant:
        """The grant of the key in a header ``Authorization``; Unauthorized or InvalidKey when it opens nothing.

        The id says which key it must be; the digests are compared in constant time. Costs a microsecond or two, most
        of it for the digest: keys are not kept by what came, so that they are not in memory.
        """
        if given is None:
            raise Unauthorized("a key is needed: Authorization: Bearer <key>")
        if given[:7].lower() != BEARER:
            raise InvalidKey("the header Authorization must be: Bearer <key>")
        text = given[7:].strip()
        grant = self._grants.get(id_of(text))
        if grant is None or not compare_digest(grant._digest, digest_of(text)):
            raise InvalidKey("there is no such key")
        if grant._revoked:
            raise InvalidKey(f"the key {grant.id} was revoked")
        if grant._expires is not None and grant._expires <= self.now():
            raise InvalidKey(f"the key {grant.id} has expired")
        grant.used = True
        return grant

    def now(self) -> float:
        """The store's clock, the furthest that is known here."""
        return time.monotonic() + self._ahead

    async def load(self) -> None:
        """Take up all keys, and write again how they have ended where the store has lost that. StoreUnavailable.

        A key in whose place a rotation had put another one is not ended again without that one: nothing would open.
        """
        kept = await key_store.read(self._store)
        self._set_clock(kept.now)
        if kept.version == key_store.OPEN:
            self._ended.clear()
        grants: dict[bytes, Grant] = {}
        damaged, lost = kept.damaged, False
        for stored in kept.keys:
            key = stored.ended_as(self._ended.get(stored.id))
            lost = lost or key is not stored
            if key.end is not None:
                self._ended[key.id] = key
            try:
                grants[key.id.encode()] = Grant(key)
            except ValueError:
                damaged += 1
        if damaged:
            log.error("keys in the store cannot be read and open nothing", number=damaged)
        if kept.version == key_store.OPEN:
            self.required = self._locked
        elif kept.keys or kept.damaged:
            self.required = True
        elif self.required and not self._locked:
            log.error("the keys have gone from the store; all requests are refused until there is one again")
        for key_id, grant in grants.items():
            before = self._grants.get(key_id)
            grant.used = before is not None and before.used
        self._grants = grants
        old = kept.now - key_store.ENDED_SECONDS  # may be gone from the store, and need not be known any more
        self._ended = {
            name: key for name, key in self._ended.items() if name.encode() in grants or (key.end or 0.0) > old
        }
        if lost:
            changed = await key_store.end_again(self._store, self._ended, self._heirs)
            log.warning("the store had lost how keys have ended; that is written again", keys=changed)
        self._heirs = sorted((key for key in kept.keys if key.replaces is not None), key=lambda key: key.created)
        self._version = kept.version

    async def start(self, seconds: float) -> None:
        """``load``, trying so long; CannotStart when the store stays away."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self.load()
                return
            except StoreUnavailable as error:
                if time.monotonic() > deadline:
                    raise CannotStart(f"the keys cannot be read: {error}") from error
            await asyncio.sleep(0.2)

    async def keep(self) -> None:
        """Take up what changes, and note which keys are used, for ever."""
        noted = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                version, now = await key_store.version(self._store)
                self._set_clock(now)
                if version != self._version:
                    await self.load()
                if time.monotonic() - noted >= NOTE_SECONDS:
                    noted = time.monotonic()
                    await self._note()
            except StoreUnavailable:
                continue

    async def _note(self) -> None:
        used = [grant for grant in self._grants.values() if grant.used]
        if not used:
            return
        now = self.now()
        for grant in used:
            grant.used = False
        await key_store.note_used(self._store, {grant.id: now for grant in used})

    def _set_clock(self, now: float) -> None:
        self._ahead = max(self._ahead, now - time.monotonic())
