"""Settings that other files name are settings, and all are in the manual."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from abound.service.settings import Settings, unknown_variables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path",
    [
        "docker/compose.yaml",
        "docker/Dockerfile",
        "docker/tls.yaml",
        "deploy/kubernetes/base/kustomization.yaml",
        "deploy/kubernetes/overlays/small/kustomization.yaml",
        "deploy/kubernetes/components/s3/kustomization.yaml",
    ],
)
def test_every_variable_is_a_setting(path: str) -> None:
    found = set(re.findall(r"\bABOUND_[A-Z_]+\b", (ROOT / path).read_text()))
    assert found
    assert unknown_variables(dict.fromkeys(found, "x")) == []


def test_every_setting_is_in_the_manual_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("ABOUND_"):
            monkeypatch.delenv(variable)
    manual = (ROOT / "docs" / "operating.md").read_text()
    missing = [one.name for one in Settings.load().describe() if f"| `{one.name}` | {one.value or '-'} |" not in manual]
    assert missing == []
