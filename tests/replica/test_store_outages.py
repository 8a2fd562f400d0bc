"""A replica while its store is away, was emptied, or is another one."""

import asyncio

import httpx
import pytest

from abound.log.events import LearnEvent
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance, StoreUnavailable
from abound_core.model.entry_application import Unit
from tests.support import job_worker
from tests.support.replicas import digests, teach, until
from tests.support.served import served
from tests.support.streams import draft, drafts, logged


@pytest.mark.parametrize(("bound", "status"), [(None, 200), (0.2, 503)])
def test_a_replica_cut_off_is_ready_up_to_the_bound(bound, status):
    with served(max_staleness=bound) as service:
        assert service.http.get("/readyz").json()["log"] == "connected"
        service.server.kill()

        def cut_off() -> httpx.Response | None:
            answer = service.http.get("/readyz")
            return answer if answer.json().get("since", 0) > 0.3 or answer.status_code == 503 else None

        answer = job_worker.until(cut_off)
        assert answer.status_code == status
        assert ("more than max_staleness (0.2 s)" in answer.text) is (bound is not None)
        assert service.http.post("/classify", json={"text": "wheat"}).status_code == 200


def test_learning_without_a_store_is_refused_in_time_and_says_whether_it_may_have_happened(monkeypatch):
    monkeypatch.setenv("ABOUND_STORE_REPLY_SECONDS", "2")
    monkeypatch.setattr("abound.api.learn.APPLY_SECONDS", 3.0)
    with served() as service:

        def learn(key: str) -> httpx.Response:
            body = {"text": "wheat", "labels": ["grain"]}
            return service.http.post("/learn", json=body, headers={"Idempotency-Key": key}, timeout=30)

        def until_it_says(log: str) -> None:
            job_worker.until(lambda: service.http.get("/readyz").json()["log"] == log)

        assert learn("before").status_code == 200
        service.server.pause()
        first = learn("one")
        assert first.status_code == 504
        assert "same Idempotency-Key may be sent again" in first.json()["detail"]
        until_it_says("cut off")
        assert learn("two").status_code == 503
        service.server.resume()
        until_it_says("connected")
        assert learn("one").status_code == 200
        assert service.learned() == 2


async def test_a_store_that_is_emptied_under_open_connections_is_started_anew(server, start_replica):
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
    server, start_replica, monkeypatch
):
    monkeypatch.setattr("abound.store.reconnecting_connection.INFO_SECONDS", 60.0)
    monkeypatch.setattr("abound.replica.heartbeat.TICK_SECONDS", 60.0)
    replica = await start_replica(server)
    await teach(replica)
    with server.client() as client:
        client.flushall()
        with pytest.raises(StoreUnavailable, match="has lost the log; nothing was appended"):
            await replica.learn("default", [draft('{"a": 1}', "x")])
        assert not client.exists(replica.model("default").keys.log)


async def test_what_min_offset_promises_when_the_store_has_lost_the_event(server, start_replica):
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


def learned(seed: int) -> dict[str | bytes, bytes]:
    return logged(LearnEvent(drafts(1, seed)[0].records, 1, [Unit(1)]), seed)


async def test_nothing_is_read_from_a_server_that_was_made_a_copy(servers, start_replica):
    """A failover by hand: the connection outlives it, and the log behind it is another one from some moment on."""
    primary, copy = servers
    with primary.client() as old, copy.client() as new:
        replica = await start_replica(primary)
        model = replica.model("default")
        log = model.keys.log
        await teach(replica, 5)
        await until(lambda: new.xlen(log) == old.xlen(log))
        new.execute_command("REPLICAOF", "NO", "ONE")
        await teach(replica, 3, 2)  # the new primary never gets it
        async with model.paused():  # the follower is busy with an entry, and not with waiting for one
            old.xadd(log, learned(7))
            await until(lambda: model.has_waiting_entry)
            old.execute_command("REPLICAOF", "127.0.0.1", copy.settings["port"])
            for seed in range(6):
                new.xadd(log, learned(seed))
            await until(lambda: old.xlen(log) == new.xlen(log))
        await until(lambda: replica.status().log == "cut off")
        new.xadd(log, learned(8))
        await asyncio.sleep(1.5)
        assert (replica.status().ready, model.live.n_learned) == (True, 9)
        old.execute_command("REPLICAOF", "NO", "ONE")
        await until(lambda: replica.status().log == "connected" and model.live.n_learned == 12)
        assert len(await digests(replica, await start_replica(primary))) == 1
