"""Expiring records: they last as long as their owners renew them, whatever the store's clock does."""

import asyncio

from abound.store import expiring
from abound.store.client import Store

KEY = b"abound:records"


async def test_records_expire_unless_they_are_renewed(store: Store) -> None:
    assert await expiring.live(store, KEY, 60) == {}
    now, _ = await store.client.time()
    await store.client.hset(KEY, mapping={"old": expiring.pack(now - 61, b"x"), "young": expiring.pack(now - 30, b"y")})
    await expiring.put_all(store, [(KEY, "empty", b""), (KEY, "spaces", b"a b ")])
    found = await expiring.live(store, KEY, 60)
    assert {name: one.payload for name, one in found.items()} == {"empty": b"", "spaces": b"a b ", "young": b"y"}
    assert 29 < found["young"].age < 60
    assert await store.client.hlen(KEY) == 3
    await expiring.put(store, KEY, "young", b"z")
    await expiring.remove(store, KEY, "empty", "spaces")
    found = await expiring.live(store, KEY, 25)
    assert [(name, one.payload) for name, one in found.items()] == [("young", b"z")]


async def test_a_record_made_before_the_clock_was_set_back_lasts_no_longer_than_a_new_one(store: Store) -> None:
    now, _ = await store.client.time()
    await store.client.hset(KEY, "ahead", expiring.pack(now + 86_400, b"x"))
    assert list(await expiring.live(store, KEY, 0.5)) == ["ahead"]
    await asyncio.sleep(0.6)
    assert await expiring.live(store, KEY, 0.5) == {}
