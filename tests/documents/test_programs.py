"""Commands in the sentences of the documents, and in blocks that are not run, as far as they can be run cheaply.

What takes minutes, a cluster or a registry is not done; it is held against what would do it: the program's own parser
of options, the files and tests that are there, make's rules, the compose file. ``LEFT`` names the rest, and why.
(`abound ...` is in test_commands.py, which runs those that do no harm.)
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
import yaml

from tests.documents.blocks import PAGES, ROOT, blocks_of

LEFT = {
    "pip-audit": "asks a server on the internet",
    "skopeo": "asks a registry",
    "docker buildx": "asks a registry",
    "kind": "wants a cluster",
    "minikube": "wants a cluster",
}

STARTS = re.compile(
    r"(?:\w+=\S+ )*(?:python3? -m|pytest|make|docker|kubectl|pip-audit|skopeo|git|kind|minikube|pre-commit) "
)

PLACES = {"N": "1", "K": "1", "<new>": "1", "DIR": ".", "FILE": "file", "REGISTRY/abound:X.Y.Z": "registry/abound:1"}
"""What stands for a value of one's own, and one."""


def commands() -> list[str]:
    """All there are, each once."""
    found: set[str] = set()
    for page in PAGES:
        text = re.sub(r"<details>.*?</details>", "", page.read_text(), flags=re.DOTALL)
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        found |= {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)}
        for block in blocks_of(page):
            if block.reason and not block.by:
                found |= {command.text.partition(" # ")[0].strip() for command in block.commands}
    parts = {part.strip() for one in found for part in re.split(r" && | \| | > \w+", one)}
    return sorted(part for part in parts if STARTS.match(part + " ") and part not in ("make", "git", "kind"))


COMMANDS = commands()


def words_of(command: str) -> list[str]:
    """Its words, with values in the place of what stands for them; variables before it are left out."""
    words = [PLACES.get(word, word).replace("...", "x") for word in shlex.split(command)]
    while "=" in words[0]:
        words.pop(0)
    return words


class Parsed(Exception):
    """Stops a program as soon as it has its parser."""


def check_module(name: str, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The options are ones that the program takes; one without a parser is given none."""
    place = ROOT.joinpath(*name.split("."))
    path = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__main__.py"
    if "argparse" not in path.read_text():
        assert not given or "sys.argv" in path.read_text()
        return
    module = importlib.import_module(name if path.name != "__main__.py" else f"{name}.__main__")
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser) -> None:
        parse(parser, given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Parsed):
        module.main()


def check_pytest(given: list[str]) -> None:
    """Files are there, the marker is one, and a test is called as ``-k`` says."""
    words = iter(given)
    places, named = [], None
    for word in words:
        if word == "-m":
            assert f'"{next(words)}:' in (ROOT / "pyproject.toml").read_text()
        elif word == "-k":
            named = next(words)
        elif not word.startswith("-"):
            places.append(ROOT / word)
    files = [file for place in places for file in (place.glob("test_*.py") if place.is_dir() else [place])]
    assert files
    texts = [file.read_text() for file in files]
    assert named is None or any(re.search(rf"def test_\w*{named}", text) for text in texts)


def check_compose(given: list[str]) -> None:
    """The files, their services and profiles are there."""
    words, services = list(given), set()
    while words[0] == "-f":
        services |= set(yaml.safe_load((ROOT / words[1]).read_text())["services"])
        del words[:2]
    verb, *rest = words
    assert services
    if verb == "up":
        assert set(rest) <= {"--build"}
    elif verb == "run":
        assert rest[0] == "--rm"
        assert rest[1] in services
    else:
        assert verb == "exec"
        assert rest[0] in services


def check_build(given: list[str]) -> None:
    """Its file is there, takes what it is given, and what is built on is this repository."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-f", required=True)
    parser.add_argument("-t", required=True)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("context")
    options = parser.parse_args(given)
    assert options.context == "."
    taken = re.findall(r"^ARG (\w+)", (ROOT / options.f).read_text(), re.MULTILINE)
    arguments = dict(one.split("=", 1) for one in options.build_arg)
    assert set(arguments) <= set(taken)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(filter(None, arguments.get("EXTRAS", "").split(","))) <= set(extras)


def check_kubectl(given: list[str]) -> None:
    """What is applied can be rendered, a label is one that a manifest asks for, and pods are those of a manifest."""
    if given[2:3] == ["exec"]:
        assert (given[1], given[4]) == ("abound", "--")
        manifest = ROOT / "deploy/kubernetes/base" / f"{given[3].removeprefix('deploy/')}.yaml"
        assert "kind: Deployment" in manifest.read_text()
        return
    if given[:2] == ["label", "namespace"]:
        name, _, value = given[3].partition("=")
        assert f'{name}: "{value}"' in (ROOT / "deploy/kubernetes/base/network.yaml").read_text()
        return
    [verb, option, path] = given
    assert (verb, option) == ("apply", "-k")
    subprocess.run(["kubectl", "kustomize", str(ROOT / path)], check=True, capture_output=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_would_take_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of(command)
    program, given = words[0], words[1:]
    reason = LEFT.get(" ".join([program, *given[:1]])) or LEFT.get(program)
    if program.startswith("python"):
        if not given[1].startswith(("benchmarks", "tests", "abound")):
            pytest.skip("a module of Python's own")
        check_module(given[1], given[2:], monkeypatch)
    elif program == "pytest":
        check_pytest(given)
    elif program == "make":
        subprocess.run(["make", "-n", *given], cwd=ROOT, check=True, capture_output=True)
    elif reason:
        pytest.skip(reason)
    elif program == "docker":
        assert given[0] in ("compose", "build")
        check = check_compose if given[0] == "compose" else check_build
        check(given[1:])
    else:
        assert program == "kubectl"
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed")
        check_kubectl(given)


def test_commands_are_found() -> None:
    programs = {words_of(command)[0] for command in COMMANDS}
    assert programs >= {"python", "pytest", "make", "docker", "kubectl"}
    assert len(COMMANDS) > 30


def test_an_option_that_no_program_takes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        check_module("benchmarks.http", ["--round-s", "3"], monkeypatch)
