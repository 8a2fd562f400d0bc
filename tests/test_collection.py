"""Every process collects the same tests: xdist refuses to run when two of its workers disagree."""

import os
import re
import subprocess
import sys

from tests.conftest import COLLECTED

PLUGIN = """
import time
from pathlib import Path

real, real_ns = time.time, time.time_ns
time.time = lambda: real() + 86400.5
time.time_ns = lambda: real_ns() + 86_400_500_000_000


def pytest_itemcollected(item):
    with Path(__file__).with_name("collected.txt").open("a", encoding="utf-8") as file:
        file.write(item.nodeid + "\\n")
"""


def test_a_process_with_another_clock_and_hash_seed_collects_the_same_tests(tmp_path, request):
    """Long tests too."""
    (tmp_path / "shifted_clock.py").write_text(PLUGIN)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = "--collect-only -qq -p shifted_clock -p no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), *request.config.args],
        cwd=request.config.invocation_params.dir,
        env=environment | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ids = request.config.stash[COLLECTED]
    assert (tmp_path / "collected.txt").read_text().splitlines() == ids
    assert [one for one in ids if re.search(r"\\x[0-9a-f]{2}| at 0x", one)] == []
