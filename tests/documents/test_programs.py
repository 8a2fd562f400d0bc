"""Commands in the sentences of the documents, and in blocks that are not run: a program would take them.

What takes minutes is not done; it is held against what would do it: the program's own parser of options, the files and
tests that are there, make's rules. (`abound ...` is in test_commands.py, which runs those that do no harm.)
"""

import argparse
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.reproduction.comparisons import select_experiments
from tests.documents.blocks import PAGES, ROOT, blocks_of
from tests.documents.data_sets import make
from tests.support.command_line import Run

STARTS = re.compile(r"(?:\w+=\S+ )*(?:python3? -m (?:benchmarks|tests|abound)|pytest|make) ?")

PLACES = {"N": "1", "K": "1", "<new>": "1", "DIR": ".", "FILE": "file"}
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
    return sorted(part for part in parts if STARTS.match(part) and " " in part)


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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_would_take_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *given = words_of(command)
    if program == "pytest":
        check_pytest(given)
    elif program == "make":
        subprocess.run(["make", "-n", *given], cwd=ROOT, check=True, capture_output=True)
    else:
        check_module(given[1], given[2:], monkeypatch)


def test_an_option_that_no_program_takes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        check_module("benchmarks.http", ["--round-s", "3"], monkeypatch)


SPANS = [" ".join(code.split()) for page in PAGES for code in re.findall(r"`([^`]+)`", page.read_text())]
EVALUATIONS = sorted({code for code in SPANS if code.startswith("abound evaluate --train")})
REPRODUCTIONS = sorted({code for code in SPANS if code.startswith("python -m benchmarks.reproduction --only")})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make(folder)
    return folder


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # few instances: solvers do not settle
@pytest.mark.parametrize("command", EVALUATIONS)
def test_an_evaluation_runs(command: str, data: Path, run: Run) -> None:
    words = []
    for word in shlex.split(command)[1:]:
        words += [str(path) for path in data.glob(word)] if "/" in word else [word]
    ran = run(*words, "--json")
    assert ran.code == 0, ran.err
    assert 0 < ran.json["metrics"]["R@1"] <= 1


@pytest.mark.parametrize("command", REPRODUCTIONS)
def test_what_is_to_be_reproduced_is_there(command: str) -> None:
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "benchmarks.reproduction", "--only"]
    assert select_experiments(words[4:], quick=False)


def test_commands_are_found() -> None:
    assert {words_of(command)[0] for command in COMMANDS} >= {"python", "pytest", "make"}
    assert len(COMMANDS) > 25
    assert len(EVALUATIONS) > 60
    assert len(REPRODUCTIONS) > 60
