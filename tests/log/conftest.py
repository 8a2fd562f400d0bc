"""What tests of appending share: a replica that reaches its store through a proxy, and short forms of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from abound.log.append_group import LearnDraft, LearnOutcome
from abound.replica.replica import Replica
from abound.store.client import Store
from tests.support.proxy import Proxy
from tests.support.valkey import Server


async def length(replica: Replica) -> int:
    n: int = await replica.store.client.xlen(replica.model("default").keys.log)
    return n


async def learn(replica: Replica, one: LearnDraft, **options: object) -> LearnOutcome:
    return (await replica.learn("default", [one], **options))[0]  # type: ignore[arg-type]


async def connected(replica: Replica) -> None:
    """Wait until a replica has its store again."""
    async with asyncio.timeout(60):
        while replica.status().log != "connected":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy", server.url.removeprefix("unix://"))
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def through(server: Server, proxy: Proxy) -> AsyncIterator[Replica]:
    """A replica that reaches its store through a proxy."""
    replica = Replica(Store(proxy.url, server.store_params))
    await replica.start()
    yield replica
    await replica.stop()
