"""The commands of the pages for Docker, where a daemon answers: the image with an extra, and what the compose file has.

They take minutes, the ports of the compose file, and a registry for the images that it names.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.documents.blocks import block_of
from tests.support.job_worker import until

ROOT = Path(__file__).parents[2]
UP = "docker compose -f docker/compose.yaml up --build"
URL = "http://127.0.0.1:8000"
STARTS_SECONDS = 1800.0
"""With the image to be built and the others to be fetched."""

OWN = os.environ | {"COMPOSE_PROJECT_NAME": "abound-of-the-tests"}
"""What somebody runs by the compose file is left alone."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"no Docker daemon answers: {asked.stderr.strip()}")


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    """What the README says to start, and its volumes gone at the end."""
    assert f"`{UP}`" in (ROOT / "README.md").read_text()
    started = subprocess.Popen(shlex.split(UP), cwd=ROOT, env=OWN)
    try:
        yield started
    finally:
        subprocess.run([*shlex.split(UP)[:4], "down", "--volumes"], cwd=ROOT, env=OWN, check=True)
        started.wait(60)


def is_ready(started: subprocess.Popen[bytes]) -> bool:
    assert started.poll() is None, "it ended"
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{URL}/readyz").status_code == 200
    return False


def test_the_image_with_an_extra_has_what_a_bucket_takes():
    [command] = block_of(__file__).commands
    words = shlex.split(command.text)
    subprocess.run(words, cwd=ROOT, check=True)
    asked = ["docker", "run", "--rm", words[words.index("-t") + 1], "python3", "-c", "import s3fs"]
    subprocess.run(asked, check=True)


def test_what_the_compose_file_starts_learns_and_answers(running):
    until(lambda: is_ready(running), STARTS_SECONDS)
    learned = httpx.post(f"{URL}/learn", json={"text": "wheat prices rose", "labels": ["grain"]})
    assert learned.status_code == 200, learned.text
    answer = httpx.post(f"{URL}/classify", json={"text": "wheat", "min_offset": learned.json()["offset"]})
    assert [one["label"] for one in answer.json()["labels"]] == ["grain"]
