"""The commands beside the figures of the comparisons: each is one that runs, on small data in the place of the real."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from abound.service.cli import main as cli
from benchmarks.reproduction.comparisons import select_experiments
from tests.documents.blocks import PAGES
from tests.documents.data_sets import make

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
def test_an_evaluation_runs(
    command: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = []
    for word in shlex.split(command):
        words += [str(path) for path in data.glob(word)] if "*" in word else [word]
    for name in [name for name in os.environ if name.startswith("ABOUND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            pytest.fail(capsys.readouterr().err)
    assert 0 < json.loads(capsys.readouterr().out)["metrics"]["R@1"] <= 1


@pytest.mark.parametrize("command", REPRODUCTIONS)
def test_what_is_to_be_reproduced_is_there(command: str) -> None:
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "benchmarks.reproduction", "--only"]
    assert select_experiments(words[4:], quick=False)


def test_commands_are_found() -> None:
    assert len(EVALUATIONS) > 60
    assert len(REPRODUCTIONS) > 60
