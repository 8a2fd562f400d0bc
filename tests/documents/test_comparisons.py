"""The commands beside the figures of the comparisons: each is one that runs, on small data in the place of the real."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.reproduction.comparisons import select_experiments
from tests.documents.blocks import PAGES
from tests.documents.data_sets import make
from tests.support.command_line import Run

SPANS = [" ".join(code.split()) for page in PAGES for code in re.findall(r"`([^`]+)`", page.read_text())]
EVALUATIONS = sorted({code for code in SPANS if code.startswith("abound evaluate --train")})
REPRODUCTIONS = sorted({code for code in SPANS if code.startswith("python -m benchmarks.reproduction --only")})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make(folder)
    return folder


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # few instances: solvers do not settle
@pytest.mark.parametrize("command", EVALUATIONS)
def test_an_evaluation_runs(command: str, data: Path, run: Run) -> None:
    words = []
    for word in shlex.split(command)[1:]:
        words += [str(path) for path in data.glob(word)] if "/" in word else [word]
    ran = run(*words, "--json")
    assert ran.code == 0, ran.err
    assert 0 < ran.json["metrics"]["R@1"] <= 1


@pytest.mark.parametrize("command", REPRODUCTIONS)
def test_what_is_to_be_reproduced_is_there(command: str) -> None:
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "benchmarks.reproduction", "--only"]
    assert select_experiments(words[4:], quick=False)


def test_commands_are_found() -> None:
    assert len(EVALUATIONS) > 60
    assert len(REPRODUCTIONS) > 60
