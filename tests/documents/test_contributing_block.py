"""The first five minutes of someone who wants to change something: in a clone of what is here, with its environment."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT, block_of

OLD = 946684800
"""Nothing of the clone is newer than the environment, which is that of this checkout: make has nothing to install."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Where the first command of the block has left it."""
    if not (ROOT / ".git").exists() or not (ROOT / ".venv" / ".installed-dev").exists():
        pytest.skip("this is no checkout whose environment make has made")
    first = commands()[0]
    assert first.endswith(" && cd abound")
    text = first.replace("https://github.com/abound-ml/abound", f"--quiet file://{ROOT} abound")
    done = subprocess.run(["sh", "-c", f"{text} && pwd"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = Path(done.stdout.strip())
    assert made == tmp_path / "abound"
    (made / ".venv").symlink_to(ROOT / ".venv")
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(made / name, (OLD, OLD))
    return made


def commands() -> list[str]:
    return [command.text.partition(" # ")[0].strip() for command in block_of(__file__).commands]


def run(clone: Path, text: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["sh", "-c", text], cwd=clone, env=kept, capture_output=True, text=True)


def test_the_commands_are_those_that_are_run_here() -> None:
    assert commands()[1:] == ["make check", "make test", "make hooks"]


def test_a_clone_gets_its_hook_and_installs_nothing(clone: Path) -> None:
    done = run(clone, commands()[3])
    assert done.returncode == 0, done.stderr
    assert (clone / ".git" / "hooks" / "pre-commit").read_text() == "#!/bin/sh\nexec make check\n"
    for text in commands()[1:3]:
        said = run(clone, f"{text} --dry-run")
        assert said.returncode == 0, said.stderr
        assert "pip install" not in said.stdout
        assert re.search(r"\.venv/bin/pytest ", said.stdout, re.MULTILINE)
