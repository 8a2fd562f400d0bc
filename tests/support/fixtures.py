"""What most tests of the service need: a store, one that may be killed, replicas, an artifact store beside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.replica.replica import Replica, ReplicaParams
from abound.store.client import Store
from abound_core.model.live_model import warmup
from tests.support.lab import Lab
from tests.support.valkey import Server

StartReplica = Callable[..., Awaitable[Replica]]


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(_server: Server) -> Server:
    """The server that most tests share, empty."""
    with _server.client() as client:
        client.flushall()
    return _server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may kill."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
async def store(server: Server) -> AsyncIterator[Store]:
    store = Store(server.url, server.store_params)
    yield store
    await store.close()


@pytest.fixture
async def artifacts(store: Store, tmp_path: Path) -> ArtifactStore:
    """The artifact store of the shared store."""
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    await artifacts.join(store)
    return artifacts


@pytest.fixture
async def start_replica() -> AsyncIterator[StartReplica]:
    """Start replicas; they are stopped at the end of the test."""
    warmup()
    async with AsyncExitStack() as stack:

        async def start(
            server: Server, params: ReplicaParams | None = None, artifacts: ArtifactStore | None = None
        ) -> Replica:
            replica = Replica(Store(server.url, server.store_params), params, artifacts)
            await replica.store.check()
            await replica.start()
            stack.push_async_callback(replica.stop)
            return replica

        yield start


@pytest.fixture
async def lab(server: Server, tmp_path: Path) -> AsyncIterator[Lab]:
    """A store and an artifact store, from which replicas are started; they are stopped at the end of the test."""
    warmup()
    lab = Lab(server, tmp_path / "artifacts")
    await lab.open()
    yield lab
    await lab.close()
