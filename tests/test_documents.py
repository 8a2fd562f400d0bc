"""What the documents name is there: tests, files and settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import Settings

ROOT = Path(__file__).parent.parent
FILES = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
SECURITY = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(test_\w+\.py(?:::test_\w+)?)`", SECURITY))))
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, name = named.partition("::")
    assert file in FILES
    if name:
        assert re.search(rf"^(async )?def {name}\(", FILES[file].read_text(), re.MULTILINE)


def test_settings_of_the_table_of_limits_exist() -> None:
    table = SECURITY.partition("## Limits\n")[2].partition("\nSettings are")[0]
    named = {name for row in table.splitlines()[3:] for name in re.findall(r"`(\w+)`", row.split("|")[3])}
    described = {line.name for line in Settings.load().describe()}
    of_a_model = {"max_classes", "max_features", "max_memory"}
    assert len(named) > 15
    assert named - described <= of_a_model
