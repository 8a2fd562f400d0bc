"""What is built upon may be used as this is: the licences of all dependencies are listed, and copyleft is stated."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "licences.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PERMISSIVE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python",
    "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib",
}  # fmt: skip

SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mit style": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""What older metadata say instead of an SPDX expression."""

IN_FILES = {"axe-playwright-python": "MIT AND MPL-2.0", "wordllama": "MIT"}
"""Where only files of the distribution say it."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The distributions that these requirements lead to in this environment."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonical(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = metadata.distribution(name)
        for text in found[name].requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": one}) for one in {"", *extras}):
                waiting.append(inner)
    return found


def link(distributions: Iterable[metadata.Distribution], home: Path) -> Path:
    """Make an environment that has links to these distributions as they are installed here; return its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    for distribution in distributions:
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (packages / name).symlink_to(str(distribution.locate_file(name)))
    return packages


def licence_of(distribution: metadata.Distribution) -> str:
    """The SPDX expression, as far as the metadata say it in some way."""
    described = distribution.metadata
    if said := IN_FILES.get(canonical(described["Name"])):
        return said
    if expression := described.get("License-Expression"):
        return str(expression)
    text = str(described.get("License") or "").partition("\n")[0].strip()
    classified = [
        one.rpartition(" :: ")[2].lower()
        for one in described.get_all("Classifier") or []
        if one.startswith("License ::") and "DFSG" not in one
    ]
    known = sorted({SPELLINGS[one] for one in classified if one in SPELLINGS})
    text = SPELLINGS.get(text.lower(), text)
    return text if text and parts(text) <= PERMISSIVE | {"MPL-2.0"} else " OR ".join(known)


def parts(expression: str) -> set[str]:
    """The licences of an expression, all of which apply."""
    alternatives = [part.strip(" ()") for part in expression.split(" OR ")]
    chosen = next((one for one in alternatives if one in PERMISSIVE), expression)
    return {part.strip(" ()") for part in re.split(r" AND | OR ", chosen)}


def table(heading: str) -> dict[str, str]:
    rows = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", rows, re.MULTILINE)[1:]
    return {name.strip(): licence for licence, names in listed for name in names.split(",")}


def stated() -> set[str]:
    return set(re.findall(r"\*\*([\w-]+)\*\*", PAGE.partition("## Copyleft\n")[2]))


def rewritten() -> str:
    """The page with the tables of this environment."""
    page = PAGE
    for heading, found in (("What runs", RUNTIME), ("What only tests and measures", DEVELOPMENT)):
        by_licence: dict[str, list[str]] = {}
        for name, one in sorted(found.items()):
            by_licence.setdefault(licence_of(one), []).append(name)
        rows = "".join(f"| {licence} | {', '.join(names)} |\n" for licence, names in sorted(by_licence.items()))
        before, _, rest = page.partition(f"## {heading}\n")
        start = rest.index("|---|---|\n") + len("|---|---|\n")
        page = before + f"## {heading}\n" + rest[:start] + rows + rest[rest.index("\n\n", start) + 1 :]
    return page


RUNTIME = closure(PROJECT["dependencies"])
DEVELOPMENT = {
    name: one
    for name, one in closure([one for extra in PROJECT["optional-dependencies"].values() for one in extra]).items()
    if name not in {*RUNTIME, canonical(PROJECT["name"])}
}


@pytest.mark.parametrize(("heading", "found"), [("What runs", RUNTIME), ("What only tests and measures", DEVELOPMENT)])
def test_every_dependency_is_listed_with_its_licence(heading: str, found: dict[str, metadata.Distribution]) -> None:
    assert len(found) > 20
    listed = table(heading)
    mended = "python -m tests.test_licences writes the tables anew"
    assert {name: listed.get(name) for name in found} == {name: licence_of(one) for name, one in found.items()}, mended
    pinned = {canonical(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert listed.keys() <= pinned


@pytest.mark.parametrize("name", sorted(RUNTIME | DEVELOPMENT))
def test_no_copyleft_that_is_not_stated(name: str) -> None:
    expression = licence_of((RUNTIME | DEVELOPMENT)[name])
    assert expression, "the metadata do not say"
    copyleft = parts(expression) - PERMISSIVE
    assert not copyleft or (copyleft == {"MPL-2.0"} and name in stated())


def test_what_is_stated_is_there() -> None:
    assert stated() <= set(RUNTIME | DEVELOPMENT)


def test_our_own_is_the_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text.partition("\n")[2][:80]
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == "Apache-2.0"


if __name__ == "__main__":
    (ROOT / "docs" / "licences.md").write_text(rewritten())
