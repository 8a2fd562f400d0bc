"""A replica while its store is away, was emptied, or is another one."""

from __future__ import annotations

import time

import pytest

from abound_core.config import ModelConfig
from abound_core.errors import (
    InvalidInstance,
    StoreUnavailable,
)
from tests.support.fixtures import StartReplica
from tests.support.replicas import digests, teach, until
from tests.support.served import served
from tests.support.streams import draft
from tests.support.valkey import Server


@pytest.mark.parametrize(("bound", "status"), [(None, 200), (0.2, 503)])
def test_a_replica_cut_off_is_ready_up_to_the_bound(bound, status):
    with served(max_staleness=bound) as service:
        assert service.http.get("/readyz").json()["log"] == "connected"
        service.server.kill()
        deadline = time.monotonic() + 60
        while True:
            answer = service.http.get("/readyz")
            cut_off = answer.json().get("since", 0) > 0.3 or answer.status_code == 503
            if cut_off or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert cut_off
        assert answer.status_code == status
        assert ("more than max_staleness (0.2 s)" in answer.text) is (bound is not None)
        assert service.http.post("/classify", json={"text": "wheat"}).status_code == 200


async def test_a_store_that_is_emptied_under_open_connections_is_started_anew(
    server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(server)
    await replica.models.create("news", ModelConfig())
    await teach(replica)
    before = replica.model("default").incarnation
    with server.client() as client:
        client.flushall()
    await until(lambda: replica.models.names() == ["default"] and replica.model("default").incarnation != before)
    await until(lambda: replica.status().ready)
    assert replica.model("default").live.n_learned == 0
    await teach(replica, 7)
    assert len(await digests(replica, await start_replica(server))) == 1


async def test_nothing_is_acknowledged_that_goes_with_the_model_of_a_store_that_was_emptied(
    server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abound.store.reconnecting_connection.INFO_SECONDS", 60.0)
    monkeypatch.setattr("abound.replica.heartbeat.TICK_SECONDS", 60.0)
    replica = await start_replica(server)
    await teach(replica)
    with server.client() as client:
        client.flushall()
        with pytest.raises(StoreUnavailable, match="has lost the log; nothing was appended"):
            await replica.learn("default", [draft('{"a": 1}', "x")])
        assert not client.exists(replica.model("default").keys.log)


async def test_what_min_offset_promises_when_the_store_has_lost_the_event(
    server: Server, start_replica: StartReplica
) -> None:
    """It is compared with numbers: refused while the log ends before it, and no proof of an event once it does not."""
    replica = await start_replica(server)
    await teach(replica, 5)
    key = replica.model("default").keys.log
    with server.client() as client:
        before = client.dump(key)
        lost = await teach(replica, 1, seed=2)
        client.restore(key, 0, before, replace=True)
        await until(lambda: replica.model("default").live.n_learned == 5)
        await until(lambda: replica.status().ready)
        with pytest.raises(InvalidInstance, match="beyond the end of the log"):
            await replica.wait_for("default", lost, 30)
        # The store's clock was set back: the number comes again, for something else.
        _, fields = client.xrange(key)[-1]
        client.xadd(key, fields, id=lost.entry)
        await replica.wait_for("default", lost, 30)
        assert replica.model("default").live.n_learned == 10
