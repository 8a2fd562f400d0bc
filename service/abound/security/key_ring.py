"""The key ring of a replica: all keys in memory, so that a request is authorized without asking the store.

It polls the version of the keys twice a second. A new key is therefore accepted, and a revoked key refused, within
about a second. A replica that is disconnected from the store continues with the keys it knows.

Requests must show a key as soon as one exists, even a revoked one, or if the ring is ``locked``.
"""

from __future__ import annotations

import time
from hmac import compare_digest

import structlog
from limits import RateLimitItem

from abound.security import key_store
from abound.security.key import SCOPES, Key, digest_of, id_of, rate_of
from abound.store.client import Store
from abound.tasks import forever, retry
from abound_core.errors import CannotStart, Forbidden, InvalidKey, StoreUnavailable, Unauthorized

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
NOTE_SECONDS = 5.0
BEARER = b"bearer "


class Grant:
    """The rights of one key, in the form that is cheapest to check. An invalid key raises ValueError."""

    __slots__ = (
        "_digest", "_expires", "_models", "_revoked", "_scopes", "id", "is_limited", "rate", "source_rate", "used",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.id = key.id
        self.used = False  # whether it was, since uses were last stored
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
        """The scopes of the key; ``admin`` with all scopes that it includes."""
        return [scope for scope in SCOPES if scope in self._scopes]

    def is_for(self, model: str | None) -> bool:
        """Return whether the key is valid for this model; None: for all models."""
        return self._models is None or model in self._models

    def check(self, scope: str | None, model: str | None) -> None:
        if scope is not None and scope not in self._scopes:
            raise Forbidden(f"this key does not have the scope {scope}", scope, None)
        if self._models is not None and model not in self._models:
            which = "that is not limited to models" if model is None else f"for the model {model[:64]}"
            raise Forbidden(f"this takes a key {which}", scope, model)


class KeyRing:
    """The keys of one replica. If ``locked``, it requires a key even if none exists, and so refuses every request."""

    def __init__(self, store: Store, locked: bool = False) -> None:
        self.required = locked
        self._locked = locked
        self._store = store
        self._version: bytes | None = None
        self._grants: dict[bytes, Grant] = {}
        self._ahead = float("-inf")  # the store's clock minus this process's monotonic clock

    def find(self, given: bytes | None) -> Grant:
        """Return the grant of the key in ``Authorization``. Raise Unauthorized or InvalidKey if there is none."""
        if given is None:
            raise Unauthorized("a key is needed: send the header Authorization: Bearer <key>")
        if given[:7].lower() != BEARER:
            raise InvalidKey("the header Authorization must be: Bearer <key>")
        text = given[7:].strip()
        # The secret itself as the key of the table would be faster, but secrets must not stay in memory.
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
        """Return the store's clock: the latest value known here, continued by the local clock."""
        return time.monotonic() + self._ahead

    async def load(self) -> None:
        kept = await key_store.read(self._store)
        self._set_clock(kept.now)
        grants: dict[bytes, Grant] = {}
        damaged = kept.damaged
        for key in kept.keys:
            try:
                grants[key.id.encode()] = Grant(key)
            except ValueError:
                damaged += 1
        if damaged:
            log.error("some keys in the store cannot be read and are refused; create them again", number=damaged)
        if kept.version == key_store.CLEARED:
            self.required = self._locked
        elif kept.keys or kept.damaged:
            self.required = True
        # Only ``clear`` opens the service.
        elif self.required and not self._locked:
            log.error("all keys have vanished from the store; requests are refused until a key is created")
        for key_id, grant in grants.items():
            before = self._grants.get(key_id)
            grant.used = before is not None and before.used
        self._grants = grants
        self._version = kept.version

    async def start(self, seconds: float) -> None:
        """Load the keys, retrying for ``seconds``. Raise CannotStart if the store stays unreachable."""
        try:
            await retry(self.load, StoreUnavailable, 0.2, seconds)
        except StoreUnavailable as error:
            raise CannotStart(f"the keys cannot be read: {error}") from error

    async def run(self) -> None:
        self._noted = time.monotonic()
        await forever(self._refresh, POLL_SECONDS, at_once=False)

    async def _refresh(self) -> None:
        version, now = await key_store.version(self._store)
        self._set_clock(now)
        if version != self._version:
            await self.load()
        if time.monotonic() - self._noted >= NOTE_SECONDS:
            self._noted = time.monotonic()
            await self._note()

    async def _note(self) -> None:
        used = [grant for grant in self._grants.values() if grant.used]
        if not used:
            return
        now = self.now()
        for grant in used:
            grant.used = False
        await key_store.note_used(self._store, {grant.id: now for grant in used})

    def _set_clock(self, now: float) -> None:
        # Keys expire in time without the store: its clock is continued here, and never set back.
        self._ahead = max(self._ahead, now - time.monotonic())
