"""The kernels come compiled: a copy of what cannot be written, in a place that can, is all that a start needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.live import warmup

ROOT = Path(__file__).parents[2]
SAVED = "data saved to"
"""What numba says, with NUMBA_DEBUG_CACHE, each time that it has compiled something."""

PROGRAM = "from core.live import warmup; warmup()"


def started(compiled: Path, place: Path) -> str:
    """What a process says that the entrypoint of the image starts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= {"COMPILED_KERNELS": str(compiled), "NUMBA_CACHE_DIR": str(place), "NUMBA_DEBUG_CACHE": "1"}
    words = ["sh", str(ROOT / "docker" / "entrypoint.sh"), sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)  # the first run on a machine compiles
def test_what_was_compiled_is_copied_and_nothing_is_compiled_again(tmp_path: Path) -> None:
    warmup()
    compiled, place = Path(os.environ["NUMBA_CACHE_DIR"]), tmp_path / "tmpfs" / "kernels"
    said = started(compiled, place)
    assert "data loaded from" in said
    assert str(place) in said
    assert SAVED not in said
    # A second start finds the place as the first one left it.
    assert SAVED not in started(compiled, place)


def test_what_is_compiled_after_all_would_show(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("import numba\n\n\n@numba.njit(cache=True)\ndef same(x):\n    return x\n")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "NUMBA_DEBUG_CACHE": "1"}
    words = [sys.executable, "-c", "import small; small.same(1)"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert SAVED in done.stdout, done.stderr
