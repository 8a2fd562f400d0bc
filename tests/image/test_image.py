"""The image, with a read-only root as the compose file runs it: ready in seconds, and nothing compiles.

It takes the image ``abound`` that ``make image BUILDER=buildah`` has built, where there is one of this very code.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from abound.processes.lifetime import dies_with_parent
from benchmarks.serving import free_port
from tests.image.test_kernels import SAVED
from tests.support.job_worker import until
from tests.support.served import NDJSON, ndjson

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/abound"
READY_SECONDS = 120.0
"""Far more than it takes, for machines that are busy."""

AS_A_CONTAINER = """
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
mount -t tmpfs -o mode=1777 tmpfs "$2/tmp"
mount -t tmpfs -o mode=0755,uid=$3 tmpfs "$2/data"
mount -t proc proc "$2/proc"
mount --bind /dev "$2/dev"
root="$2" user="$3"
shift 3
exec chroot --userspec="$user:$user" "$root" /usr/bin/env -i "$@"
"""


def buildah(*words: str) -> str:
    return subprocess.run(["buildah", *words], capture_output=True, text=True, check=True).stdout.strip()


def code_of(top: Path) -> dict[Path, bytes]:
    paths = [path for folder in ("core", "service") for path in (top / folder).rglob("*") if path.is_file()]
    return {path.relative_to(top): path.read_bytes() for path in paths if "__pycache__" not in path.parts}


@dataclass
class Running:
    url: str
    process: subprocess.Popen[bytes]
    output: Path
    config: dict[str, Any]

    def said(self) -> str:
        return self.output.read_text(errors="replace")


@pytest.fixture(scope="module")
def container() -> Iterator[tuple[Path, dict[str, Any]]]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if subprocess.run(["buildah", "inspect", "--type", "image", IMAGE], capture_output=True).returncode:
        pytest.skip(f"there is no image {IMAGE}: make image BUILDER=buildah")
    name = buildah("from", "--pull-never", IMAGE)
    try:
        root = Path(buildah("mount", name))
        if code_of(ROOT) != code_of(root / "opt/abound/app"):
            pytest.skip(f"the image {IMAGE} has other code: make image BUILDER=buildah")
        yield root, json.loads(buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    finally:
        buildah("rm", name)


@pytest.fixture(scope="module")
def running(container: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root, config = container
    port, folder = free_port(), tmp_path_factory.mktemp("container")
    (folder / "root").mkdir()
    words = ["unshare", "--mount", "sh", "-c", AS_A_CONTAINER, "sh", str(root), str(folder / "root"), "10001"]
    words += [*config["Env"], "NUMBA_DEBUG_CACHE=1", "ABOUND_HOST=127.0.0.1", f"ABOUND_PORT={port}"]
    words += ["sh", "-c", f'cd {config["WorkingDir"]}; exec "$@"', "sh", *config["Entrypoint"], *config["Cmd"]]
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*words, "--no-worker"], stdout=file, stderr=file, stdin=subprocess.DEVNULL, preexec_fn=dies_with_parent()
        )
    made = Running(f"http://127.0.0.1:{port}", process, output, config)
    try:
        until(lambda: is_ready(made), READY_SECONDS)
        yield made
    finally:
        process.kill()
        process.wait()


def is_ready(running: Running) -> bool:
    assert running.process.poll() is None, running.said()[-3000:]
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{running.url}/readyz", timeout=2).status_code == 200
    return False


def test_it_is_ready_and_nothing_compiles(running):
    with httpx.Client(base_url=running.url, timeout=30) as http:
        learned = http.post("/learn", json={"text": "wheat rises", "features": {"a": ["b"]}, "labels": ["grain"]})
        assert learned.status_code == 200, learned.text
        lines = ndjson(*({"text": f"word{i}", "labels": [f"label{i % 9}"]} for i in range(300)))
        assert http.post("/learn", content=lines, headers=NDJSON).status_code == 200
        http.put("/models/other", json={"update": "sls", "max_features": 5}).raise_for_status()
        for text in ("a b c", "d e f"):
            http.post("/models/other/learn", json={"text": text, "labels": ["x"]}).raise_for_status()
        for ask in ({}, {"explain": True}, {"include": ["grain"]}, {"threshold": 0.1}):
            http.post("/classify", json={"text": "wheat", **ask}).raise_for_status()
        assert http.get("/models/default").json()["digest"]
    said = running.said()
    assert "data loaded from '/tmp/kernels/" in said
    assert SAVED not in said


def test_its_root_cannot_be_written_and_its_user_is_nobody_special(running):
    mounts = Path(f"/proc/{running.process.pid}/mounts").read_text().splitlines()
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts}
    root = next(path for path in options if path == "/" or path.endswith("/root"))
    assert "ro" in options[root]
    assert f"Uid:\t{10001}" in Path(f"/proc/{running.process.pid}/status").read_text()
    assert running.config["User"] == "10001:10001"


def test_it_brings_nothing_that_builds(container):
    root, _ = container
    assert not list(root.glob("opt/abound/venv/lib/python3*/site-packages/pip"))
    assert not (root / "opt/abound/app/tests").exists()
    assert list((root / "opt/abound/kernels").rglob("*.nbc"))


def test_it_ends_in_order(running):
    """Last: nothing runs after it."""
    assert running.config["StopSignal"] == "SIGTERM"
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
