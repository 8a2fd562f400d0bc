"""Every program of this repository that the documents name runs to its end and prints figures.

Each is run as small as it can be and still do all that it does, with every option that the documents give it; what
takes seconds runs always, the others are ``long``. That the documented commands themselves are ones that the programs
take is in test_programs.py.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import libraries
from tests.documents.blocks import PAGES, ROOT, blocks_of
from tests.documents.data_sets import make


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """How a program is run small.

    ``{data}`` in its words: small data sets; ``{kept}``: a folder that the runs of a program share, with what
    ``libraries`` takes for the environment of the rivals; ``{work}``: one of its own, whose files must be there
    afterwards.
    """

    words: str
    tells: tuple[str, ...] = ()  # figures that it must print, by ``--json``
    says: str = ""  # a pattern for all that it prints, of a program without ``--json``
    holds: Callable[[list[Any]], bool] = bool  # what must hold of the JSON values that were printed
    needs: tuple[str, ...] = ()  # programs that it starts
    seconds: float = 300.0  # to be done, on a busy machine


def rivals_that_are_here_were_measured(rows: list[Any]) -> bool:
    ended = {row["library"]: row["ended"] for row in rows if "ended" in row}
    assert [why for why in ended.values() if "No module" not in why] == []
    return {"20-NN", *libraries.OWN}.isdisjoint(ended)


PROGRAMS: dict[str, Small] = {
    "benchmarks.accuracy": Small(
        words="--json --only newsgroups20 --only reuters21578 --data {data}", tells=("R@1", "R@5", "MRR")
    ),
    "benchmarks.data": Small(words="--list --to {data}", says=r"(?s)clinc150 .+ 150 intents\n.+"),
    "benchmarks.decide": Small(words="shuffles --shuffles 1 --data {data}", says=r"(?s)--- shuffles\n.*all hold\n"),
    "benchmarks.faults": Small(
        words="--json --seed 1 --kills 2", tells=("acknowledged", "learned", "entries"), needs=("nginx",), seconds=600
    ),
    "benchmarks.first_examples": Small(words="--json --draws 1 --data {data}", tells=("R@1", "examples")),
    "benchmarks.http": Small(
        words="--json --quick --embed wordllama --data {data}",
        tells=("rps", "classify_to_echo", "learn_to_echo"),
        holds=lambda values: {"words, 20 words", "codes, 200 words", "before the job"} <= values[0].keys(),
        needs=("wrk",),
    ),
    "benchmarks.kernel": Small(
        words="--json --quick --stream ads --turns 1", tells=("learn_over_floor", "classify_over_fsu", "names_per_s")
    ),
    "benchmarks.known": Small(words="--json --runs 1 --only bibtex --data {data}", tells=("R@1", "recall@5")),
    "benchmarks.meaning": Small(
        words="--json --only clinc150 --orders 1 --way words --way reranked --data {data}",
        tells=("R@1", "prequential", "us learn", "MB"),
    ),
    "benchmarks.libraries": Small(
        words="--json --on --only bibtex --only clinc150 --seconds 60 --plot {work}/p.svg --data {data} --kept {kept}",
        tells=("R@1", "learn/s", "classify/s", "memory", "model"),
        holds=rivals_that_are_here_were_measured,
        seconds=600,
    ),
    "benchmarks.reproduction": Small(
        words="--json --quick --only bibtex-fit --data {data} --out {work}/docs",
        tells=("P@1", "R@1", "fit", "rank", "megabytes"),
    ),
    "benchmarks.rolling": Small(
        words="--json --seconds 1",
        tells=("classified", "acknowledged", "lost", "twice"),
        holds=lambda values: values[0]["lost"] == values[0]["twice"] == 0,
        needs=("haproxy",),
    ),
    "benchmarks.startup": Small(
        words="--json --quick --sizes 1M 10M --replayed 300000", tells=("ready_seconds", "replayed_per_second")
    ),
    "benchmarks.subjects": Small(
        words="--json --names --passes 2 --validate 50 --set eta=0.8 --data {data}",
        tells=("F1@5", "NDCG", "median", "model"),
    ),
    "tests.simulation": Small(
        words="--seeds 3..6 --done {work}/seeds.txt --trace",
        says=r"(?s).+\n3 histories up to seed 5, [\d.]+ ms .*, [1-9]\d* answers, .*, failed: none\n",
    ),
}

CORES = {"benchmarks.http"}
"""Programs that put their processes on the cores 0 and 1."""

PROGRAM = re.compile(r"\bpython3? -m ((?:benchmarks|core|service|tests|examples)(?:\.\w+)*)([^|&#>]*)")


def documented() -> dict[str, set[str]]:
    """The options that the documents give to each program."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        blocks = [command.text for block in blocks_of(page) for command in block.commands]
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for one in (*blocks, *re.findall(r"`([^`]+)`", prose)):
            for name, rest in PROGRAM.findall(" ".join(one.split())):
                found.setdefault(name, set()).update(re.findall(r"--[a-z][\w-]*", rest))
    return found


def test_every_program_that_is_named_is_run_with_the_options_that_are_named() -> None:
    named = documented()
    assert named.keys() == PROGRAMS.keys()
    left = {name: options - set(PROGRAMS[name].words.split()) for name, options in named.items()}
    assert {name: options for name, options in left.items() if options} == {}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small data sets, and the folder that is kept."""
    data, kept = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("kept")
    make(data)
    python = kept / "rivals" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    shutil.copy(ROOT / "benchmarks" / "rivals" / "requirements.txt", kept / "rivals")
    return {"data": data, "kept": kept}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.timeout(small.seconds + 60)) for name, small in PROGRAMS.items()]
)
def test_a_program_runs_and_prints_figures(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    small = PROGRAMS[name]
    for program in small.needs:
        if shutil.which(program) is None and shutil.which(program, path="/usr/sbin:/usr/local/sbin") is None:
            pytest.skip(f"{program} is not installed")
    if name in CORES and not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("wants the cores 0 and 1")
    words = small.words.format(work=tmp_path, **folders).split()
    code, printed, complained = ran(name, words, folders["data"], tmp_path, small.seconds)
    assert code == 0, complained[-4000:] + printed[-4000:]
    for word in words:
        if word.startswith(f"{tmp_path}/"):
            assert Path(word).stat().st_size > 0
    if small.says:
        assert re.fullmatch(small.says, printed), printed[-4000:]
        return
    values = values_of(printed)
    told = list(numbers(values))
    assert set(small.tells) <= {key for key, _ in told}, printed[-4000:]
    assert [pair for pair in told if not math.isfinite(pair[1])] == []
    assert small.holds(values), printed[-4000:]


def ran(name: str, words: list[str], data: Path, work: Path, seconds: float) -> tuple[int, str, str]:
    """A program run to its end: exit code, standard output and error. All that it started ends with it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")}
    process = subprocess.Popen(
        [sys.executable, "-m", name, *words],
        cwd=work,
        env=kept | {"ABOUND_DATA": str(data), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complained = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, printed, complained


def values_of(printed: str) -> list[Any]:
    """The JSON values of an output: one, or one a line."""
    try:
        return [json.loads(printed)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in printed.splitlines()]


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a JSON value, with the name that each stands under."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
