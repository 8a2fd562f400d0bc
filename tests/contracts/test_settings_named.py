"""Settings that other files name are settings, and the manual has all of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from abound.settings import Settings, unknown_variables

ROOT = Path(__file__).parents[2]
COLUMNS = ("default", "unit", "meaning", "example")


def settings_of(page: Path) -> dict[str, dict[str, str]]:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \| (`.*`) \|$", page.read_text(), re.MULTILINE)
    return {name: dict(zip(COLUMNS, cells, strict=True)) for name, *cells in rows}


MANUAL = settings_of(ROOT / "docs" / "reference" / "settings.md")


@pytest.mark.parametrize(
    "path",
    [
        "docker/compose.yaml",
        "docker/Dockerfile",
        "docker/s3.yaml",
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


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("ABOUND_")]:
        monkeypatch.delenv(variable)


@pytest.mark.usefixtures("no_variables")
def test_the_manual_describes_every_setting_and_no_other() -> None:
    expected = {}
    for setting in Settings.load().describe():
        meaning, _, default = setting.meaning.removesuffix("]").partition("; [default: ")
        sentence = f"{meaning[0].upper()}{meaning[1:].removesuffix('.')}."
        expected[setting.name] = (default or setting.value or "-", sentence)
    size = re.compile(r" \(\d+ [KMG]iB\)$")
    written = {name: (size.sub("", row["default"]), row["meaning"]) for name, row in MANUAL.items()}
    assert written == expected


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("name", sorted(MANUAL))
def test_the_example_of_a_setting_is_a_value_that_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = MANUAL[name]
    assert row["unit"]
    before = {setting.name: setting.value for setting in Settings.load().describe()}
    monkeypatch.setenv(f"ABOUND_{name.upper()}", row["example"].strip("`"))
    after = {setting.name: setting.value for setting in Settings.load().describe()}
    assert [changed for changed in after if after[changed] != before[changed]] == [name]
