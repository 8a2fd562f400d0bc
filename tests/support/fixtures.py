"""What most tests of the service need: a store, one that may be killed, replicas, an artifact store, a service."""

import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.replica.replica import Replica, ReplicaParams
from abound.store.client import Store
from abound_core.model.live_model import warmup
from benchmarks.serving import free_port
from tests.support.lab import Lab
from tests.support.served import Served, served
from tests.support.valkey import Server

StartReplica = Callable[..., Awaitable[Replica]]
StartServer = Callable[..., Server]


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
def start_server() -> Iterator[StartServer]:
    """Start servers with settings of the test's own; they end after its replicas."""
    with ExitStack() as stack:

        def start(binary: str | None = None, **settings: str) -> Server:
            if binary is not None and shutil.which(binary) is None:
                pytest.skip(f"there is no {binary} here")
            server = Server(binary, **settings)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def own_server(start_server: StartServer) -> Server:
    """A server that a test may kill."""
    return start_server()


@pytest.fixture
def servers(start_server: StartServer) -> tuple[Server, Server]:
    """A server and a copy of it that has all that the server has."""
    at_once, ports = {"repl-diskless-sync-delay": "0"}, (free_port(), free_port())
    primary = start_server(port=str(ports[0]), **at_once)
    copy = start_server(port=str(ports[1]), replicaof=f"127.0.0.1 {ports[0]}", **at_once)
    deadline = time.monotonic() + 60
    with primary.client() as client:
        while client.info("replication").get("slave0", {}).get("state") != "online":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    until_copied(primary)
    return primary, copy


def until_copied(primary: Server) -> None:
    with primary.client() as client:
        client.set("written", "and copied")
        while not client.wait(1, 100):
            pass


@pytest.fixture
async def store(server: Server) -> AsyncIterator[Store]:
    store = Store(server.url, server.store_params)
    yield store
    await store.close()


@pytest.fixture
async def artifacts(store: Store, tmp_path: Path) -> ArtifactStore:
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    await artifacts.join(store)
    return artifacts


@pytest.fixture
async def start_replica(start_server: StartServer) -> AsyncIterator[StartReplica]:
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
    async with Lab(server, tmp_path / "artifacts") as lab:
        yield lab


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for each file, with the file's ``SETTINGS`` and, if it ``HAS_ARTIFACTS``, an artifact store."""
    settings = getattr(request.module, "SETTINGS", {})
    if getattr(request.module, "HAS_ARTIFACTS", False):
        settings = settings | {"artifacts_url": str(tmp_path_factory.mktemp("artifacts"))}
    with served(**settings) as service:
        yield service
