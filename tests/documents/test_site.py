"""The site of the documents: every page is in its navigation, and it is built without a warning."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = "https://github.com/abound-ml/abound"


def pages(node: object) -> list[str]:
    """Return the pages of a part of the navigation, in order."""
    if isinstance(node, str):
        return [node]
    assert isinstance(node, list | dict)
    return [page for inner in (node if isinstance(node, list) else node.values()) for page in pages(inner)]


def test_the_navigation_names_every_page_once() -> None:
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages(CONFIGURATION["nav"])) == sorted(["index.md", *written])


def test_the_repository_is_the_one_of_the_project() -> None:
    assert CONFIGURATION["repo_url"] == PROJECT["urls"]["Repository"] == REPOSITORY


def test_the_badges_say_what_the_project_says() -> None:
    licence, python = ((ROOT / "docs" / "badges" / f"{name}.svg").read_text() for name in ("licence", "python"))
    assert f">{PROJECT['license']}<" in licence
    assert f">{PROJECT['requires-python'].removeprefix('>=')} or later<" in python


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_links_lead_to_pages_of_the_site_and_else_to_the_repository(site: Path) -> None:
    first, development = ((site / name).read_text() for name in ("index.html", "development/index.html"))
    assert 'href="methods/"' in first
    assert 'src="screenshots/try.gif"' in first
    assert (site / "screenshots" / "try.gif").is_file()
    assert f'href="{REPOSITORY}/blob/main/LICENSE"' in first
    assert 'href="../architecture/"' in development
    assert f'href="{REPOSITORY}/blob/main/CONTRIBUTING.md"' in development
    assert not list(site.glob("*.py"))


def test_diagrams_are_drawn_and_pages_are_found(site: Path) -> None:
    assert '<pre class="mermaid">' in (site / "concepts" / "index.html").read_text()
    assert '"location":"operating/' in (site / "search" / "search_index.json").read_text()
