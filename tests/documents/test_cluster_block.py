"""The cluster of the page on scaling: each command a process of its own, on this machine, and a job that runs there."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from abound.processes.kernel_cache import set_cache_dir
from abound.processes.lifetime import dies_with_parent
from benchmarks.serving import free_port
from tests.documents.blocks import ROOT, block_of
from tests.documents.session import make_programs
from tests.scenarios.test_cluster import applied
from tests.support.served import served

pytest.importorskip("distributed")

QUIET = " --dashboard-address 127.0.0.1:0"
"""So that nothing listens but on loopback."""


def commands() -> list[str]:
    return [command.text.partition(" # ")[0].strip() for command in block_of(__file__).commands]


def test_the_extra_brings_what_a_cluster_needs_as_it_is_pinned() -> None:
    """Of pip nothing is installed here; what it would install is, at the versions that it is told."""
    [constraints, extra] = re.fullmatch(r"pip install -c (\S+) -e '\.\[(\w+)\]'", commands()[0]).groups()  # type: ignore[union-attr]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [one.partition(">")[0] for one in extras[extra]]
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / constraints).read_text(), re.MULTILINE))
    assert {name: importlib.metadata.version(name) for name in wanted} == {name: pinned[name] for name in wanted}


class Terminals:
    """Programs that go on, each in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        set_cache_dir()
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
        self.environment = kept | {
            "PATH": f"{make_programs(folder)}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "DASK_TEMPORARY_DIRECTORY": str(folder),
        }
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def said(self) -> str:
        return (self._folder / "said").read_text() if (self._folder / "said").exists() else ""

    def type(self, text: str) -> None:
        with (self._folder / "said").open("ab") as output:
            self._running.append(
                subprocess.Popen(
                    ["sh", "-c", text],
                    cwd=self._folder,
                    env=self.environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=dies_with_parent(),
                )
            )

    def until_said(self, pattern: str, times: int = 1) -> None:
        deadline = time.monotonic() + 120
        while len(re.findall(pattern, self.said)) < times:
            assert time.monotonic() < deadline, self.said
            self.all_alive()
            time.sleep(0.1)

    def all_alive(self) -> None:
        assert all(one.poll() is None for one in self._running), self.said

    def close(self) -> None:
        for number in (signal.SIGINT, signal.SIGKILL):
            for one in reversed(self._running):
                if one.poll() is None:
                    os.killpg(one.pid, number)
            for one in self._running:
                try:
                    one.wait(20)
                except subprocess.TimeoutExpired:
                    continue


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_job_runs_on_the_cluster_that_the_page_starts(terminals: Terminals, tmp_path: Path) -> None:
    port = str(free_port())
    scheduler, worker, abound = (text.replace("10.0.0.1", "127.0.0.1").replace("8786", port) for text in commands()[1:])
    terminals.type(scheduler + QUIET)
    terminals.until_said("Scheduler at:")
    for _ in range(2):
        terminals.type(worker + QUIET)
    terminals.until_said("Registered to:", 2)
    place_of_files = str(tmp_path / "artifacts")
    with served(artifacts_url=place_of_files) as service:
        http = service.http
        terminals.environment |= {"ABOUND_REDIS_URL": service.server.url, "ABOUND_ARTIFACTS_URL": place_of_files}
        terminals.type(abound)
        rows = [{"text": f"w{i % 7} w{i % 5} w{i % 3}", "labels": [f"l{i % 4}"]} for i in range(200)]
        http.post("/learn", json={"instances": rows}).raise_for_status()
        job = http.post("/jobs", json={"method": "one_vs_rest"})
        assert job.status_code == 202, job.text
        deadline = time.monotonic() + 120
        while (state := http.get(f"/jobs/{job.json()['id']}").json())["state"] in ("queued", "running"):
            assert time.monotonic() < deadline, terminals.said
            terminals.all_alive()
            time.sleep(0.1)
        assert state["state"] == "succeeded", state
        done = applied(f"dask://127.0.0.1:{port}")
        assert len(done) == 2
        assert sum(done.values()) > 0, "nothing was done on the cluster"
