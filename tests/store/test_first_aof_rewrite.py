"""A store that writes its append-only file for the first time says that it keeps one, and would lose the log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
import redis

from abound.core.errors import CannotStart, OutcomeUnknown, StoreUnavailable
from abound.service.replica.replica import Replica
from abound.service.store.client import Store, StoreParams
from abound.service.store.server_info import ServerInfo
from tests.replica.test_replica import teach, until
from tests.support.fixtures import StartReplica
from tests.support.streams import draft
from tests.support.valkey import Server

N_KEYS = 60


@pytest.fixture(params=[("yes", None), ("no", None)])
def slow_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A store that takes a second or two to write its file anew."""
    appendonly, binary = request.param
    if binary is not None and shutil.which(binary) is None:
        pytest.skip(f"there is no {binary} here")
    server = Server(binary, appendonly=appendonly)
    with server.client() as client:
        for i in range(N_KEYS):
            client.set(f"other{i}", b"x")
        client.config_set("rdb-key-save-delay", 2_000_000 // N_KEYS)
    yield server
    server.close()


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
        began = time.monotonic()
        impatient = Replica(Store(slow_server.url, StoreParams(start_seconds=0.2)))
        with pytest.raises(CannotStart, match="for the first time"):
            await impatient.start()
        await impatient.stop()
        assert is_rewriting(client)
        replica = await start_replica(slow_server)
        assert time.monotonic() - began > 1
        assert not is_rewriting(client)
        await teach(replica)


@pytest.mark.parametrize("slow_server", [("yes", None)], indirect=True)
async def test_nothing_is_learned_until_the_first_file_is_written(
    slow_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(slow_server)
    with slow_server.client() as client:
        client.bgrewriteaof()  # one as there are many: what is appended is in the old file as well
        await until(lambda: facts(replica).rewriting)
        await teach(replica)
        assert is_rewriting(client)
        await until(lambda: not is_rewriting(client), 10)
        client.config_set("appendonly", "no")
        await until(lambda: not facts(replica).aof)
        client.config_set("appendonly", "yes")
        await until(lambda: facts(replica).aof)
        assert is_rewriting(client)
        with pytest.raises(StoreUnavailable, match=r"nothing was appended: the store writes .* for the first time"):
            await teach(replica)
        status = replica.status()
        assert status.ready
        assert status.durability is not None
        assert "for the first time" in str(status.durability.warning)
        await until(lambda: facts(replica).danger is None, 10)
        assert not is_rewriting(client)
        await teach(replica)


@pytest.mark.parametrize("slow_server", [("yes", None), ("yes", "redis-server")], indirect=True)
async def test_fsync_is_claimed_only_of_a_file_that_a_crash_leaves(
    slow_server: Server, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is promised is asked behind each append, however lately the store was looked at."""
    monkeypatch.setattr("abound.service.store.reconnecting.FACTS_SECONDS", 60.0)
    replica = await start_replica(slow_server)

    async def level() -> str:
        [learned] = await replica.learn("default", [draft('{"a": 1}', "x")], durability="fsync")
        return learned.durability

    with slow_server.client() as client:
        assert await level() == "fsync"
        client.bgrewriteaof()
        in_a_plain_one = await level()
        assert is_rewriting(client)
        assert in_a_plain_one == ("fsync" if facts(replica).can_check_aof else "log")
        await until(lambda: not is_rewriting(client), 10)
        assert await level() == "fsync"
        client.config_set("appendonly", "no")
        client.config_set("appendonly", "yes")
        if facts(replica).can_check_aof:
            with pytest.raises(OutcomeUnknown, match=r"may get lost: the store writes .* for the first time"):
                await level()
            with pytest.raises(StoreUnavailable, match="nothing was appended"):
                await level()
        else:
            assert await level() == "log"
        assert is_rewriting(client)
        await until(lambda: not is_rewriting(client), 10)


@pytest.mark.parametrize("slow_server", [("yes", None)], indirect=True)
async def test_a_file_that_was_given_up_between_two_looks_is_a_first_one_again(
    slow_server: Server, start_replica: StartReplica
) -> None:
    replica = await start_replica(slow_server)
    with slow_server.client() as client:
        client.config_set("appendonly", "no")
        client.config_set("appendonly", "yes")
        await until(lambda: facts(replica).danger is not None)
        assert is_rewriting(client)
        with pytest.raises(StoreUnavailable, match="for the first time"):
            await teach(replica)
        late = await start_replica(slow_server)  # one that has never seen it otherwise
        if is_rewriting(client):
            assert facts(late).danger is not None
        await until(lambda: facts(replica).danger is None, 10)
        assert not is_rewriting(client)
        await teach(replica)
