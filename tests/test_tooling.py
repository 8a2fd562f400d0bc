"""What people are told to do works: the targets of make, the hooks, the changelog."""

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()


def test_help_tells_of_every_target_and_of_no_other() -> None:
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^make ([\w-]+) ", told, re.MULTILINE) == [name for name in TARGETS if name != "help"]
    assert "help" in TARGETS
    for variable in re.findall(r"^(\w+) \?=", MAKEFILE, re.MULTILINE):
        assert f"{variable}=" in told


def test_every_lower_bound_is_what_the_lowest_versions_are_made_of() -> None:
    named = re.search(r"^LOWEST := (.*)$", MAKEFILE, re.MULTILINE)
    assert named
    lowest = subprocess.run(
        ["sed", "-n", named[1], "pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    declared = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    bounds = re.findall(r"^([\w-]+)>=([^,]+),", "\n".join(declared), re.MULTILINE)
    assert sorted(lowest) == sorted(f"{name}=={version}" for name, version in bounds)


@pytest.mark.parametrize("extra", ["dependencies", *PROJECT["optional-dependencies"]])
def test_every_dependency_is_bounded_on_both_sides_and_its_pin_is_within(extra: str) -> None:
    """``make test-lowest`` reads the first bound of each as the lowest version."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    for text in PROJECT.get(extra) or PROJECT["optional-dependencies"][extra]:
        one = Requirement(text)
        if one.name != PROJECT["name"]:
            assert re.match(r"[a-z][a-z0-9-]*>=[\d.]+,<[\d.]+(;|$)", text), text
            assert one.specifier.contains(pinned[canonicalize_name(one.name)]), text


def test_the_changelog_begins_with_the_version_that_this_is() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
    assert versions[0][0] == PROJECT["version"]
