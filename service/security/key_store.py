"""The keys that the store keeps: made, rotated, taken back, listed.

All keys are one hash, ``abound:{keys}``, and each change gives ``abound:{keys}:version`` another random value in the
same transaction: replicas look at that and take up what changed. A revoked key stays in the list, so that taking back
the only key does not open the service; ``clear`` does, on purpose. What has ended goes only when another key is made:
after ``ENDED_SECONDS``, or sooner, what ended first, where there would be too many. A failover may lose a change:
whoever makes a key sees that it does not open, whoever takes one back is told unless a copy of the store has that, and
replicas write the end of a key again (``end_again``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
import redis.exceptions

from abound.core.errors import Conflict, InvalidInstance, StoreUnavailable, UnknownKey
from abound.service.security.key import LONGEST, Key, Listed, Made, Terms, make
from abound.service.store.client import Store, reaching
from abound.service.store.replication import is_copied

KEYS_KEY = b"abound:{keys}"
VERSION_KEY = b"abound:{keys}:version"
USED_KEY = b"abound:{keys}:used"

OPEN = b"open"
"""The version when all keys were cleared on purpose."""

MOST_KEYS = 10_000
ENDED_SECONDS = 90 * 86_400

CHANGES_TRIED = 100
"""How often a change is begun that others come before."""

T = TypeVar("T")


class Revoked(NamedTuple):
    """A key that was taken back; ``copied``: one of the store's copies has that too, or none is connected."""

    key: Key
    copied: bool

    def check(self) -> None:
        """StoreUnavailable when a failover could lose it."""
        if not self.copied:
            raise StoreUnavailable(
                f"the key {self.key.id} is revoked, but none of the store's copies has said that it has that, so a "
                "failover to one could lose it; revoke it once more"
            )


class Kept(NamedTuple):
    """Everything that the store has of keys at one moment; ``now``: the store's clock."""

    version: bytes | None
    keys: list[Key]
    damaged: int
    now: float


class Change(NamedTuple, Generic[T]):
    """Keys to write, what comes of it, and ids of keys to take out. Without any to write nothing is done."""

    keys: list[Key]
    outcome: T
    dropped: Sequence[str] = ()


_decoder = msgspec.json.Decoder(Key)


async def create(store: Store, terms: Terms) -> Made:
    """Make a key.

    Raises
    ------
    InvalidInstance
        It cannot be so.
    Conflict
        There are too many that have not ended.
    StoreUnavailable
        It may have been made all the same; nobody knows it then.
    """
    terms.check()
    return await _change(store, lambda kept: _made(kept, terms, None))


async def rotate(store: Store, key_id: str, grace: float) -> Made:
    """Make a key that may do what an other one may, which ends ``grace`` seconds from now.

    A bounded life is as long again, from now. Raises what ``create`` raises; UnknownKey, also when it was revoked.
    """
    if not 0 <= grace <= LONGEST:
        raise InvalidInstance(f"grace must be from 0 to {LONGEST} seconds", "grace")

    def replaced(kept: Kept) -> Change[Made]:
        old = _valid(kept, key_id)
        life = None if old.expires is None else max(1.0, old.expires - old.created)
        terms = Terms(old.scopes, old.models, old.description, life, old.rate, old.source_rate)
        change = _made(kept, terms, old.id)
        end = kept.now + grace
        old = msgspec.structs.replace(old, expires=end if old.expires is None else min(end, old.expires))
        return change._replace(keys=[*change.keys, old])

    return await _change(store, replaced)


async def revoke(store: Store, key_id: str) -> Revoked:
    """Take a key back for good; UnknownKey when there is none, StoreUnavailable (say it again then)."""

    def revoked(kept: Kept) -> Change[Key]:
        key = next((key for key in kept.keys if key.id == key_id), None)
        if key is None:
            raise UnknownKey(f"there is no key {key_id[:64]!r}")
        if key.revoked is None:
            key = msgspec.structs.replace(key, revoked=kept.now)
        return Change([key], key)

    key = await _change(store, revoked)
    return Revoked(key, await is_copied(store, 1))


async def end_again(store: Store, known: Mapping[str, Key], heirs: Sequence[Key]) -> list[str]:
    """Write how keys have ended where the store has lost that, and those of ``heirs`` that rotations made of them.

    Ids of what was written. StoreUnavailable.
    """

    def ended(kept: Kept) -> Change[list[str]]:
        written = [new for old in kept.keys if (new := old.ended_as(known.get(old.id))) is not old]
        there, again = {key.id for key in kept.keys}, {key.id for key in written}
        for heir in heirs:  # in the order of their making: one may be the heir of another
            if heir.replaces in again and heir.id not in there:
                written.append(heir.ended_as(known.get(heir.id)))
                again.add(heir.id)
        return Change(written, [key.id for key in written])

    return await _change(store, ended)


async def clear(store: Store) -> None:
    """Take out all keys: the service asks for none from then on. StoreUnavailable."""
    with reaching():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.delete(KEYS_KEY, USED_KEY)
            pipe.set(VERSION_KEY, OPEN)
            await pipe.execute()


async def listed(store: Store) -> list[Listed]:
    """All keys, oldest first. StoreUnavailable."""
    with reaching():
        used = await store.client.hgetall(USED_KEY)
    kept = await read(store)
    return [
        Listed(key, key.state(kept.now), float(used[key.id.encode()]) if key.id.encode() in used else None)
        for key in sorted(kept.keys, key=lambda key: (key.created, key.id))
    ]


async def read(store: Store) -> Kept:
    """What the store has. StoreUnavailable."""
    with reaching():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.get(VERSION_KEY)
            pipe.hgetall(KEYS_KEY)
            pipe.time()
            return _decoded(*await pipe.execute())


async def version(store: Store) -> tuple[bytes | None, float]:
    """The version of what the store has, and the store's clock. StoreUnavailable."""
    with reaching():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.get(VERSION_KEY)
            pipe.time()
            found, (seconds, microseconds) = await pipe.execute()
    return found, seconds + microseconds / 1e6


async def note_used(store: Store, used: Mapping[str, float]) -> None:
    """Keep when keys were used last. StoreUnavailable."""
    with reaching():
        await store.client.hset(USED_KEY, mapping={key_id: f"{at:.0f}" for key_id, at in used.items()})


def _decoded(found: bytes | None, packed: Mapping[bytes, bytes], time: tuple[int, int]) -> Kept:
    keys, damaged = [], 0
    for value in packed.values():
        try:
            keys.append(_decoder.decode(value))
        except msgspec.DecodeError:
            damaged += 1
    return Kept(found, keys, damaged, time[0] + time[1] / 1e6)


async def _change(store: Store, change: Callable[[Kept], Change[T]]) -> T:
    """Do what ``change`` makes of what is kept, unless another change comes in between: then again, and so on."""
    with reaching():
        async with store.client.pipeline(transaction=True) as pipe:
            for _ in range(CHANGES_TRIED):
                try:
                    await pipe.watch(VERSION_KEY)
                    kept = _decoded(await pipe.get(VERSION_KEY), await pipe.hgetall(KEYS_KEY), await pipe.time())
                    keys, outcome, dropped = change(kept)
                    if not keys:
                        return outcome
                    pipe.multi()
                    pipe.hset(KEYS_KEY, mapping={key.id: msgspec.json.encode(key) for key in keys})
                    if dropped:
                        pipe.hdel(KEYS_KEY, *dropped)
                        pipe.hdel(USED_KEY, *dropped)
                    pipe.set(VERSION_KEY, secrets.token_hex(16))
                    await pipe.execute()
                    return outcome
                except redis.exceptions.WatchError:
                    continue
    raise StoreUnavailable("keys are being changed all the time; try again")


def _made(kept: Kept, terms: Terms, replaces: str | None) -> Change[Made]:
    dropped = _dropped(kept, replaces)
    if len(kept.keys) - len(dropped) >= MOST_KEYS:
        raise Conflict(f"there are {len(kept.keys)} keys already that have not ended; revoke some")
    made = make(terms, kept.now, {key.id for key in kept.keys}, replaces)
    return Change([made.key], made, dropped)


def _dropped(kept: Kept, but: str | None) -> list[str]:
    """Ids of the keys that go when one is made, without that of ``but``, which it replaces."""
    ended = sorted((key.end, key.id) for key in kept.keys if key.end is not None and key.end <= kept.now)
    n_over = len(kept.keys) + 1 - MOST_KEYS
    old = [(end, key_id) for end, key_id in ended if key_id != but]
    return [key_id for i, (end, key_id) in enumerate(old) if i < n_over or end < kept.now - ENDED_SECONDS]


def _valid(kept: Kept, key_id: str) -> Key:
    key = next((key for key in kept.keys if key.id == key_id), None)
    if key is None:
        raise UnknownKey(f"there is no key {key_id[:64]!r}")
    if key.revoked is not None:
        raise UnknownKey(f"the key {key_id} was revoked")
    return key
