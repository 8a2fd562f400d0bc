"""Changes of keys: confirmed by a copy of the store, and repeated."""

import asyncio
from contextlib import nullcontext, suppress
from unittest.mock import AsyncMock

import msgspec
import pytest

from abound.security import key_store
from abound.security.key import Key, KeyTerms
from abound.security.key_ring import KeyRing
from abound.store.client import Store
from abound_core.errors import Conflict, InvalidKey, StoreUnavailable
from tests.support.valkey import PATIENT, Server


async def until_copied(store: Store, key: Key) -> None:
    """Wait until a copy confirms a key; it may stand still for longer than one check waits."""
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreUnavailable):
                return await key_store.check_copied(store, key, "the key is changed")


async def test_a_change_that_no_copy_of_the_store_confirms_is_an_error(servers: tuple[Server, Server]) -> None:
    primary, copy = servers
    store = Store(primary.url, PATIENT)
    made = await key_store.create(store, KeyTerms(["learn"]))
    await until_copied(store, made.key)
    copy.pause()
    revoked = await key_store.revoke(store, made.key.id)
    with pytest.raises(StoreUnavailable, match="the key is revoked, but no copy of the store has confirmed it"):
        await key_store.check_copied(store, revoked, "the key is revoked")
    copy.resume()
    assert await key_store.revoke(store, made.key.id) == revoked
    await until_copied(store, revoked)
    await store.close()


async def test_a_server_that_took_over_without_the_change_does_not_confirm_it(server: Server, store: Store) -> None:
    made = await key_store.create(store, KeyTerms(["learn"]))
    with server.client() as client:
        before = client.dump(key_store.KEYS_KEY)
        revoked = await key_store.revoke(store, made.key.id)
        await key_store.check_copied(store, revoked, "the key is revoked")  # a store without copies
        client.restore(key_store.KEYS_KEY, 0, before, replace=True)
    with pytest.raises(StoreUnavailable, match="could undo it; repeat it"):
        await key_store.check_copied(store, revoked, "the key is revoked")
    revoked = await key_store.revoke(store, made.key.id)
    await key_store.check_copied(store, revoked, "the key is revoked")


@pytest.mark.parametrize("seconds", [None, 600.0])
async def test_a_repeated_rotation_makes_the_same_key_again(store: Store, seconds: float | None) -> None:
    old = await key_store.create(store, KeyTerms(["learn"], ["m"], seconds=seconds))
    first = await key_store.rotate(store, old.key.id, 0)
    again = await key_store.rotate(store, old.key.id, 3600)
    last = await key_store.rotate(store, again.key.id, 60)
    for made in (first, again, last):
        assert (made.key.scopes, made.key.models) == (old.key.scopes, old.key.models)
        assert (None if made.key.expires is None else made.key.expires - made.key.created) == (
            None if seconds is None else pytest.approx(seconds)
        )
    [ended] = [key for key in (await key_store.read(store)).keys if key.id == old.key.id]
    assert ended.expires == pytest.approx(first.key.created)  # a repeat does not prolong the old key


async def test_keys_are_bounded_in_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "MOST_KEYS", 3)
    made = [await key_store.create(store, KeyTerms(["learn"])) for _ in range(3)]
    with pytest.raises(Conflict, match="3 keys"):
        await key_store.create(store, KeyTerms(["learn"]))
    with pytest.raises(Conflict, match="3 keys"):
        await key_store.rotate(store, made[0].key.id, 0)
    await key_store.revoke(store, made[0].key.id)
    assert len(await key_store.all_keys(store)) == 3
    new = await key_store.rotate(store, made[1].key.id, 0)  # what has ended makes room, but for what is replaced itself
    assert {one.key.id for one in await key_store.all_keys(store)} == {made[1].key.id, made[2].key.id, new.key.id}
    newest = await key_store.create(store, KeyTerms(["learn"]))
    assert [one.key.id for one in await key_store.all_keys(store)] == [made[2].key.id, new.key.id, newest.key.id]
    with pytest.raises(Conflict, match="3 keys"):
        await key_store.create(store, KeyTerms(["learn"]))


async def test_keys_that_ended_long_ago_go_when_one_is_made(store: Store) -> None:
    made = {
        name: (await key_store.create(store, KeyTerms(["learn"]))).key
        for name in ("revoked", "ended", "lately", "valid")
    }
    await key_store.note_used(store, {key.id: 1.0 for key in made.values()})
    now = (await key_store.read(store)).now
    changed = {
        "revoked": {"revoked": now - key_store.ENDED_SECONDS - 60},
        "ended": {"expires": now - key_store.ENDED_SECONDS - 60},
        "lately": {"expires": now - key_store.ENDED_SECONDS + 3600},
    }
    for name, fields in changed.items():
        key = msgspec.structs.replace(made[name], **fields)
        await store.client.hset(key_store.KEYS_KEY, key.id, msgspec.json.encode(key))
    await key_store.revoke(store, made["valid"].id)
    assert len(await key_store.all_keys(store)) == 4
    new = await key_store.create(store, KeyTerms(["learn"]))
    left = {made["lately"].id, made["valid"].id, new.key.id}
    assert {one.key.id for one in await key_store.all_keys(store)} == left
    assert {name.decode() for name in await store.client.hkeys(key_store.USED_KEY)} == left - {new.key.id}


async def test_the_clock_of_a_key_ring_does_not_go_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(store)
    made = await key_store.create(store, KeyTerms(["learn"], seconds=60))
    kept = await key_store.read(store)
    for ahead in (0, 61, -3600):
        monkeypatch.setattr(key_store, "read", AsyncMock(return_value=kept._replace(now=kept.now + ahead)))
        await ring.load()
        with nullcontext() if ahead == 0 else pytest.raises(InvalidKey, match="has expired"):
            ring.find(b"Bearer " + made.secret.encode())
