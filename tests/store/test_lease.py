"""The lease of a model: one holder at a time, whatever clocks and failovers do."""

from __future__ import annotations

import asyncio

import pytest
import redis.exceptions

from abound.core.errors import Conflict, StoreUnavailable
from abound.service.model import adoption_lock
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import LeaseLost, acquire
from abound.service.versions import activation
from tests.support.valkey import QUICK, Server

KEYS = ModelKeys("m", "1-0")
KEY = KEYS.key("pointer")


async def test_one_at_a_time_has_a_model_and_each_has_a_greater_token(store: Store) -> None:
    numbers = []
    for i in range(1, 4):
        async with acquire(store, KEYS) as lease:
            with pytest.raises(Conflict):
                async with acquire(store, KEYS):
                    pass
            async with acquire(store, ModelKeys("m", "2-0")) as other:
                assert other.number == i
            numbers.append(lease.number)
    assert numbers == [1, 2, 3]
    assert await store.client.get(KEYS.key("lease")) is None


async def test_it_is_renewed_for_as_long_as_it_is_held(store: Store) -> None:
    async with acquire(store, KEYS, 0.2) as lease:
        for _ in range(10):
            await asyncio.sleep(0.1)
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
    async with acquire(store, KEYS, 0.4) as lease:
        await store.client.pexpire(KEYS.key("lease"), 3_600_000)
        with pytest.raises(Conflict):
            async with acquire(store, KEYS, 0.4):
                pass
        assert await store.client.pttl(KEYS.key("lease")) <= 400
        await asyncio.sleep(0.6)
        await lease.swap([("SET", KEY, "x")])
        with pytest.raises(Conflict):
            async with acquire(store, KEYS, 0.4):
                pass
    await store.client.set(KEYS.key("lease"), "9:of one that died", px=3_600_000)
    with pytest.raises(Conflict):
        async with acquire(store, KEYS, 0.2):
            pass
    await asyncio.sleep(0.3)
    async with acquire(store, KEYS, 0.2):
        pass


async def test_whoever_was_stopped_for_too_long_changes_nothing(store: Store) -> None:
    async with acquire(store, KEYS) as late:
        await late.swap([("SET", KEY, "late")])
        await store.client.delete(KEYS.key("lease"))  # its time is over while it is stopped
        async with acquire(store, KEYS) as next_one:
            assert not late.lost
            with pytest.raises(LeaseLost):
                await late.swap([("SET", KEY, "later"), ("DEL", KEYS.key("fence"))])
            assert late.lost
            with pytest.raises(LeaseLost):
                await late.check()
            await next_one.check()
            await late.release()  # leaves the other's alone
            with pytest.raises(Conflict):
                async with acquire(store, KEYS):
                    pass
        with pytest.raises(LeaseLost):  # nor when the other one is done
            await late.swap([("SET", KEY, "later")])
    assert await store.client.get(KEY) == b"late"


async def test_whoever_finds_it_taken_says_so_without_trying_to_change_anything(store: Store) -> None:
    async with acquire(store, KEYS, 0.1) as lease:
        await store.client.set(KEYS.key("fence"), b"2:somebody")
        async with asyncio.timeout(2):
            while not lease.lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_model_that_is_deleted_takes_the_lease_with_it(store: Store) -> None:
    async with acquire(store, KEYS) as lease:
        await store.client.delete(KEYS.key("lease"), KEYS.key("fence"))
        with pytest.raises(LeaseLost):
            await lease.swap([("SET", KEY, "an orphan")])
    assert await store.client.keys("*") == []


async def test_a_number_that_a_failover_lost_is_not_given_twice(store: Store) -> None:
    async with acquire(store, KEYS) as lease:
        await store.client.delete(KEYS.key("lease"), KEYS.key("fence"))
        async with acquire(store, KEYS) as other:
            assert other.number == lease.number
            with pytest.raises(LeaseLost):
                await lease.swap([("SET", KEY, "x")])


async def test_a_command_that_fails_says_so(store: Store) -> None:
    async with acquire(store, KEYS) as lease:
        with pytest.raises(StoreUnavailable, match="refused"):
            await lease.swap([("LPUSH", KEYS.key("fence"), "x")])


async def test_a_store_that_is_full_can_still_be_made_smaller(own_server: Server) -> None:
    store = Store(own_server.url, QUICK)
    with own_server.client() as client:
        for i in range(200):
            client.xadd(KEYS.log, {"e": b"x" * 10_000, "c": b"0"}, id=f"{i + 1}-0")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("x", "y")
        async with acquire(store, KEYS) as lease:
            await lease.swap([("XTRIM", KEYS.log, "MINID", "=", "190-0"), ("SET", KEY, "x")])
        assert client.xlen(KEYS.log) == 11
        client.set("x", "y")
    await store.close()


async def test_a_store_that_goes_away_leaves_the_lease_to_run_out(own_server: Server) -> None:
    store = Store(own_server.url, QUICK)
    async with acquire(store, KEYS) as lease:
        own_server.kill()
        with pytest.raises(StoreUnavailable):
            await lease.check()
    own_server.start()
    with own_server.client() as client:
        assert 0 < client.pttl(KEYS.key("lease")) <= 15_000
    await store.close()


async def test_what_an_adoption_or_an_activation_holds_does_not_last_longer_either(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it died before the store's clock was set back."""
    monkeypatch.setattr(activation, "FENCE_SECONDS", 0.2)

    async def adopt() -> bool:
        return await adoption_lock.renew(store, KEYS, adoption_lock.PendingAdoption("another"), 0.2)

    async def activate() -> bool:
        return await activation.acquire(store, KEYS, activation.FenceRecord("another"))

    assert await adoption_lock.renew(store, KEYS, adoption_lock.PendingAdoption("dead"))
    assert await activation.acquire(store, KEYS, activation.FenceRecord("dead"))
    for key in (adoption_lock.key_of(KEYS), KEYS.key("activating")):
        await store.client.pexpire(key, 3_600_000)
    assert [await adopt(), await activate()] == [False, False]
    await asyncio.sleep(0.3)
    assert [await adopt(), await activate()] == [True, True]
