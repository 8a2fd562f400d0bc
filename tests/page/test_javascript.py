"""ESLint and TypeScript find no mistake in the modules of the page."""

import shutil
from pathlib import Path

from tests.support.npm import install, run

ROOT = Path(__file__).parents[2]


def test_the_modules_have_no_mistakes_that_linters_find(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "page" / "javascript", tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "service" / "abound" / "web", tmp_path / "web")
    install(tmp_path)
    for script in ("lint", "check"):
        done = run(tmp_path, "npm", "run", script)
        assert done.returncode == 0, done.stdout
