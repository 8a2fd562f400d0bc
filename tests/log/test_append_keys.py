"""An idempotency key makes it safe to send a request again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from abound.replica.replica import Replica
from abound_core.errors import InvalidInstance
from tests.log.conftest import connected, learn
from tests.support.fixtures import StartReplica
from tests.support.proxy import Proxy
from tests.support.streams import batch, draft
from tests.support.valkey import Server


async def test_a_key_makes_sending_again_safe(through: Replica, proxy: Proxy) -> None:
    one = draft('{"a": 1}', "x", key="order 7", body=b"hash")
    proxy.lose_replies_to = b"XADD"
    first = await learn(through, one)
    await connected(through)
    assert await learn(through, one) == first
    assert through.model("default").live.n_learned == 1
    with pytest.raises(InvalidInstance, match="another body") as caught:
        await learn(through, replace(one, body=b"other"))
    assert caught.value.field == "key"
    several = await through.learn("default", [one, replace(one, body=b"other"), draft('{"b": 1}', "y")])
    assert [each.refused is not None for each in several] == [False, True, False]
    assert several[0] == first
    assert through.model("default").live.n_learned == 2


async def test_a_batch_with_a_key_is_learned_once_as_a_whole(server: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(server)
    first, second = await asyncio.gather(*(learn(replica, batch(100, key="b")) for _ in range(2)))
    assert first == second
    assert replica.model("default").live.n_learned == 100


async def test_two_replicas_cannot_both_learn_one_key(server: Server, start_replica: StartReplica) -> None:
    one, other = await start_replica(server), await start_replica(server)
    keyed = draft('{"a": 1}', "x", key="k", body=b"h")
    first, second = await asyncio.gather(learn(one, keyed), learn(other, keyed))
    assert first == second
    await one.wait_for("default", other.model("default").offset, 30)
    assert one.model("default").live.n_learned == other.model("default").live.n_learned == 1
