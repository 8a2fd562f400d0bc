"""The key ring and a store that goes back: a failover to a copy without the last changes, a clock that is behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from abound.core.errors import InvalidKey, StoreUnavailable
from abound.service.security import key_store
from abound.service.security.key import CreatedKey, KeyTerms
from abound.service.security.key_ring import KeyRing
from abound.service.store.client import Store
from tests.support.valkey import QUICK, Server, free_port


def header(made: CreatedKey) -> bytes:
    return b"Bearer " + made.secret.encode()


@contextmanager
def losing_the_tail(server: Server) -> Iterator[None]:
    """What is changed within is gone after it, as with a failover to a copy that never had it."""
    with server.client() as client:
        before = {key: client.dump(key) for key in (key_store.KEYS_KEY, key_store.VERSION_KEY)}
        yield
        for key, dumped in before.items():
            client.restore(key, 0, dumped, replace=True)


async def test_a_revoked_key_stays_out_when_the_store_loses_that(server: Server, store: Store) -> None:
    ring, other = KeyRing(store), KeyRing(store)
    made, kept = await key_store.create(store, KeyTerms(["learn"])), await key_store.create(store, KeyTerms(["learn"]))
    with losing_the_tail(server):
        await key_store.revoke(store, made.key.id)
        await ring.load()
        with pytest.raises(InvalidKey, match="was revoked"):
            ring.find(header(made))
    assert {one.state for one in await key_store.all_keys(store)} == {"valid"}
    await ring.load()
    with pytest.raises(InvalidKey, match="was revoked"):
        ring.find(header(made))
    assert {one.key.id: one.state for one in await key_store.all_keys(store)} == {
        made.key.id: "revoked",
        kept.key.id: "valid",
    }
    await other.load()  # one that never saw it
    with pytest.raises(InvalidKey, match="was revoked"):
        other.find(header(made))
    assert other.find(header(kept)).id == ring.find(header(kept)).id == kept.key.id


async def test_a_revocation_is_written_again_as_soon_as_the_store_can(own_server: Server) -> None:
    store = Store(own_server.url, QUICK)
    try:
        ring = KeyRing(store)
        made = await key_store.create(store, KeyTerms(["learn"]))
        with losing_the_tail(own_server):
            await key_store.revoke(store, made.key.id)
            await ring.load()
        with own_server.client() as client:
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(StoreUnavailable):
                await ring.load()
            with pytest.raises(InvalidKey, match="was revoked"):
                ring.find(header(made))
            keeping = asyncio.create_task(ring.run())
            client.config_set("min-replicas-to-write", 0)
        async with asyncio.timeout(10):
            while (await key_store.all_keys(store))[0].state != "revoked":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        keeping.cancel()
    finally:
        await store.close()


async def test_a_rotated_key_ends_although_the_store_lost_that(server: Server, store: Store) -> None:
    ring = KeyRing(store)
    made = await key_store.create(store, KeyTerms(["learn"]))
    with losing_the_tail(server):
        await key_store.rotate(store, made.key.id, 3600)
        await ring.load()
    await ring.load()
    ring.find(header(made))
    [old] = [key for key in (await key_store.read(store)).keys if key.id == made.key.id]
    assert old.expires == pytest.approx(time.time() + 3600, abs=60)
    ring._set_clock(ring.now() + 3601)
    with pytest.raises(InvalidKey, match="has expired"):
        ring.find(header(made))


async def test_rotations_that_the_store_lost_leave_the_last_key_that_opens(server: Server, store: Store) -> None:
    """The old keys alone were ended again, so that nothing opened any more."""
    ring = KeyRing(store)
    first = await key_store.create(store, KeyTerms(["learn"]))
    other = await key_store.create(store, KeyTerms(["learn"]))
    with losing_the_tail(server):
        second = await key_store.rotate(store, first.key.id, 0)
        third = await key_store.rotate(store, second.key.id, 3600)
        lost = await key_store.create(store, KeyTerms(["learn"]))
        await ring.load()
    for _ in range(2):
        await ring.load()
    new = KeyRing(store)  # by what the store has again
    await new.load()
    for one in (ring, new):
        with pytest.raises(InvalidKey, match="has expired"):
            one.find(header(first))
        with pytest.raises(InvalidKey, match="no such key"):
            one.find(header(lost))
        assert [one.find(header(made)).id for made in (second, third, other)] == [
            second.key.id,
            third.key.id,
            other.key.id,
        ]
    assert {key.id: key.expires is None for key in (await key_store.read(store)).keys} == {
        first.key.id: False,
        second.key.id: False,
        third.key.id: True,
        other.key.id: True,
    }


async def test_the_clock_does_not_go_back(store: Store) -> None:
    ring = KeyRing(store)
    made = await key_store.create(store, KeyTerms(["learn"], seconds=60))
    await ring.load()
    ring.find(header(made))
    now = ring.now()
    ring._set_clock(now + 61)
    ring._set_clock(now - 3600)
    with pytest.raises(InvalidKey, match="has expired"):
        ring.find(header(made))
    await ring.load()
    with pytest.raises(InvalidKey, match="has expired"):
        ring.find(header(made))


async def test_clearing_forgets_how_keys_have_ended(server: Server, store: Store) -> None:
    ring = KeyRing(store)
    made = await key_store.create(store, KeyTerms(["learn"]))
    await key_store.revoke(store, made.key.id)
    await ring.load()
    assert ring.required
    await key_store.clear(store)
    await ring.load()
    assert not ring.required
    assert not ring._ended


async def test_who_revokes_is_told_when_no_copy_of_the_store_has_it() -> None:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    store = Store(primary.url, QUICK)
    try:
        made, other = (
            await key_store.create(store, KeyTerms(["learn"])),
            await key_store.create(store, KeyTerms(["learn"])),
        )
        with copy.client() as client:
            async with asyncio.timeout(20):
                while client.hlen(key_store.KEYS_KEY) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        (await key_store.revoke(store, made.key.id)).check()
        copy.pause()
        revoked = await key_store.revoke(store, other.key.id)
        with pytest.raises(StoreUnavailable, match=f"{other.key.id} is revoked, but none of the store's copies"):
            revoked.check()
        assert {one.state for one in await key_store.all_keys(store)} == {"revoked"}
        copy.resume()
        async with asyncio.timeout(20):
            while not (await key_store.revoke(store, other.key.id)).copied:
                pass
    finally:
        await store.close()
        copy.close()
        primary.close()


async def test_what_the_ring_knows_of_ended_keys_does_not_grow_for_ever(store: Store) -> None:
    ring = KeyRing(store)
    old, new = await key_store.create(store, KeyTerms(["learn"])), await key_store.create(store, KeyTerms(["learn"]))
    await key_store.revoke(store, old.key.id)
    await key_store.revoke(store, new.key.id)
    key = (await key_store.all_keys(store))[0].key
    key = msgspec.structs.replace(key, revoked=key.created - key_store.ENDED_SECONDS - 60)
    await store.client.hset(key_store.KEYS_KEY, key.id, msgspec.json.encode(key))
    await ring.load()
    assert ring._ended.keys() == {old.key.id, new.key.id}
    await store.client.delete(key_store.KEYS_KEY)
    await ring.load()
    assert ring._ended.keys() == {new.key.id}
