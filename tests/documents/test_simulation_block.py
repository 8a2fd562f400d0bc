"""The commands of the simulation on the page of results, over two seeds in the place of two hundred thousand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT, block_of
from tests.documents.session import make_programs

FEW = {"0..200000": "0..2"}


@pytest.mark.long
def test_the_simulation_runs_as_the_results_say(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{make_programs(tmp_path)}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    printed = []
    for command in block_of(__file__).commands:
        text = command.text
        for many, few in FEW.items():
            text = text.replace(many, few)
        done = subprocess.run(["sh", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(done.stdout)
    histories, one = printed
    assert histories.startswith("2 histories up to seed 1,")
    assert "failed: none" in histories
    assert (tmp_path / "seeds.txt").read_text() == "2"
    assert len(one.splitlines()) > 100
    assert one.splitlines()[-1].startswith("1 histories up to seed 414,")
