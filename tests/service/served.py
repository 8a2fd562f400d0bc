"""A running service for tests: a real store, a real server, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop
from pydantic import SecretStr

from service.embedded import EmbeddedStore
from service.main import Application, create_app
from service.process import ReplicaServer
from service.report import Reporter
from service.settings import Settings

NDJSON = {"content-type": "application/x-ndjson"}


class Served:
    """One replica under uvicorn, in a thread.

    Attributes
    ----------
    http : httpx.Client
    app : Application
    """

    def __init__(self, store_url: str, **settings: Any) -> None:
        self.settings = Settings(redis_url=SecretStr(store_url), host="127.0.0.1", port=0, **settings)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(120)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def live(self, model: str = "default") -> Any:
        """The live model; only to be read, while nothing is learned."""
        return self.app.state.parts.replica.model(model).live

    def learned(self, model: str = "default") -> int:
        """How many events the model has learned, as the service says."""
        return self.http.get(f"/models/{model}/stats").json()["learned"]

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
def store(path: Path) -> Iterator[str]:
    """A Valkey server; its URL."""
    with EmbeddedStore(path, appendfsync="everysec") as url:
        yield url


@contextmanager
def served(path: Path, **settings: Any) -> Iterator[Served]:
    """A service with a store of its own."""
    with store(path) as url:
        service = Served(url, **settings)
        service.start()
        try:
            yield service
        finally:
            service.stop()
