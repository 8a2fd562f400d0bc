"""What the image is built of, and how it tells that it is healthy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from abound.processes.lifetime import dies_with_parent
from benchmarks.serving import free_port
from tests.support.job_worker import until
from tests.support.valkey import Server
from tests.test_licences import PROJECT, closure

ROOT = Path(__file__).parents[2]


class Alive(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...


@pytest.mark.parametrize(
    ("command", "variable", "is_healthy"),
    [
        ("abound serve", True, True),
        ("abound serve --port {port}", False, True),
        ("abound serve --port={port}", False, True),
        ("docker-init -- entrypoint abound serve", True, True),
        ("abound serve", False, False),
        ("abound keys list", False, True),
    ],
)
def test_a_container_is_healthy_by_what_it_does(tmp_path: Path, command: str, variable: bool, is_healthy: bool) -> None:
    with HTTPServer(("127.0.0.1", 0), Alive) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        line = tmp_path / "cmdline"
        line.write_text("".join(f"{word}\0" for word in command.format(port=server.server_port).split()))
        environment = os.environ | {"ABOUND_PORT": str(server.server_port if variable else free_port())}
        words = [sys.executable, str(ROOT / "docker" / "health.py"), str(line)]
        # The check has a time limit of its own, and is repeated as that of a container is.
        until(lambda: (subprocess.run(words, env=environment).returncode == 0) is is_healthy)
        server.shutdown()
        thread.join()


def test_a_worker_is_healthy_while_its_event_loop_runs(server: Server, tmp_path: Path) -> None:
    """As in a container: the file that it touches is all that can be seen from outside."""
    line = tmp_path / "cmdline"
    line.write_text("python\0/opt/abound/venv/bin/abound\0worker\0")
    environment = os.environ | {"ABOUND_DATA_DIR": str(tmp_path), "ABOUND_REDIS_URL": server.url}

    def is_healthy() -> bool:
        words = [sys.executable, str(ROOT / "docker" / "health.py"), str(line)]
        return subprocess.run(words, env=environment, capture_output=True).returncode == 0

    assert not is_healthy(), "it has not begun"
    with subprocess.Popen(
        [sys.executable, "-m", "abound", "worker"], env=environment, preexec_fn=dies_with_parent()
    ) as worker:
        until(is_healthy, 240)
        worker.send_signal(signal.SIGSTOP)
        an_hour_ago = time.time() - 3600
        os.utime(tmp_path / "worker-alive", (an_hour_ago, an_hour_ago))
        assert not is_healthy()
        worker.send_signal(signal.SIGCONT)
        until(is_healthy, 240)
        worker.terminate()
        assert worker.wait(60) == 0


def required(*extras: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "docker" / "requirements.py"), *extras]
    return subprocess.run(words, capture_output=True, text=True)


def pins(lines: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"^(\S+)==(\S+)", lines, re.MULTILINE)}


def test_the_image_gets_the_extras_that_it_is_built_with() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG EXTRAS=$", text.partition("\nFROM ")[2].partition("\nFROM ")[0], re.MULTILINE)
    assert 'docker/requirements.py "$EXTRAS" > /tmp/requirements.txt' in text
    assert "--require-hashes -r /tmp/requirements.txt" in text
    plain = required("").stdout
    assert plain == required().stdout
    more = pins(required("s3,cluster").stdout).keys() - pins(plain).keys()
    assert {"distributed", "s3fs", "dask", "botocore"} <= more
    wrong = required("s4")
    assert wrong.returncode == 1
    assert "there is no extra s4" in wrong.stderr
    for extra in ("bench", "dev"):
        wrong = required(extra)
        assert wrong.returncode == 1
        assert re.search("docker/requirements.txt lacks .*: make lock", wrong.stderr)


@pytest.mark.parametrize("extra", ["", "approximate", "arrow", "cluster", "embed", "mcp", "s3"])
def test_the_image_has_the_versions_of_the_tests_and_all_that_they_need(extra: str) -> None:
    """Each with a hash, so pip takes nothing else."""
    text = required(extra).stdout
    entries = re.findall(r"^\S+==.*\n(?:    .*\n)+", text, re.MULTILINE)
    assert "".join(entries) == text
    assert all("--hash=sha256:" in one for one in entries)
    locked, tested = pins(text), pins((ROOT / "constraints.txt").read_text())
    assert {name: tested.get(name, version) for name, version in locked.items()} == locked
    declared = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    assert closure(declared).keys() <= locked.keys()


def test_the_image_has_a_user_by_number() -> None:
    """Kubernetes cannot tell that a user by name is not root."""
    final = (ROOT / "docker" / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.findall("^USER (.*)$", final, re.MULTILINE) == ["10001:10001"]


def test_the_image_gets_only_what_it_is_made_of() -> None:
    taken = set(re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    wanted = {part.split("/")[0] for line in taken for part in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == allowed
