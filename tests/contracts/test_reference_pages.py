"""Settings that other files name are settings, and the manual has all of them."""

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from abound.settings import Settings, unknown_variables
from abound_core.config import FIXED_AFTER_LEARNING, AnalyzerConfig, DecideConfig, ModelConfig

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


# docs/reference/configuration.md describes every field of a model's configuration, as the code does


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([\w.]+)` \| `(.*?)` \| (yes|no) \| (.*) \| `(.*)` \|$", re.MULTILINE)
PARTS: dict[str, Any] = {"analyzer": AnalyzerConfig, "decide": DecideConfig}
ROWS = {name: cells for name, *cells in ROW.findall(PAGE.read_text())}
FITTING: dict[str, dict[str, Any]] = {
    name: {"update": "sls"} for name in ("analyzer.embed", "rows", "rerank", "known", "recovery")
} | {"analyzer.embed_field": {"update": "sls", "analyzer": {"embed": "wordllama"}}}
"""Fields that an example needs beside itself."""


def described(kind: Any, prefix: str = "") -> dict[str, str | None]:
    """The descriptions by the names of the fields; None: the code has none."""
    found: dict[str, str | None] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in PARTS:
            found |= described(PARTS[name], f"{name}.")
        else:
            found[prefix + name] = get_args(hint)[1].description if get_origin(hint) is Annotated else None
    return found


def configured(name: str, value: Any) -> dict[str, Any]:
    field, _, inner = name.partition(".")
    fitting = FITTING.get(name, {})
    return fitting | {field: fitting.get(field, {}) | {inner: value} if inner else value}


def test_every_field_is_described_as_in_the_code_and_no_other() -> None:
    expected = described(ModelConfig)
    assert list(ROWS) == list(expected)
    assert {name: ROWS[name][2] for name, says in expected.items() if says} == {k: v for k, v in expected.items() if v}
    assert all(cells[2] for cells in ROWS.values())


def test_defaults_and_what_is_fixed_are_those_of_the_code() -> None:
    plain = ModelConfig(update="sls").to_dict() | {"update": ModelConfig().update}  # fsu has no rows
    flat = plain | {
        f"{part}.{one.name}": getattr(kind(), one.name) for part, kind in PARTS.items() for one in fields(kind)
    }
    flat["analyzer.ngrams"] = list(flat["analyzer.ngrams"])
    assert {name: json.loads(cells[0]) for name, cells in ROWS.items()} == {name: flat[name] for name in ROWS}
    fixed = {name for name, cells in ROWS.items() if cells[1] == "yes"}
    assert fixed == {name for name in ROWS if name.partition(".")[0] in FIXED_AFTER_LEARNING}


@pytest.mark.parametrize("name", ROWS)
def test_the_example_is_another_value_that_the_field_takes(name: str) -> None:
    value = json.loads(ROWS[name][3])
    assert value != json.loads(ROWS[name][0])
    field, _, inner = name.partition(".")
    taken = ModelConfig.from_dict(configured(name, value)).to_dict()[field]
    assert (taken[inner] if inner else taken) == value
