"""A store that writes its append-only file for the first time says that it keeps one, and would lose the log."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator

import pytest
import redis

from abound.log.stream import LogParams
from abound.replica.replica import Replica, ReplicaParams
from abound.store.client import Store, StoreParams
from abound.store.server_info import WAITAOF_COMMAND_VERSION, ServerInfo
from abound_core.errors import CannotStart
from tests.support.fixtures import StartReplica
from tests.support.replicas import teach, until
from tests.support.streams import draft
from tests.support.valkey import Server

N_KEYS = 60


def slow_down(client: redis.Redis, seconds: float) -> None:
    """Let the next rewrites take this long at least."""
    client.config_set("rdb-key-save-delay", int(1e6 * seconds / N_KEYS))


@pytest.fixture
def slow_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A store whose first rewrite of its append-only file would take ten minutes."""
    appendonly, binary = request.param
    if binary is not None and shutil.which(binary) is None:
        pytest.skip(f"there is no {binary} here")
    server = Server(binary, appendonly=appendonly)
    with server.client() as client:
        for i in range(N_KEYS):
            client.set(f"other{i}", b"x")
        slow_down(client, 600)
        yield server
        client.config_set("appendonly", "no")  # ends the process that rewrites
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
async def test_fsync_is_claimed_only_of_a_file_that_a_crash_leaves(
    slow_server: Server, start_replica: StartReplica
) -> None:
    """A server that has no WAITAOF does not tell the first rewrite from any later one."""
    replica = await start_replica(slow_server, ReplicaParams(durability="fsync", log=LogParams(wait_store_seconds=0.2)))

    async def level() -> str:
        [learned] = await replica.learn("default", [draft('{"a": 1}', "x")])
        return learned.durability

    with slow_server.client() as client:
        for is_first in (False, True):
            await until(lambda: not is_rewriting(client) and facts(replica).confirms_fsync)
            async with asyncio.timeout(60):  # the info of the appender's own connection may be a second older
                while await level() != "fsync":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
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
