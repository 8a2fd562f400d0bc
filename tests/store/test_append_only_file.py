"""The append-only file of a real store: rewrites of it, and what a crash would leave of it meanwhile."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from abound.log.events import LearnEvent
from abound.log.stream import LogParams
from abound.processes.embedded_store import EmbeddedStore
from abound.replica.replica import Replica, ReplicaParams
from abound.security.audit import newest_acts
from abound.state.snapshots import delete_incarnation
from abound.store.client import Store, StoreParams
from abound.store.replication import rewrite_aof
from abound.store.server_info import WAITAOF_COMMAND_VERSION, ServerInfo
from abound_core.errors import CannotStart
from abound_core.model.entry_application import Unit
from tests.support import job_worker
from tests.support.fixtures import StartReplica, StartServer, until_copied
from tests.support.replicas import teach, until
from tests.support.served import NDJSON, lines, ndjson, served
from tests.support.streams import create, draft, logged, record
from tests.support.valkey import PATIENT, Server

ABOUND = (sys.executable, "-m", "abound")


async def test_the_files_of_copies_are_theirs_and_that_is_said(servers: tuple[Server, Server]) -> None:
    primary, copy = servers
    store = Store(primary.url, primary.store_params)
    with primary.client() as client:
        client.set("word", "unspeakable")
        until_copied(primary)
        client.delete("word")
        until_copied(primary)
    said = await rewrite_aof(store)
    assert said.startswith("rewritten; ")
    assert "send BGREWRITEAOF to each: 1 connected" in said
    assert not holds(primary, b"unspeakable")
    with copy.client() as client:
        await until(lambda: not is_rewriting(client))  # it moves its files
    assert holds(copy, b"unspeakable")
    copy.kill()
    with primary.client() as client:
        await until(lambda: not client.info("replication")["connected_slaves"])
    assert await rewrite_aof(store) == "rewritten"
    await store.close()


@pytest.mark.parametrize("runs", [True, False])
async def test_what_was_deleted_is_gone_from_the_file_once_the_command_was_given(tmp_path: Path, runs: bool) -> None:
    """Of an embedded store, which a service runs or not: deleting a model leaves what it learned in the file."""
    embedded = EmbeddedStore(tmp_path)
    url = embedded.start()
    try:
        store = Store(url, PATIENT)
        living = await create(store, "gone")
        secret = LearnEvent(record('{"a": 1}', "unspeakable"), 1, [Unit(1)])
        await store.client.xadd(living.keys.log, logged(secret))
        await delete_incarnation(store, living.keys)
        assert in_files(tmp_path, b"unspeakable")
        if not runs:
            await store.close()
            embedded.stop()
        words = ("store", "rewrite", "--data-dir", str(tmp_path), "--json")
        done = await asyncio.to_thread(subprocess.run, [*ABOUND, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"store_file": "rewritten"}), done.stderr
        assert not in_files(tmp_path, b"unspeakable")
        if runs:
            [act] = await newest_acts(store)
            assert (act.action, act.outcome, act.details) == ("store.rewrite", "done", {"store_file": "rewritten"})
            await store.close()
    finally:
        embedded.stop()


def in_files(folder: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def holds(server: Server, word: bytes) -> bool:
    return any(
        word in path.read_bytes() for path in server.directory.rglob("*") if path.is_file() and "aof" in path.name
    )


N_KEYS = 60


def slow_down(client: redis.Redis, seconds: float) -> None:
    """Let the next rewrites take this long at least."""
    client.config_set("rdb-key-save-delay", int(1e6 * seconds / N_KEYS))


@pytest.fixture
def slow_server(request: pytest.FixtureRequest, start_server: StartServer) -> Iterator[Server]:
    """A store whose first rewrite of its append-only file would take ten minutes."""
    appendonly, binary = request.param
    server = start_server(binary, appendonly=appendonly)
    with server.client() as client:
        for i in range(N_KEYS):
            client.set(f"other{i}", b"x")
        slow_down(client, 600)
        yield server
        client.config_set("appendonly", "no")  # ends the process that rewrites


def is_rewriting(client: redis.Redis) -> bool:
    return bool(client.info("persistence")["aof_rewrite_in_progress"])


def facts(replica: Replica) -> ServerInfo:
    said = replica.server_info()
    assert said is not None
    return said


@pytest.mark.parametrize("slow_server", [("no", None)], indirect=True)
async def test_a_start_waits_until_the_first_file_is_written(slow_server: Server, start_replica: StartReplica) -> None:
    with slow_server.client() as client:
        client.config_set("appendonly", "yes")
        impatient = Store(slow_server.url, StoreParams(start_seconds=0.2))
        with pytest.raises(CannotStart, match="for the first time"):
            await impatient.check()
        await impatient.close()
        assert is_rewriting(client)
        client.config_set("appendonly", "no")
        slow_down(client, 2)
        began = time.monotonic()
        client.config_set("appendonly", "yes")
        replica = await start_replica(slow_server)
        assert time.monotonic() - began > 1
        assert not is_rewriting(client)
        await teach(replica)


@pytest.mark.parametrize("slow_server", [("yes", None), ("yes", "redis-server")], indirect=True)
async def test_fsync_is_claimed_only_of_a_file_that_a_crash_leaves(slow_server, start_replica):
    """A server that has no WAITAOF does not tell the first rewrite from any later one."""
    replica = await start_replica(slow_server, ReplicaParams(durability="fsync", log=LogParams(wait_store_seconds=1.0)))

    async def level() -> str:
        [learned] = await replica.learn("default", [draft('{"a": 1}', "x")])
        return learned.durability

    async def is_synced() -> bool:
        return await level() == "fsync"

    with slow_server.client() as client:
        for is_first in (False, True):
            await until(lambda: not is_rewriting(client) and facts(replica).confirms_fsync)
            await until(is_synced)  # the info of the appender's own connection may be a second older
            slow_down(client, 600)
            if is_first:
                client.config_set("appendonly", "no")
                client.config_set("appendonly", "yes")
            else:
                client.bgrewriteaof()
            await until(lambda: facts(replica).rewriting)
            is_told = facts(replica).version >= WAITAOF_COMMAND_VERSION
            assert await level() == ("fsync" if is_told and not is_first else "log")
            assert await replica.confirmed_durability() == "log"
            assert is_rewriting(client)
            slow_down(client, 0)
            client.config_set("appendonly", "no")  # ends the rewrite
            client.config_set("appendonly", "yes")


SETTING = "no-appendfsync-on-rewrite"


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
        job_worker.until(lambda: service.http.get("/readyz").json()["durability"]["levels"] == ["log"])
        assert SETTING in service.http.get("/readyz").json()["durability"]["warning"]
        assert set(learn()) == {"log"}
        assert service.learned() == 1
