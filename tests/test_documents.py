"""What the documents name is there: tests, files and settings."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from abound.settings import Settings
from abound_core.config import ModelConfig

ROOT = Path(__file__).parent.parent
FILES = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
SECURITY = (ROOT / "docs" / "security.md").read_text()
AUDIT = (ROOT / "docs" / "security-audit.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::test_\w+)?)`", AUDIT))))
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, name = named.partition("::")
    assert file in FILES
    if name:
        assert re.search(rf"^(async )?def {name}\(", FILES[file].read_text(), re.MULTILINE)


def test_settings_of_the_tables_of_limits_exist() -> None:
    tables = SECURITY.partition("## Limits\n")[2].partition("\n## ")[0]
    named = {name.lower() for name in re.findall(r"`ABOUND_(\w+)`", tables)}
    assert len(named) > 15
    assert named <= {line.name for line in Settings.load().describe()}
    of_a_model = set(re.findall(r"field `(\w+)` of the model", tables))
    assert len(of_a_model) == 3
    assert of_a_model <= {field.name for field in fields(ModelConfig)}
