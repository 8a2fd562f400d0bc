"""A wire between a process and its store that can be cut, held and slowed: a proxy from one unix socket to another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

CHUNK = 65_536

State = Literal["open", "refusing", "holding"]


class Wire:
    """Forwards every connection to ``target``, in a thread of its own.

    Parameters
    ----------
    path : Path
        The socket to listen on.
    target : Path
        The socket behind it; may be changed for connections to come, as in a failover.

    Attributes
    ----------
    state : ``open`` | ``refusing`` | ``holding``
        Refusing: connections are closed as they come. Holding: nothing gets through, and nothing is closed.
    delay : float
        Seconds that each chunk is held back, in either direction.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.target = target
        self.state: State = "open"
        self.delay = 0.0
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"wire {path.name}", daemon=True)
        self._thread.start()
        started.wait(10)

    @property
    def url(self) -> str:
        """Where a client reaches the store through the wire."""
        return f"unix://{self.path}"

    def cut(self, state: State = "open") -> None:
        """End all connections that there are, and be in this state from then on."""
        self.state = state
        self._there(lambda: [connection.cancel() for connection in self._connections])

    def close(self) -> None:
        """End everything."""
        self.state = "refusing"
        self._there(self._stop.set)
        self._thread.join(10)
        self.path.unlink(missing_ok=True)

    def _there(self, what: Callable[[], object]) -> None:
        """Do something in the wire's own thread, and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        server = await asyncio.start_unix_server(self._connection, self.path)
        started.set()
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)  # what was accepted a moment ago begins
        while connections := list(self._connections):
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0.01)  # an aborted connection is closed a turn later

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)  # also if it is cancelled while it ends
        there: asyncio.StreamWriter | None = None
        pumps: list[asyncio.Task[None]] = []
        try:
            if self.state != "refusing":
                back, there = await asyncio.open_unix_connection(self.target)
                pumps = [
                    asyncio.create_task(self._pump(reader, there)),
                    asyncio.create_task(self._pump(back, writer)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.transport.abort()
            if there is not None:
                there.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.state == "holding":  # noqa: ASYNC110  another thread changes it
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
