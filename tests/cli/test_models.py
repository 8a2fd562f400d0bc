"""``abound models show`` of a model that calibrates, and of one that does not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from abound.cli.file_arguments import CommandFailed, write_pieces
from abound.cli.options import format_value
from tests.support.command_line import Run
from tests.support.served import Served, fresh_model, served


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


@pytest.fixture
def show(run: Run, service: Served) -> Callable[..., str]:
    def show(model: str, *options: str) -> str:
        ran = run("models", "show", model, "--url", service.url, *options)
        assert ran.code == 0
        return ran.out

    return show


def taught(service: Served, calibrate: bool) -> str:
    name = fresh_model(service, calibrate=calibrate)
    rng = random.Random(5)
    rows = [(kind, rng.randrange(4)) for kind in rng.choices(range(4), k=200)]
    instances = [{"text": f"word{kind} other{other}", "labels": [f"label {kind}"]} for kind, other in rows]
    service.http.post(f"/models/{name}/learn", json={"instances": instances}).raise_for_status()
    return name


def test_reliability_is_shown_by_tenths(service: Served, show: Callable[..., str]) -> None:
    model = taught(service, True)
    said = json.loads(show(model, "--json"))["stats"]["calibration"]
    assert said["all"]["n"] > 200
    lines = [line.split() for line in show(model).partition("probabilities")[2].splitlines()]
    for tenth, (every, newest) in enumerate(zip(said["all"]["bins"], said["newest"]["bins"], strict=True)):
        figures = [format_value(one[key]) for one in (every, newest) for key in ("n", "estimate", "true")]
        assert [f"{tenth / 10:.1f}", "to", f"{tenth / 10 + 0.1:.1f}", *figures] in lines
    for measure in ("error", "brier"):
        assert [measure, format_value(said["all"][measure]), format_value(said["newest"][measure])] in lines


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CommandFailed, match=r"cannot write .*/file/model"):
        write_pieces(tmp_path / "file" / "model", [b"x"])
