"""The fleet: everything that runs in the program, each part where it can be hurt by itself.

clients -> nginx -> 3 x abound serve -> a wire each -> the store -> a copy of it
                    abound worker    -> a wire      /
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from abound.log.catalog import DEFAULT_MODEL, Catalog
from abound.processes.lifetime import dies_with_parent
from benchmarks.balancer import Balancer
from benchmarks.serving import free_port, tree
from benchmarks.stores import Pair
from benchmarks.wire import Wire

SERVES = 3

ENVIRONMENT = {
    "ABOUND_DURABILITY": "replica",
    "ABOUND_STORE_REPLY_SECONDS": "2",
    "ABOUND_STORE_START_SECONDS": "30",
    "ABOUND_STOP_SECONDS": "3",
    "ABOUND_SNAPSHOTS_EVERY_BYTES": "131072",
}
"""So that what a program cannot wait for comes soon, and a snapshot is nearly always being made."""

ARTIFACTS = "artifacts"

CALM_SECONDS = 120.0

FIRST_SECONDS = 600.0
"""The first start on a machine compiles the kernels."""


class Program:
    """One of our own processes, on a wire of its own."""

    def __init__(self, name: str, words: list[str], wire: Wire, directory: Path, port: int = 0) -> None:
        self.name = name
        self.wire = wire
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self._words = [sys.executable, "-m", "abound", *words]
        self._output = directory / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")}
        self._environment = (
            kept
            | ENVIRONMENT
            | {
                "ABOUND_REDIS_URL": wire.url,
                "ABOUND_DATA_DIR": str(directory / name),
                "ABOUND_ARTIFACTS_URL": str(directory / ARTIFACTS),
            }
        )

    @property
    def runs(self) -> bool:
        """Whether it does."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it unless it runs."""
        if not self.runs:
            with self._output.open("ab") as output:
                self.process = subprocess.Popen(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                    preexec_fn=dies_with_parent(),
                )

    def pids(self) -> list[int]:
        """Its processes, the first its parent."""
        return tree(self.process.pid) if self.process is not None and self.runs else []

    def signal(self, number: signal.Signals, inner: bool = False) -> None:
        """Send a signal to all its processes; with ``inner`` only to those that it started."""
        for pid in self.pids()[1 if inner else 0 :]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL and not inner and self.process is not None:
            self.process.wait()

    def ready(self) -> bool:
        """Whether a replica here is ready and connected to the log."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["log"] == "connected"


class Fleet:
    """All parts, started and stopped together.

    Parameters
    ----------
    directory : Path
        Holds everything; a fleet that is started on it again goes on from what is there.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.artifacts = directory / ARTIFACTS
        self.stores = Pair(directory, (free_port(), free_port()))
        wires = [Wire(directory / f"w{i}", self.stores.primary.socket) for i in range(SERVES + 1)]
        ports = [free_port() for _ in range(SERVES)]
        self.serves = [
            Program(
                f"serve{i}",
                ["serve", "--port", str(port), "--no-worker", "--data-dir", str(directory / f"serve{i}")],
                wire,
                directory,
                port,
            )
            for i, (port, wire) in enumerate(zip(ports, wires, strict=False))
        ]
        self.worker = Program("worker", ["worker"], wires[SERVES], directory)
        self.balancer = Balancer(directory / "nginx", free_port(), ports)

    @property
    def programs(self) -> list[Program]:
        """The processes of ours."""
        return [*self.serves, self.worker]

    def program(self, name: str) -> Program:
        """One of them by its name."""
        return next(program for program in self.programs if program.name == name)

    def start(self) -> None:
        """Start whatever does not run."""
        self.stores.start()
        for program in self.programs:
            program.wire.target = self.stores.primary.socket
            program.start()
        self.balancer.start()

    def fail_over(self) -> str:
        """Let the copy take the place of the primary, which is killed; the last entry that has come over.

        Nobody reaches a store meanwhile, and answers that are on their way get to whom they are for.
        """
        for program in self.programs:
            program.wire.cut("refusing")
        self.stores.promote()
        with self.stores.primary.client() as client:
            last = client.xrevrange(default_log(client), count=1)
        time.sleep(0.3)
        for program in self.programs:
            program.wire.target = self.stores.primary.socket
            program.wire.state = "open"
        return last[0][0].decode() if last else "0-0"

    def calm(self, patience: float = CALM_SECONDS) -> None:
        """Wait until all replicas are ready and connected, and the copy is in step; RuntimeError if that takes long."""
        deadline = time.monotonic() + patience
        while not all(program.ready() for program in self.serves) or not self.stores.in_step:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the fleet does not come back: {self.state()}")
            for program in self.programs:
                program.start()
            time.sleep(0.05)

    def state(self) -> str:
        """How each part does, for people."""
        said = {program.name: program.ready() for program in self.serves}
        return json.dumps(said | {"worker": self.worker.runs, "copy": self.stores.in_step})

    def close(self) -> None:
        """End everything: the processes of ours in order, what is left at once."""
        for program in self.programs:
            program.signal(signal.SIGCONT)
            if program.process is not None and program.runs:
                program.process.terminate()
        for program in self.programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if program.process is not None:
                    program.process.wait(20)
            program.signal(signal.SIGKILL)
        self.balancer.kill()
        for program in self.programs:
            program.wire.close()
        self.stores.close()


def default_log(client: object) -> bytes:
    """The key of the default model's log, as the catalog names it; the model is never deleted here."""
    catalog = Catalog()
    for name, fields in client.xrange("abound:catalog"):  # type: ignore[attr-defined]
        catalog.apply((name, [part for field in fields.items() for part in field]))
    living = catalog.get(DEFAULT_MODEL)
    return b"none" if living is None else living.keys.log
