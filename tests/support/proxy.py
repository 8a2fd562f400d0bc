"""A proxy between the service and its store that loses replies or cuts the wire when a test says so."""

import asyncio
from pathlib import Path


class Proxy:
    """Forwards a unix socket; it cuts the connection behind the next command with ``lose_replies_to`` in it."""

    def __init__(self, path: Path, target: str) -> None:
        self.path = path
        self.target = target
        self.lose_replies_to: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.close()
            self._tasks.discard(task)
            return
        muted = asyncio.Event()
        back = asyncio.create_task(self._back(there_reader, writer, muted))
        try:
            while data := await reader.read(65_536):
                if self.lose_replies_to is not None and self.lose_replies_to in data:
                    self.lose_replies_to = None
                    muted.set()
                    there_writer.write(data)
                    await asyncio.sleep(0.1)
                    break
                there_writer.write(data)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            back.cancel()
            writer.transport.abort()
            there_writer.transport.abort()
            self._tasks.discard(task)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
        try:
            while data := await reader.read(65_536):
                if not muted.is_set():
                    writer.write(data)
            writer.close()
        except ConnectionError:
            writer.close()
