"""API keys in the store: create, rotate, revoke, list.

All keys are in one hash, ``abound:{keys}``. Each change sets ``abound:{keys}:version`` to a new random value
in the same transaction. Replicas poll this version and reload the keys when it changes.

A revoked key stays in the list, so that revoking the only key does not open the service. Only ``clear``
opens it. An ended key is removed only when another key is created: after ``ENDED_SECONDS``, or sooner,
oldest end first, if there would be too many keys.

A failover may lose a change that no copy of the store has received. After it creates, rotates or revokes a
key, a caller therefore awaits ``check_copied``. If that raises, the caller can repeat the change safely.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import msgspec
import redis.exceptions

from abound.security.key import MAX_LIFETIME_SECONDS, CreatedKey, Key, KeyTerms, ListedKey, create_key
from abound.store.client import Store, store_errors
from abound.store.replication import is_replicated
from abound_core.errors import Conflict, InvalidInstance, StoreUnavailable, UnknownKey

KEYS_KEY = b"abound:{keys}"
VERSION_KEY = b"abound:{keys}:version"
USED_KEY = b"abound:{keys}:used"

CLEARED = b"open"  # the version after all keys were cleared on purpose
MOST_KEYS = 10_000
ENDED_SECONDS = 90 * 86_400

MAX_ATTEMPTS = 100  # at one change, when others interfere
T = TypeVar("T")


class StoredKeys(NamedTuple):
    """All keys in the store at one moment; ``now`` is the store's clock."""

    version: bytes | None
    keys: list[Key]
    damaged: int
    now: float


class KeyChange(NamedTuple, Generic[T]):
    keys: list[Key]
    outcome: T
    dropped: Sequence[str] = ()


_decoder = msgspec.json.Decoder(Key)


async def create(store: Store, terms: KeyTerms) -> CreatedKey:
    """Create a key. Conflict: too many have not ended. After StoreUnavailable it may exist; its secret is then lost."""
    terms.check()
    return await _change(store, lambda kept: _creation(kept, terms, None))


async def rotate(store: Store, key_id: str, grace: float) -> CreatedKey:
    """Create a key with the same rights as another key, which ends ``grace`` seconds from now.

    A limited lifetime starts again, with the same length. A repeated rotation creates another key with the same
    rights and lifetime. Raise what ``create`` raises, and UnknownKey if the other key does not exist or was revoked.
    """
    if not 0 <= grace <= MAX_LIFETIME_SECONDS:
        raise InvalidInstance(f"grace must be from 0 to {MAX_LIFETIME_SECONDS} seconds", "grace")

    def replaced(kept: StoredKeys) -> KeyChange[CreatedKey]:
        old = _valid(kept, key_id)
        last = old  # a rotation shortens the lifetime of the old key; the key that replaced it has it in full
        while heirs := [key for key in kept.keys if key.replaces == last.id]:
            last = max(heirs, key=lambda key: key.created)
        life = None if last.expires is None else max(1.0, last.expires - last.created)
        terms = KeyTerms(old.scopes, old.models, old.description, life, old.rate, old.source_rate)
        change = _creation(kept, terms, old.id)
        end = kept.now + grace
        old = msgspec.structs.replace(old, expires=end if old.expires is None else min(end, old.expires))
        return change._replace(keys=[*change.keys, old])

    return await _change(store, replaced)


async def revoke(store: Store, key_id: str) -> Key:
    """Revoke a key permanently. Raise UnknownKey if there is none, and StoreUnavailable (then revoke it again)."""

    def revoked(kept: StoredKeys) -> KeyChange[Key]:
        key = next((key for key in kept.keys if key.id == key_id), None)
        if key is None:
            raise UnknownKey(f"there is no key {key_id[:64]!r}")
        if key.revoked is None:
            key = msgspec.structs.replace(key, revoked=kept.now)
        return KeyChange([key], key)

    return await _change(store, revoked)


async def check_copied(store: Store, key: Key, change: str) -> None:
    """Raise StoreUnavailable if a failover could lose ``key`` as it was just written."""
    # A copy of the store confirms the write, unless none is connected. Then the key is read again: the confirmation may
    # come from a server that has just taken over without the write.
    copied = False
    with suppress(StoreUnavailable):
        copied = await is_replicated(store, 1) and key in (await read(store)).keys
    if not copied:
        raise StoreUnavailable(
            f"{change}, but no copy of the store has confirmed it in time, so a failover could undo it; repeat it"
        )


async def clear(store: Store) -> None:
    """Delete all keys: the service then requires none. Raise StoreUnavailable."""
    with store_errors():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.delete(KEYS_KEY, USED_KEY)
            pipe.set(VERSION_KEY, CLEARED)
            await pipe.execute()


async def all_keys(store: Store) -> list[ListedKey]:
    """Return all keys, oldest first. Raise StoreUnavailable."""
    with store_errors():
        used = await store.client.hgetall(USED_KEY)
    kept = await read(store)
    return [
        ListedKey(key, key.state(kept.now), float(used[key.id.encode()]) if key.id.encode() in used else None)
        for key in sorted(kept.keys, key=lambda key: (key.created, key.id))
    ]


async def read(store: Store) -> StoredKeys:
    with store_errors():
        async with store.client.pipeline(transaction=True) as pipe:
            pipe.get(VERSION_KEY)
            pipe.hgetall(KEYS_KEY)
            pipe.time()
            return _decoded(*await pipe.execute())


async def version(store: Store) -> tuple[bytes | None, float]:
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.get(VERSION_KEY)
            pipe.time()
            found, (seconds, microseconds) = await pipe.execute()
    return found, seconds + microseconds / 1e6


async def note_used(store: Store, used: Mapping[str, float]) -> None:
    with store_errors():
        await store.client.hset(USED_KEY, mapping={key_id: f"{at:.0f}" for key_id, at in used.items()})


def _decoded(found: bytes | None, packed: Mapping[bytes, bytes], time: tuple[int, int]) -> StoredKeys:
    keys, damaged = [], 0
    for value in packed.values():
        try:
            keys.append(_decoder.decode(value))
        except msgspec.DecodeError:
            damaged += 1
    return StoredKeys(found, keys, damaged, time[0] + time[1] / 1e6)


async def _change(store: Store, change: Callable[[StoredKeys], KeyChange[T]]) -> T:
    """Apply ``change`` to the stored keys in a transaction. Retry if another change interferes."""
    with store_errors():
        async with store.client.pipeline(transaction=True) as pipe:
            for _ in range(MAX_ATTEMPTS):
                try:
                    await pipe.watch(VERSION_KEY)
                    kept = _decoded(await pipe.get(VERSION_KEY), await pipe.hgetall(KEYS_KEY), await pipe.time())
                    keys, outcome, dropped = change(kept)
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
    raise StoreUnavailable("other changes of keys interfered too often; try again")


def _creation(kept: StoredKeys, terms: KeyTerms, replaces: str | None) -> KeyChange[CreatedKey]:
    dropped = _dropped(kept, replaces)
    if len(kept.keys) - len(dropped) >= MOST_KEYS:
        raise Conflict(f"there are {len(kept.keys)} keys already that have not ended; revoke some and try again")
    made = create_key(terms, kept.now, {key.id for key in kept.keys}, replaces)
    return KeyChange([made.key], made, dropped)


def _dropped(kept: StoredKeys, but: str | None) -> list[str]:
    """Return the ids of the keys to delete when one is created; never that of ``but``, the key that it replaces."""
    ended = sorted((key.end, key.id) for key in kept.keys if key.end is not None and key.end <= kept.now)
    n_over = len(kept.keys) + 1 - MOST_KEYS
    old = [(end, key_id) for end, key_id in ended if key_id != but]
    return [key_id for i, (end, key_id) in enumerate(old) if i < n_over or end < kept.now - ENDED_SECONDS]


def _valid(kept: StoredKeys, key_id: str) -> Key:
    key = next((key for key in kept.keys if key.id == key_id), None)
    if key is None:
        raise UnknownKey(f"there is no key {key_id[:64]!r}")
    if key.revoked is not None:
        raise UnknownKey(f"the key {key_id} was revoked")
    return key
