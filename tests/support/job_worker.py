"""A worker in a process of its own, and the service that it works for."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from abound.jobs.methods import METHODS
from abound.jobs.record import JOBS
from abound.processes.lifetime import dies_with_parent
from abound.state.schedule import WORKERS_KEY
from benchmarks.serving import tree
from tests.support.job_program import TEST_METHODS
from tests.support.served import Served
from tests.support.valkey import Server


class WorkerProcess:
    """``tests.support.job_program`` for one store."""

    def __init__(self, server: Server, artifacts: Path, **variables: str) -> None:
        self.server = server
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")},
            "ABOUND_LOG_LEVEL": "warning",
            "ABOUND_REDIS_URL": server.url,
            "ABOUND_ARTIFACTS_URL": str(artifacts),
            **variables,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it says that it is there."""
        assert self.process is None or self.process.poll() is not None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.job_program"],
            env=self.environment,
            start_new_session=True,
            preexec_fn=dies_with_parent(),
        )
        name = f"-{self.process.pid}".encode()
        with self.server.client() as client:
            until(lambda: any(one.endswith(name) for one in client.hkeys(WORKERS_KEY)), 120)

    def kill(self) -> None:
        """SIGKILL, as a lack of memory or a power cut would."""
        assert self.process is not None
        below = tree(self.process.pid)[1:]
        self.process.kill()
        self.process.wait()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to it in time"
        time.sleep(0.02)
    return found


def until_worker(url: str) -> None:
    """Wait until a snapshot can be made: a service is ready before its worker."""
    until(lambda: httpx.post(f"{url}/models/default/snapshots", timeout=300).status_code != 503, 300)


class Office:
    """A service, and a worker that can be started, for methods that only tests have."""

    def __init__(self, service: Served, artifacts: Path, worker: WorkerProcess) -> None:
        self.service, self.artifacts, self.worker = service, artifacts, worker
        self.http = service.http

    def submit(self, method: str, model: str = "default", **params: Any) -> str:
        answer = self.http.post("/jobs", json={"method": method, "model": model, "params": params})
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ended(self, job_id: str, seconds: float = 60.0) -> dict[str, Any]:
        return dict(until(lambda: (job := self.job(job_id))["ended"] is not None and job, seconds))

    def at_work(self, job_id: str, stage: str = "step", progress: float = 0.0) -> dict[str, Any]:
        """The job once it says that it is in this stage, and so far at least."""

        def is_there() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["ended"] is None, job
            return job if stage in (job["stage"] or "") and job["progress"] >= progress else None

        return dict(until(is_there))

    def files(self) -> list[str]:
        """What is in the artifact store besides its marker and its high-water marks, also while they are written."""
        found = [path for path in self.artifacts.rglob("*") if path.is_file()]
        names = [str(path.relative_to(self.artifacts)).partition("/")[2] for path in found]
        return sorted(name for name in names if name not in ("abound.json", "high-water.json") and name[0] != ".")

    def clear(self) -> None:
        for path in self.artifacts.rglob("part-*"):
            path.unlink()


@contextmanager
def office(**variables: str) -> Iterator[Office]:
    """A service with a store and an artifact store of its own; its worker is not started."""
    before = dict(METHODS)
    METHODS.update(TEST_METHODS)
    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="abound-") as directory:
            artifacts = Path(directory, "artifacts")
            service = Served(server, artifacts_url=str(artifacts))
            worker = WorkerProcess(server, artifacts, **variables)
            service.start()
            try:
                yield Office(service, artifacts, worker)
            finally:
                worker.close()
                service.stop()
    finally:
        server.close()
        METHODS.clear()
        METHODS.update(before)


def forget_jobs(server: Server) -> None:
    with server.client() as client:
        for key in client.scan_iter(match=f"{JOBS}:*"):
            client.delete(key)
