"""Run ``abound`` in the process of the tests."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from abound.cli import main as cli


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``abound`` with these arguments, without settings of ours from the environment."""
    for name in [name for name in os.environ if name.startswith("ABOUND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["abound", *map(str, arguments)])
        try:
            cli.main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        return Ran(int(code or 0), *capsys.readouterr())  # type: ignore[call-overload]

    return run
