"""``make run`` of the first page: it serves, what it says to try works, and Ctrl-C ends it."""

import json
import os
import signal
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from abound.processes.lifetime import dies_with_parent
from benchmarks.serving import free_port
from tests.documents.blocks import ROOT, block_of
from tests.support.job_worker import until


def test_what_the_first_page_says_to_start_serves_and_ends(tmp_path: Path) -> None:
    commands = [command.text.partition(" # ")[0].strip() for command in block_of(__file__).commands]
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    assert commands == [f"git clone {repository} && cd {repository.rpartition('/')[2]}", "make run"]
    if subprocess.run(["make", "-q", ".venv/.installed"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("the environment is not the one that make would make")
    port = str(free_port())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ABOUND_", "MAKE", "MFLAGS"))}
    said, dies = tmp_path / "said", dies_with_parent()

    def begin() -> None:
        dies()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell may start tests without it

    with said.open("wb") as output:
        process = subprocess.Popen(
            commands[-1].split(),
            cwd=ROOT,
            env=kept | {"PORT": port, "ABOUND_DATA_DIR": str(tmp_path / "data")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=begin,
        )
    try:
        until(lambda: is_ready(process, f"http://127.0.0.1:{port}", said), 120)
        tried = [line.strip() for line in said.read_text().splitlines() if line.startswith(("  .venv/", "  curl "))]
        assert len(tried) == 5, said.read_text()
        answers = [subprocess.check_output(["sh", "-c", line], cwd=ROOT) for line in tried]
        _, learned, ranked = map(json.loads, answers[2:])
        assert learned["applied"] is True
        assert [one["label"] for one in ranked["labels"]] == ["warranty"]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT, said.read_text()  # make's own end, behind that of what it ran
        assert said.read_text().splitlines()[-1] == "abound: stopped"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_ready(process: subprocess.Popen[bytes], url: str, said: Path) -> bool:
    assert process.poll() is None, said.read_text()
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    return False
