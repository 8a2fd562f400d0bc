"""Every process collects the same tests: xdist refuses to run when two of its workers disagree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLUGIN = """
import os
import time

SHIFT = float(os.environ["CLOCK_SHIFT"])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + SHIFT
time.time_ns = lambda: real_ns() + int(SHIFT * 1e9)


def pytest_collection_finish(session):
    with open(os.environ["COLLECTED"], "w", encoding="utf-8") as file:
        file.writelines(item.nodeid + "\\n" for item in session.items)
"""


def collected(folder: Path, shift: float, seed: int) -> list[str]:
    """Return the ids that a process with this clock and this hash seed collects."""
    (folder / "shifted_clock.py").write_text(PLUGIN)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "PYTHONHASHSEED": str(seed),
        "PYTHONPATH": str(folder),
        "CLOCK_SHIFT": str(shift),
        "COLLECTED": str(folder / "collected.txt"),
    }
    options = "--collect-only -qq -p shifted_clock -p no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), "-m", "not long"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return (folder / "collected.txt").read_text().splitlines()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_processes_with_other_clocks_and_hash_seeds_collect_the_same_tests(tmp_path: Path) -> None:
    ids = collected(tmp_path, 0.0, 1)
    assert len(ids) > 1000
    assert collected(tmp_path, 86400.5, 2) == ids
    assert [one for one in ids if re.search(r"\\x[0-9a-f]{2}| at 0x", one)] == []
