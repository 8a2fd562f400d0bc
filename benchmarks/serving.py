"""A running service for programs that measure or mistreat one: started as a user would, ended gently or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

from abound.processes import lifetime

LISTENING = re.compile(r"listening on (http://\S+?),")


def tree(root: int) -> list[int]:
    """A process and all below it, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parent = int(stat[stat.rindex(")") + 1 :].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def free_port() -> int:
    """Return a free port of 127.0.0.1, below the range from which the system chooses ports."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Serving:
    """``abound serve`` on a free port, as a child process.

    Parameters
    ----------
    data_dir : Path
    options : str
        Further words of the command line.
    output : Path
        Where its standard error goes; appended to.
    """

    def __init__(self, data_dir: Path, *options: str, output: Path, environment: dict[str, str] | None = None) -> None:
        self.output = output
        self.began = time.monotonic()
        before = output.stat().st_size if output.exists() else 0
        command = [sys.executable, "-m", "abound", "serve", "--port", "0", "--data-dir", str(data_dir), *options]
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )
        try:
            self.url = self._listening(before)
        except BaseException:
            self.kill()
            raise

    def _listening(self, before: int, patience: float = 60.0) -> str:
        while time.monotonic() < self.began + patience:
            with self.output.open("rb") as file:
                file.seek(before)
                said = file.read().decode(errors="replace")
            if found := LISTENING.search(said):
                return found[1]
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended with exit code {self.process.returncode}:\n{said}")
            time.sleep(0.01)
        raise RuntimeError(f"the service does not listen:\n{said}")

    def until_ready(self, patience: float = 300.0) -> float:
        """Wait for ``/readyz``; seconds since the start."""
        while time.monotonic() < self.began + patience:
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended: {self.output.read_text()[-4000:]}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return time.monotonic() - self.began
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"the service is not ready: {self.output.read_text()[-4000:]}")

    def pids(self) -> list[int]:
        """The service's processes, the parent first: replicas, worker, store and whatever these have started."""
        return tree(self.process.pid)

    def kill(self) -> None:
        """Kill all processes and wait until they are gone: until then they hold the port."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(map(lifetime.start_time_of, pids)):
            time.sleep(0.005)

    def stop(self, patience: float = 60.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
