"""docs/reference/configuration.md describes every field of a model's configuration, as the code does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from abound_core.config import FIXED_AFTER_LEARNING, AnalyzerConfig, DecideConfig, ModelConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([\w.]+)` \| `(.*?)` \| (yes|no) \| (.*) \| `(.*)` \|$", re.MULTILINE)
PARTS: dict[str, Any] = {"analyzer": AnalyzerConfig, "decide": DecideConfig}
ROWS = {name: cells for name, *cells in ROW.findall(PAGE.read_text())}
FITTING: dict[str, dict[str, Any]] = {name: {"update": "sls"} for name in ("analyzer.embed", "rows", "rerank", "known")}
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
    return {field: {inner: value} if inner else value} | FITTING.get(name, {})


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
