"""The process of a replica: ``python -m abound.api.server --fd FD --status FD``, started by the supervisor.

It checks the store, loads the kernels and creates the application. Once the application has caught up with the
log, the process accepts connections from the inherited socket. On SIGTERM it finishes the requests in progress
and exits with code 0. When it refuses to start, it writes the reason to the status pipe and exits with
``REFUSED``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from abound.api.protocol import STALL_CHECK_SECONDS, ClientConnection
from abound.history import high_water
from abound.processes import child_main
from abound.processes.startup_page import BACKLOG
from abound.processes.status_pipe import Report, Reporter
from abound.security import key_store
from abound.settings import MIB, Settings, is_loopback
from abound.store.client import Store, StoreParams
from abound_core.errors import CannotStart, StoreUnavailable

if TYPE_CHECKING:
    from abound.api.app import Application


READINESS_CHECK_SECONDS = 0.25  # between two looks at ``/readyz``

MAX_HEAD_BYTES = 65_536  # of a request; a key and what proxies add take a few KiB
MAX_CONNECTIONS = 10_000  # of clients; each takes a file descriptor and buffers


class ReplicaServer(uvicorn.Server):
    """uvicorn's server for an application that has already started; ``serve`` handles the signals."""

    def __init__(self, app: Application, settings: Settings, reporter: Reporter) -> None:
        from abound.datasets.repository import DatasetParams

        # These bounds are on the bytes of a request, for chunks take more than the body. Routes bound the body itself.
        connection = ClientConnection.with_bounds(
            MAX_HEAD_BYTES,
            2 * max(settings.max_body_bytes, settings.max_ndjson_bytes) + MIB,
            MAX_CONNECTIONS,
            app.fast_path,
            import_bytes=2 * settings.max_import_bytes + MIB,
            dataset_bytes=2 * settings.group(DatasetParams).max_bytes + MIB,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=settings.keep_alive_seconds,
                # uvicorn takes whole seconds
                timeout_graceful_shutdown=max(1, round(settings.stop_seconds)),
            )
        )
        self._app = app
        self._reporter = reporter
        self._unready: str | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handling to ``serve``."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Objects that exist now live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._unready = self._app.unready_reason()
        self._reporter.send(Report(stage="ready", progress=1.0, ready=True, unready=self._unready or ""))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._reporter.send(Report(stage="stopping", ready=False))
        self._app.state.stopping = True
        await super().shutdown(sockets)

    async def report_readiness(self) -> None:
        """Report every change of ``/readyz`` between 200 and 503."""
        while True:
            await asyncio.sleep(READINESS_CHECK_SECONDS)
            unready = self._app.unready_reason()
            if (unready is None) != (self._unready is None):
                self._unready = unready
                self._reporter.send(Report(unready=unready or ""))

    async def close_stalled_connections(self) -> None:
        while True:
            await asyncio.sleep(STALL_CHECK_SECONDS)
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection):
                    connection.close_if_stalled()


async def serve(settings: Settings, listening: socket.socket, reporter: Reporter) -> bool:
    """Run one replica until SIGTERM or SIGINT. Return False if it ends because a part of the replica has crashed."""
    from abound.api.app import create_app

    app = create_app(settings, report=reporter)
    server = ReplicaServer(app, settings, reporter)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    crash = app.state.parts.replica.crashed
    async with app.router.lifespan_context(app):
        reporter("opening the port", 0.0)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        looking = asyncio.create_task(server.close_stalled_connections())
        telling = asyncio.create_task(server.report_readiness())
        stopped = asyncio.create_task(stop.wait())
        crashed = asyncio.create_task(crash.wait())
        await asyncio.wait([serving, looking, telling, stopped, crashed], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and settings.drain_seconds:
            app.state.draining = True
            await asyncio.wait([serving], timeout=settings.drain_seconds)
        server.should_exit = True
        for task in (looking, telling, stopped, crashed):
            task.cancel()
        await serving
    return not crash.is_set()


async def check_store(settings: Settings) -> None:
    """Raise CannotStart when the store is unsafe or has lost data, or the service is exposed without a key.

    This check precedes everything that takes long. The error says how to fix the problem.
    """
    store = Store(settings.store_url(), settings.group(StoreParams))
    try:
        await store.check()
        await high_water.check(settings, store)
        if not is_loopback(settings.host):
            try:
                kept = await key_store.read(store)
            except StoreUnavailable as error:
                raise CannotStart(f"the keys cannot be read: {error}") from error
            settings.check_exposure(has_keys=bool(kept.keys or kept.damaged))
    finally:
        await store.close()


def main() -> int:
    words = child_main.parser("api.server", __doc__)
    words.add_argument("--fd", type=int, required=True, help="the inherited listening socket")
    options = words.parse_args()
    listening = socket.socket(fileno=options.fd)
    listening.set_inheritable(False)

    def work(settings: Settings, reporter: Reporter) -> None:
        reporter("checking the store", 0.0)
        uvloop.run(check_store(settings))
        child_main.load_kernels(reporter, first=True)
        if not uvloop.run(serve(settings, listening, reporter)):
            sys.exit(1)  # the supervisor starts the process again

    return child_main.run("process", options.status, work)


if __name__ == "__main__":
    sys.exit(main())
