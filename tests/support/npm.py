"""Run programs of npm in a folder."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.contracts.programs import needs


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=240, env={**os.environ, **environment}
    )


def install(folder: Path) -> None:
    """Install the packages of a folder; skip if npm or its registry is missing."""
    needs("node")
    done = run(folder, needs("npm"), "ci", "--no-audit", "--no-fund", "--fetch-retries", "1")
    if any(word in done.stderr for word in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ECONNRESET")):
        pytest.skip("the registry of npm cannot be reached")
    assert done.returncode == 0, done.stderr
