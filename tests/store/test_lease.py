"""The lease of a model: one holder at a time, whatever clocks and failovers do."""

import asyncio

import pytest

from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.lease import Lease, LeaseLost, acquire
from abound_core.errors import Conflict, StoreUnavailable
from abound_core.types import Offset

KEYS = ModelKeys("m", "1-0")
KEY = KEYS.key("pointer")

SECONDS = 8.0
"""How long a lease lasts that is renewed in the test, every quarter of that: longer than the test may stand still."""


def number_of(lease: Lease) -> int:
    return int(lease.token.partition(b":")[0])


async def renewed(store: Store, name: str = "lease") -> None:
    """Wait until a lease of ``SECONDS`` has been renewed."""
    key, left = KEYS.key(name), int(700 * SECONDS)
    await store.client.pexpire(key, left)
    async with asyncio.timeout(60):
        while await store.client.pttl(key) <= left:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_one_at_a_time_has_a_model_and_each_has_a_greater_token(store: Store) -> None:
    tokens = []
    for i in range(1, 4):
        async with acquire(store, KEYS) as lease:
            with pytest.raises(Conflict):
                async with acquire(store, KEYS):
                    pass
            async with acquire(store, ModelKeys("m", "2-0")) as other:
                assert number_of(other) == i
            tokens.append(number_of(lease))
    assert tokens == [1, 2, 3]
    assert await store.client.get(KEYS.key("lease")) is None


async def test_it_is_renewed_for_as_long_as_it_is_held(store: Store) -> None:
    async with acquire(store, KEYS, SECONDS) as lease:
        for _ in range(2):
            await renewed(store)
            with pytest.raises(Conflict):
                async with acquire(store, KEYS):
                    pass
        await lease.swap([("SET", KEY, "x")])
        await store.client.delete(KEYS.key("lease"))  # it ran out, and nobody has come
        await asyncio.sleep(0.1)
        await lease.swap([("RPUSH", KEYS.key("list"), b"\xff\r\n", "y"), ("SET", KEY, 5)])
    assert await store.client.lrange(KEYS.key("list"), 0, -1) == [b"\xff\r\n", b"y"]
    assert await store.client.get(KEY) == b"5"


async def test_a_clock_that_was_set_back_does_not_make_it_last(store: Store) -> None:
    """To the store it is as if it stayed for as much longer: who died is followed in time, who lives renews it."""
    async with acquire(store, KEYS, SECONDS) as lease:
        await store.client.pexpire(KEYS.key("lease"), 3_600_000)
        with pytest.raises(Conflict):
            async with acquire(store, KEYS, SECONDS):
                pass
        assert await store.client.pttl(KEYS.key("lease")) <= 1000 * SECONDS
        await renewed(store)
        await lease.swap([("SET", KEY, "x")])
        with pytest.raises(Conflict):
            async with acquire(store, KEYS, SECONDS):
                pass
    await store.client.set(KEYS.key("lease"), "9:of one that died", px=3_600_000)
    with pytest.raises(Conflict):
        async with acquire(store, KEYS, 0.2):
            pass
    await asyncio.sleep(0.3)
    async with acquire(store, KEYS, 0.2):
        pass


async def test_a_model_that_is_deleted_takes_the_lease_with_it(store: Store) -> None:
    async with acquire(store, KEYS) as lease:
        await store.client.delete(KEYS.key("lease"), KEYS.key("fence"))
        with pytest.raises(LeaseLost):
            await lease.swap([("SET", KEY, "an orphan")])
    assert await store.client.keys("*") == []


async def test_a_command_that_fails_says_so(store: Store) -> None:
    async with acquire(store, KEYS) as lease:
        with pytest.raises(StoreUnavailable, match="refused"):
            await lease.swap([("LPUSH", KEYS.key("fence"), "x")])


async def test_an_entry_is_appended_once_and_by_the_holder_only(store: Store) -> None:
    entry = (b"payload", b"checksum")
    async with acquire(store, KEYS) as late:
        first = await late.append(entry, record="record", change="one", more="x")
        assert await late.append(entry, record="record", change="one", more="y") == first
        second = await late.append(entry, first, "record", change="two", more="z")
        assert await late.append(entry) > second
        with pytest.raises(Conflict, match="has lost the entry 5-0"):
            await late.append(entry, Offset(5, 0, 0))
        await store.client.delete(KEYS.key("lease"))
        async with acquire(store, KEYS):
            assert await late.append(entry, record="record", change="two") == second
            with pytest.raises(LeaseLost):
                await late.append(entry, record="record", change="three")
    assert await store.client.xlen(KEYS.log) == 3
    assert await store.client.hgetall(KEYS.key("record")) == {
        b"at": second.entry.encode(),
        b"change": b"two",
        b"more": b"z",
    }


async def test_it_is_waited_for_as_long_as_asked(store: Store) -> None:
    is_waited_for = asyncio.Event()

    async def waiting() -> None:
        is_waited_for.set()

    async def hold(seconds: float) -> None:
        async with acquire(store, KEYS, wait_seconds=seconds, waiting=waiting):
            pass

    async with acquire(store, KEYS):
        with pytest.raises(Conflict):
            await hold(0.3)
        is_waited_for.clear()
        after = asyncio.create_task(hold(60))
        async with asyncio.timeout(60):
            await is_waited_for.wait()
        assert not after.done()
    await after
