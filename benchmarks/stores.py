"""Stores for programs that mistreat them: a server with its files, and a primary with a copy that can replace it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import redis

from abound.processes.embedded_store import server_program
from abound.processes.lifetime import dies_with_parent

PATIENCE = 30.0


class StoreServer:
    """One Valkey server in a directory of its own, which outlives its process.

    Parameters
    ----------
    directory : Path
    port : int
        On loopback, for a copy of it; 0: only the unix socket.
    settings : str
        Further settings, as in its configuration file.
    """

    def __init__(self, directory: Path, port: int = 0, **settings: str) -> None:
        self.directory = directory
        self.port = port
        self.socket = directory / "s"
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", "repl-diskless-sync-delay": "0"}
        self.settings |= settings
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def launch(self, copy_of: int | None = None) -> None:
        """Start the process, as a copy of the server on the port ``copy_of`` if there is one, and return at once."""
        words = [server_program(), "--dir", str(self.directory), "--unixsocket", str(self.socket)]
        words += ["--bind", "127.0.0.1", "--port", str(self.port)]
        for name, value in self.settings.items():
            words += [f"--{name}", *(value.split() or [""])]
        if copy_of is not None:
            words += ["--replicaof", "127.0.0.1", str(copy_of)]
        with (self.directory / "log").open("ab") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=output, preexec_fn=dies_with_parent())

    def until_answering(self) -> None:
        """Wait until it has loaded its data."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.exceptions.RedisError), self.client() as client:
                client.ping()
                return
            if self.pid is None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"a store does not start: {(self.directory / 'log').read_text()[-2000:]}")

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2, socket_timeout=1.0)

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()

    def replication(self) -> dict[str, object]:
        """What it says of its replication; empty when it does not answer."""
        try:
            with self.client() as client:
                said: dict[str, object] = client.info("replication")
                return said
        except redis.exceptions.RedisError:
            return {}


class Pair:
    """A primary and a copy of it; ``fail_over`` lets them change places.

    Attributes
    ----------
    primary, copy : StoreServer
        As they are now.
    """

    def __init__(self, directory: Path, ports: tuple[int, int], **settings: str) -> None:
        self.primary, self.copy = (StoreServer(directory / f"store{i}", ports[i], **settings) for i in (0, 1))
        self._note = directory / "primary"
        if self._note.exists() and self._note.read_text() == self.copy.directory.name:
            self.primary, self.copy = self.copy, self.primary

    def start(self) -> None:
        if self.primary.pid is None:
            self.primary.launch()
            self.primary.until_answering()
        if self.copy.pid is None:
            self.copy.launch(self.primary.port)

    @property
    def in_step(self) -> bool:
        """Whether the copy is one that may be promoted: connected, and through with its first transfer."""
        said = self.copy.replication()
        return (
            said.get("role") == "slave"
            and said.get("master_link_status") == "up"
            and not said.get("master_sync_in_progress")
        )

    def until_in_step(self) -> None:
        """Wait until the copy is in step."""
        deadline = time.monotonic() + PATIENCE
        while not self.in_step:
            if time.monotonic() > deadline:
                raise RuntimeError("the copy of the store does not come into step")
            time.sleep(0.02)

    def promote(self) -> None:
        """End the primary and promote the copy, which must be in step; the other one is started again by ``start``."""
        self.primary.kill()
        with self.copy.client() as client:
            client.replicaof("NO", "ONE")
        self.primary, self.copy = self.copy, self.primary
        self._note.write_text(self.primary.directory.name)

    def close(self) -> None:
        self.primary.kill()
        self.copy.kill()
