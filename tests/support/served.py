"""A running service for tests: a real store, a real server, in a thread of the test's process."""

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvloop
from pydantic import SecretStr

from abound.api.app import Application, create_app
from abound.api.server import ReplicaServer
from abound.processes import kernel_compiler
from abound.processes.status_pipe import Reporter
from abound.replica import model_directory
from abound.security import key_store
from abound.security.key import CreatedKey, KeyTerms
from abound.settings import Settings
from abound.store.client import Store
from tests.support.valkey import Server

NDJSON = {"content-type": "application/x-ndjson"}

CATALOG_SECONDS = 10.0
"""How long requests wait for the catalog in the store: a slow machine is no outage."""


class Served:
    """One replica under uvicorn, in a thread; ``server`` is its store."""

    def __init__(self, server: Server, listen_on: str = "127.0.0.1", **settings: Any) -> None:
        self.server = server
        self.settings = Settings(redis_url=SecretStr(server.url), host=listen_on, port=0, **settings)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        kernel_compiler.load()  # as the process of a replica does
        self._catalog_seconds = model_directory.CATALOG_SECONDS
        model_directory.CATALOG_SECONDS = CATALOG_SECONDS
        self._thread.start()
        self._ready.wait(120)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        model_directory.CATALOG_SECONDS = self._catalog_seconds
        self._listening.close()
        assert not self._thread.is_alive()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """What a request gives that succeeds."""
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def live(self, model: str = "default") -> Any:
        """The live model; only to be read, while nothing is learned."""
        return self.app.state.parts.replica.model(model).live

    def learned(self, model: str = "default") -> int:
        """How many events the model has learned, as the service says."""
        return int(self.http.get(f"/models/{model}/stats").json()["learned"])

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.app: Application = create_app(self.settings)
        async with self.app.router.lifespan_context(self.app):
            server = ReplicaServer(self.app, self.settings, Reporter(None))
            serving = asyncio.create_task(server.serve(sockets=[self._listening]))
            while not server.started:  # noqa: ASYNC110  the server has no event for it
                await asyncio.sleep(0.005)
            self._ready.set()
            await self._stop.wait()
            server.should_exit = True
            await serving


@contextmanager
def served(**settings: Any) -> Iterator[Served]:
    """A service with a store of its own."""
    server = Server()
    try:
        service = Served(server, **settings)
        service.start()
        try:
            yield service
        finally:
            service.stop()
    finally:
        server.close()


def on_store(server: Server, work: Callable[[Store], Any]) -> Any:
    """What some work with a store gives."""

    async def run() -> Any:
        store = Store(server.url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def make_key(service: Served, *scopes: str, **terms: Any) -> CreatedKey:
    """A key that the service has taken up."""
    made: CreatedKey = on_store(service.server, lambda store: key_store.create(store, KeyTerms(scopes, **terms)))
    deadline = time.monotonic() + 60
    while not (
        service.http.get("/models").status_code == 401
        and service.http.get("/models", headers=bearer(made)).status_code != 401
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return made


def bearer(made: CreatedKey) -> dict[str, str]:
    return {"authorization": f"Bearer {made.secret}"}


_numbers = itertools.count(1)


def fresh_model(service: Served, **config: Any) -> str:
    name = f"m{next(_numbers)}"
    answer = service.http.put(f"/models/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def problem(answer: httpx.Response, status: int, kind: str | None = None, field: str | None = None) -> dict[str, Any]:
    """The problem document of an answer, checked for what all of them have."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/problem+json"
    return checked_problem(answer.json(), status, kind, field) | {"id": answer.headers["x-request-id"]}


def checked_problem(
    document: dict[str, Any], status: int, kind: str | None = None, field: str | None = None
) -> dict[str, Any]:
    assert document["status"] == status, document
    assert document["type"].startswith("/problems/")
    assert document["title"]
    assert document["detail"]
    assert document["request_id"]
    if kind is not None:
        assert document["type"] == f"/problems/{kind}", document
    if field is not None:
        assert document.get("field") == field, document
    return document


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.content.splitlines()]


def ndjson(*instances: Any) -> bytes:
    return b"".join(json.dumps(instance).encode() + b"\n" for instance in instances)
