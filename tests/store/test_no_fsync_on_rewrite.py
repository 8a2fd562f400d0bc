"""A store that syncs nothing while it saves or rewrites its file: what it answers for does not count as on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import structlog.testing

from abound.replica.replica import Replica, ReplicaParams
from abound.store.client import Store, fetch_server_info
from abound_core.errors import CannotStart
from tests.support.fixtures import StartReplica
from tests.support.served import NDJSON, lines, ndjson, served
from tests.support.streams import draft
from tests.support.valkey import Server

SETTING = "no-appendfsync-on-rewrite"


@pytest.fixture
def pausing() -> Iterator[Server]:
    server = Server(**{SETTING: "yes"})
    yield server
    server.close()


async def test_fsync_is_not_claimed_and_the_setting_is_named(pausing: Server, start_replica: StartReplica) -> None:
    replica = await start_replica(pausing)
    durability = replica.status().durability
    assert durability is not None
    assert durability[:2] == ("always", ("log",))
    assert f"CONFIG SET {SETTING} no" in str(durability.warning)
    [learned] = await replica.learn("default", [draft('{"a": 1}', "x")])
    assert (learned.applied, learned.durability) == (True, "log")
    with pausing.client() as client:
        client.config_set(SETTING, "no")
    async with asyncio.timeout(60):
        while (facts := replica.server_info()) is None or not facts.syncs_writes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert facts.warning is None


async def test_both_ways_of_asking_say_the_same(pausing: Server) -> None:
    store = Store(pausing.url, pausing.store_params)
    connection = await store.open_connection("test")
    for value in ("yes", "no"):
        with pausing.client() as client:
            client.config_set(SETTING, value)
        for facts in (await store.server_info(), await fetch_server_info(connection, 10.0)):
            assert (facts.appendfsync, facts.pauses, facts.syncs_writes) == ("always", value == "yes", value == "no")
    connection.close()
    await store.close()


async def test_a_change_since_the_store_was_asked_last_is_seen_behind_each_append(
    own_server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abound.store.reconnecting_connection.INFO_SECONDS", 60.0)
    replica = await start_replica(own_server, ReplicaParams(durability="fsync"))
    for value, level in (("no", "fsync"), ("yes", "log"), ("no", "fsync")):
        with own_server.client() as client:
            client.config_set(SETTING, value)
        [learned] = await replica.learn("default", [draft('{"a": 1}', "x")])
        assert learned.durability == level


async def test_fsync_by_default_is_refused_at_the_start(pausing: Server) -> None:
    replica = Replica(Store(pausing.url, pausing.store_params), ReplicaParams(durability="fsync"))
    with pytest.raises(CannotStart, match=f"ABOUND_DURABILITY is fsync, but .*{SETTING} no"):
        await replica.start()
    await replica.stop()


async def test_the_start_says_so(pausing: Server) -> None:
    store = Store(pausing.url, pausing.store_params)
    with structlog.testing.capture_logs() as lines:
        await store.check()
    await store.close()
    assert [f"set {SETTING} no to keep them" in line["event"] for line in lines] == [True]


def test_a_repeat_does_not_claim_it_either_and_readyz_says_why() -> None:
    """What came of a remembered instance is answered from memory; how safe it is, the store is asked."""
    with served(durability="fsync") as service:
        given = service.http.post("/models/default/classify", json={"text": "wheat", "remember": True}).json()
        one = {"prediction": given["id"], "labels": ["grain"], "key": "k"}

        def learn() -> list[str]:
            line = service.http.post("/learn", content=ndjson(one), headers=NDJSON)
            bodies = (one, {"instances": [one]})
            said = [service.http.post("/learn", json=body).json()["durability"] for body in bodies]
            return [*said, lines(line)[0]["durability"]]

        assert set(learn()) == {"fsync"}
        with service.server.client() as client:
            client.config_set(SETTING, "yes")
        deadline = time.monotonic() + 60
        while (durability := service.http.get("/readyz").json()["durability"])["levels"] != ["log"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert SETTING in durability["warning"]
        assert set(learn()) == {"log"}
        assert service.learned() == 1
