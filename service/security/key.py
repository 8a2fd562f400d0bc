"""A key: who may do what.

A key is 256 random bits beside a public id: ``abk_<id>_<secret>``. It is shown once, when it is made; the store has
its SHA-256 and nothing else of it. A slow, salted hash is for passwords, which can be guessed from a list: of 2**256
equally likely secrets none can be guessed from its hash, so a plain hash is as safe and costs a microsecond a request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Container
from typing import Final, NamedTuple

import msgspec
from limits import RateLimitItem, parse

from abound.core.errors import InvalidInstance
from abound.core.limits import MODEL_NAME

SCOPES: Final = ("classify", "learn", "admin")

MOST_MODELS = 1_000
MOST_DESCRIPTION = 256
LONGEST = 100 * 365 * 86_400


ID_CHARACTERS = 12
LENGTH = 60


LONGEST_WINDOW = 86_400


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a key.

    Attributes
    ----------
    id : str
        Public; what logs and the audit log name.
    digest : str
        Hex SHA-256 of the whole key.
    scopes : tuple of ``classify`` | ``learn`` | ``admin``
        ``admin`` includes the other two.
    models : tuple of str or None
        The models that it is for; None: all of them, and what is about no one model.
    created, expires, revoked : float or None
        Seconds since 1970, of the store's clock.
    rate, source_rate : str or None
        Instances by this key, and by one ``source`` under it: ``100/second``.
    replaces : str or None
        Id of the key that it was rotated from.
    """

    id: str
    digest: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None = None
    description: str = ""
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    rate: str | None = None
    source_rate: str | None = None
    replaces: str | None = None

    def state(self, now: float) -> str:
        """``valid``, ``expired`` or ``revoked`` at ``now``, seconds of the store's clock."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"

    @property
    def end(self) -> float | None:
        """When it was revoked or ends; None: neither."""
        return _first(self.revoked, self.expires)

    def ended_as(self, known: Key | None) -> Key:
        """The key, with the end that it was ``known`` to have where that comes first; itself where it does not."""
        if known is None:
            return self
        revoked, expires = _first(self.revoked, known.revoked), _first(self.expires, known.expires)
        if (revoked, expires) == (self.revoked, self.expires):
            return self
        return msgspec.structs.replace(self, revoked=revoked, expires=expires)


class Terms(NamedTuple):
    """What a new key is to be; ``check`` says whether it can be."""

    scopes: Collection[str]
    models: Collection[str] | None = None
    description: str = ""
    seconds: float | None = None
    rate: str | None = None
    source_rate: str | None = None

    def check(self) -> None:
        """InvalidInstance, with the field, when a key cannot be so."""
        if not self.scopes or any(scope not in SCOPES for scope in self.scopes):
            raise InvalidInstance("scopes must be one or more of classify, learn and admin", "scopes")
        if self.models is not None:
            if not 1 <= len(self.models) <= MOST_MODELS:
                raise InvalidInstance(f"models must name 1 to {MOST_MODELS} models", "models")
            for name in self.models:
                if re.fullmatch(MODEL_NAME[1:-1], name) is None:
                    raise InvalidInstance(f"models: {name[:64]!r} is no name of a model", "models")
        if len(self.description) > MOST_DESCRIPTION or not self.description.isprintable():
            raise InvalidInstance(f"description must be up to {MOST_DESCRIPTION} printable characters", "description")
        if self.seconds is not None and not 1 <= self.seconds <= LONGEST:
            raise InvalidInstance(f"seconds must be from 1 to {LONGEST}", "seconds")
        for field, rate in (("rate", self.rate), ("source_rate", self.source_rate)):
            if rate is not None:
                try:
                    rate_of(rate)
                except ValueError as error:
                    raise InvalidInstance(f"{field} {error}", field) from None


class Made(NamedTuple):
    """A key that was just made, and the one time that it is shown."""

    key: Key
    secret: str


class Listed(NamedTuple):
    """A key, its state now, and when it was used last (None: never), to some seconds."""

    key: Key
    state: str
    used: float | None


def make(terms: Terms, now: float, taken: Container[str], replaces: str | None = None) -> Made:
    """A new key.

    Parameters
    ----------
    terms : Terms
        Checked.
    now : float
        Seconds since 1970, of the store's clock.
    taken : container of str
        Ids that it must not have.
    replaces : str, optional
        Id of the key that it is rotated from.
    """
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
    return Made(key, secret)


def digest_of(text: bytes) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(text).digest()


def id_of(text: bytes) -> bytes:
    """The id that a key names; empty when it does not have the length of a key."""
    return text[4:16] if len(text) == LENGTH else b""


def _first(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


def rate_of(text: str) -> RateLimitItem:
    """A rate like ``100/second`` or ``10 per 5 minutes``; ValueError when it is none."""
    try:
        rate = parse(text)
    except ValueError:
        raise ValueError(f"must be a rate like 100/second or 5000/minute, not {text[:40]!r}") from None
    if not (1 <= rate.amount <= 10**9 and 1 <= rate.get_expiry() <= LONGEST_WINDOW):
        raise ValueError("must allow 1 to 1,000,000,000 instances in a second to a day")
    return rate
