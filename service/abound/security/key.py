"""API keys: their scopes, models, lifetime and rates, and how they are created and hashed.

A key is ``abk_<id>_<secret>``: a public id and 256 random bits. The caller sees it once, when it is created;
the store holds only its SHA-256. Passwords need slow, salted hashes because an attacker can guess them from a
list. None of 2**256 equally likely secrets can be guessed from its hash. A plain hash is therefore as safe,
and costs a microsecond per request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Container
from typing import Annotated, Final, NamedTuple

import msgspec
from limits import RateLimitItem, parse_many
from msgspec import Meta

from abound_core.errors import InvalidInstance
from abound_core.limits import MODEL_NAME

SCOPES: Final = ("classify", "learn", "admin")

MAX_MODELS = 1_000
MAX_DESCRIPTION = 256
MAX_LIFETIME_SECONDS = 100 * 365 * 86_400


ID_CHARACTERS = 12
KEY_LENGTH = 60


MAX_WINDOW_SECONDS = 86_400


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored record of a key. Times are seconds since 1970, by the store's clock.

    ``id`` is public; logs and the audit log show it. ``digest`` is the hex SHA-256 of the whole key. The scope
    ``admin`` includes the others. A key for all models is also for requests that concern no single model.
    """

    id: str
    digest: str
    scopes: tuple[str, ...]
    models: Annotated[tuple[str, ...] | None, Meta(description="The models that the key is for; null: all.")] = None
    description: str = ""
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    rate: Annotated[str | None, Meta(description="Rate limit of instances.")] = None
    source_rate: Annotated[str | None, Meta(description="Rate limit of instances to learn, per source.")] = None
    replaces: Annotated[str | None, Meta(description="The key that it replaces after a rotation.")] = None

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"

    @property
    def end(self) -> float | None:
        """Time of revocation or expiry, whichever is first; None if there is neither."""
        return min((at for at in (self.revoked, self.expires) if at is not None), default=None)


class KeyTerms(NamedTuple):
    """The requested properties of a new key; ``check`` validates them."""

    scopes: Collection[str]
    models: Collection[str] | None = None
    description: str = ""
    seconds: float | None = None
    rate: str | None = None
    source_rate: str | None = None

    def check(self) -> None:
        """Raise InvalidInstance, naming the field, if no such key can exist."""
        if not self.scopes or any(scope not in SCOPES for scope in self.scopes):
            raise InvalidInstance("scopes must be one or more of classify, learn and admin", "scopes")
        if self.models is not None:
            if not 1 <= len(self.models) <= MAX_MODELS:
                raise InvalidInstance(f"models must name 1 to {MAX_MODELS} models", "models")
            for name in self.models:
                if re.fullmatch(MODEL_NAME[1:-1], name) is None:
                    raise InvalidInstance(f"models: {name[:64]!r} is not a valid model name", "models")
        if len(self.description) > MAX_DESCRIPTION or not self.description.isprintable():
            raise InvalidInstance(f"description must be up to {MAX_DESCRIPTION} printable characters", "description")
        if self.seconds is not None and not 1 <= self.seconds <= MAX_LIFETIME_SECONDS:
            raise InvalidInstance(f"seconds must be from 1 to {MAX_LIFETIME_SECONDS}", "seconds")
        for field, rate in (("rate", self.rate), ("source_rate", self.source_rate)):
            if rate is not None:
                try:
                    rate_of(rate)
                except ValueError as error:
                    raise InvalidInstance(f"{field} {error}", field) from None


class CreatedKey(NamedTuple):
    key: Key
    secret: str


class ListedKey(NamedTuple):
    """A key, its current state, and when it was last used (None: never), accurate to a few seconds."""

    key: Key
    state: str
    used: float | None


def create_key(terms: KeyTerms, now: float, taken: Container[str], replaces: str | None = None) -> CreatedKey:
    """Create a key from validated terms; ``taken`` are the ids in use, ``replaces`` is the key that is rotated."""
    while (key_id := secrets.token_hex(ID_CHARACTERS // 2)) in taken:
        pass
    secret = f"abk_{key_id}_{secrets.token_urlsafe(32)}"
    key = Key(
        id=key_id,
        digest=digest_of(secret.encode()).hex(),
        scopes=tuple(scope for scope in SCOPES if scope in terms.scopes),
        models=None if terms.models is None else tuple(sorted(set(terms.models))),
        description=terms.description,
        created=now,
        expires=None if terms.seconds is None else now + terms.seconds,
        rate=terms.rate,
        source_rate=terms.source_rate,
        replaces=replaces,
    )
    return CreatedKey(key, secret)


def digest_of(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def id_of(text: bytes) -> bytes:
    """Return the id within a key; empty if the text does not have the length of a key."""
    return text[4:16] if len(text) == KEY_LENGTH else b""


def rate_of(text: str) -> RateLimitItem:
    """Parse a rate such as ``100/second`` or ``10 per 5 minutes``. Raise ValueError if it is invalid."""
    try:
        [rate] = parse_many(text)
    except ValueError:
        raise ValueError(f"must be a rate like 100/second or 5000/minute, not {text[:40]!r}") from None
    if not (1 <= rate.amount <= 10**9 and 1 <= rate.get_expiry() <= MAX_WINDOW_SECONDS):
        raise ValueError("must allow 1 to 1,000,000,000 instances in a second to a day")
    return rate
