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


@pytest.mark.timeout(900)
def test_two_processes_with_other_clocks_and_hash_seeds_collect_the_same_tests(tmp_path: Path) -> None:
    (tmp_path / "shifted_clock.py").write_text(PLUGIN)
    processes = []
    for number, shift in enumerate(("0", "86400.5")):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "PYTHONHASHSEED": str(number + 1),
            "PYTHONPATH": str(tmp_path),
            "CLOCK_SHIFT": shift,
            "COLLECTED": str(tmp_path / f"{number}.txt"),
        }
        options = "--collect-only -qq -p shifted_clock -p no:cacheprovider"
        words = [sys.executable, "-m", "pytest", *options.split()]
        processes.append(subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE))
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output.decode()[-2000:]
    first, second = ((tmp_path / f"{number}.txt").read_text().splitlines() for number in range(2))
    assert len(first) > 1000
    assert first == second
    assert [one for one in first if re.search(r"\\x[0-9a-f]{2}| at 0x", one)] == []
