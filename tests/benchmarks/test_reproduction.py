"""``python -m benchmarks.reproduction`` on tiny data: it goes on where it was, and the page says what is kept."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abound.evaluation.batch import BatchEvaluation
from abound_core.config import ModelConfig
from abound_core.errors import Malformed
from abound_core.methods.registry import METHODS
from benchmarks.reproduction import __main__ as program
from benchmarks.reproduction import run as reproduction_run
from benchmarks.reproduction.comparisons import PLOTS, TABLES, select_experiments
from benchmarks.reproduction.data_sets import SETS, DataSet, read
from benchmarks.reproduction.drawing import draw
from benchmarks.reproduction.experiment import Bound, Experiment, Plot, PlotLine, ResultTable, Row
from benchmarks.reproduction.report import command, page
from benchmarks.reproduction.results import ResultsFile

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``python -m benchmarks.reproduction`` in this process: its exit code, and what it says."""
    for name in [name for name in os.environ if name.startswith("ABOUND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["reproduction", *map(str, arguments)])
        try:
            program.main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        run.printed = said.out  # type: ignore[attr-defined]
        return int(code or 0), said.err  # type: ignore[call-overload]

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two of the data sets, some dozens of instances each."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    for name in ("bibtex", "newsgroups20"):
        (folder / name).mkdir(parents=True)
    for part, n in (("train", 120), ("test", 20)):
        lines = [f"{n} 30 5"]
        for _ in range(n):
            label = int(rng.integers(5))
            words = sorted({label * 6 + int(place) for place in rng.integers(0, 6, 3)} | {int(rng.integers(30))})
            lines.append(f"{label} " + " ".join(f"{word}:1" for word in words))
        (folder / "bibtex" / f"{part}.txt").write_text("\n".join(lines) + "\n")
        texts = [{"text": f"a word of group{i % 3} number{i % 7}", "labels": [f"group {i % 3}"]} for i in range(n)]
        (folder / "newsgroups20" / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in texts))
    return folder


@pytest.mark.long
def test_quick_on_tiny_data(run, data, tmp_path):
    """All that is quick; a sentence for each set that is not there; the second time nothing runs."""
    out = tmp_path / "docs"
    code, said = run("--quick", "--data", data, "--out", out)
    assert code == 0
    figures = {one["id"]: one for one in json.loads((out / "reproduction/figures.json").read_text())}
    here = [
        one
        for one in select_experiments([], quick=True)
        if one.data in ("bibtex", "newsgroups20", "newsgroups20-random")
    ]
    assert set(figures) == {one.id for one in here}
    assert figures["bibtex swnn"]["measures"]["P@1"] > 50
    assert said.count("delicious: not in the data folder") == 1
    text = (out / "reproduction.md").read_text()
    assert f"{len(figures)} of " in text
    assert "not run" in text
    assert (out / "reproduction/bibtex-fit.svg").read_text().startswith("<?xml")
    written = (out / "reproduction/figures.json").stat().st_mtime_ns
    code, said = run("--quick", "--data", data, "--out", out)
    assert code == 0
    assert "bibtex swnn" not in said
    assert (out / "reproduction/figures.json").stat().st_mtime_ns == written
    assert (out / "reproduction.md").read_text() == text


def test_a_folder_of_data_that_is_not_there_is_refused(run, data, tmp_path):
    for wrong in (tmp_path / "nowhere", data / "bibtex" / "train.txt"):
        code, said = run("--quick", "--data", wrong, "--out", tmp_path / "docs")
        assert code == 2
        assert "no such folder" in said
        assert wrong.name in said
    assert not (tmp_path / "docs").exists()


@pytest.mark.long
def test_an_interrupted_run_goes_on(run, data, tmp_path):
    out = tmp_path / "docs"
    run("--only", "bibtex swnn", "--data", data, "--out", out)
    before = json.loads((out / "reproduction/figures.json").read_text())
    assert [one["id"] for one in before] == ["bibtex swnn"]
    _, said = run("--only", "bibtex-fit", "--quick", "--data", data, "--out", out)
    assert "bibtex swnn:" not in said
    assert "bibtex rembrandt:" in said
    after = {one["id"]: one for one in json.loads((out / "reproduction/figures.json").read_text())}
    assert after["bibtex swnn"] == before[0]
    _, said = run("--only", "bibtex swnn", "--again", "--data", data, "--out", out)
    assert "bibtex swnn:" in said


def test_json_has_the_figures_of_what_was_asked_for(run, data, tmp_path):
    run("--only", "bibtex swnn", "--data", data, "--out", tmp_path, "--json")
    printed = json.loads(run.printed)  # type: ignore[attr-defined]
    assert printed["page"] == str(tmp_path / "reproduction.md")
    [figures] = json.loads((tmp_path / "reproduction/figures.json").read_text())
    assert printed["experiments"] == {"bibtex swnn": figures}
    run("--list", "--json")
    assert "bibtex-fit" in json.loads(run.printed)  # type: ignore[attr-defined]


def test_what_was_refused_runs_with_more_memory(run, data, tmp_path, monkeypatch):
    options = ("--only", "bibtex ogeec neighbors=10 learners=1 seeds=0,1,2,3,4", "--data", data, "--out", tmp_path)
    seeds = reproduction_run._seeds

    def small(*arguments: Any) -> Any:  # what the process has freed before may be enough for so few instances
        raise MemoryError

    monkeypatch.setattr(reproduction_run, "_seeds", small)
    _, said = run(*options, "--memory", "1")
    assert "refused: out of memory" in said
    assert "refused: " in (tmp_path / "reproduction.md").read_text()
    assert run(*options, "--memory", "1")[1].strip() == ""
    monkeypatch.setattr(reproduction_run, "_seeds", seeds)
    assert "P@1" in run(*options)[1]


def test_without_matplotlib_there_is_a_sentence_and_a_page(run, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, said = run("--only", "bibtex swnn", "--data", data, "--out", tmp_path)
    assert code == 0
    assert "the plots need matplotlib: pip install" in said
    assert "![" not in (tmp_path / "reproduction.md").read_text()


def test_wrong_use(run, tmp_path):
    assert run("--only", "nonsense", "--out", tmp_path)[0] == 2
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction/figures.json").write_text("{")
    code, said = run("--quick", "--out", tmp_path)
    assert code == 1
    assert "figures.json cannot be read" in said


def test_the_page_says_what_is_kept_and_whether_it_is_enough(tmp_path):
    one, other = Experiment(data="bibtex", method="swnn"), Experiment(data="bibtex", method="ogeec", seeds=(0, 1))
    rows = (
        Row(label="first", experiment=one, paper="58", bounds=(Bound(measure="P@1", least=58.0),)),
        Row(label="second", experiment=other, bounds=(Bound(measure="P@1", least=1.0, than=one, named="first"),)),
        Row(label="third", experiment=Experiment(data="bibtex", method="ind")),
        Row(label="fourth", experiment=one, bounds=(Bound(measure="P@1", least=55.0, most=57.0, above=True),)),
        Row(label="fifth", experiment=one, bounds=(Bound(measure="P@1", least=55.0, most=57.0),)),
    )
    table = ResultTable(name="some", title="Some", note="", measures=("P@1",), rows=rows)
    kept = ResultsFile(tmp_path)
    cost = {"fit": 1.26, "rank": 0.5, "megabytes": 2.0}
    kept.store({"id": one.id, "measures": {"P@1": 57.9}, "cost": cost, "with": "Python", "on": "2026-11-20"})
    spread = {"P@1": [58.5, 59.5]}
    kept.store({"id": other.id, "measures": {"P@1": 59.0}, "spread": spread, "with": "Python", "on": "2026-11-20"})
    text = page((table,), (), ResultsFile(tmp_path), "reproduction", [])
    assert "| first | 58 | 57.90 | P@1 >= 58: **missed** | 1.3 | 0.500 | 2.0 | 1 |" in text
    assert "| second |  | 59.00 (58.50 to 59.50) | P@1 - that of first >= 1: yes |" in text
    assert "| third |  | not run |" in text
    assert "| fourth |  | 57.90 | P@1 55 to 57: yes |" in text
    assert "2 of 4 expected figures were reached." in text
    missed, better = text.split("Better than expected:")
    assert "- Some, first: expected P@1 >= 58, here 57.90" in missed
    assert "- Some, fifth: expected P@1 55 to 57, here 57.90" in missed
    assert "- Some, fourth: expected P@1 55 to 57, here 57.90" in better.split("## Some")[0]
    assert "--train bibtex/train.* --test bibtex/test.* --method swnn`" in text
    assert "`python -m benchmarks.reproduction --only 'bibtex ogeec seeds=0,1'`" in text


def test_the_page_in_the_documents_is_the_one_of_its_figures():
    documents = Path(program.__file__).parents[2] / "docs"
    figures = documents / program.FOLDER
    drawn = [plot.name for plot in PLOTS if (figures / f"{plot.name}.svg").exists()]
    written = page(TABLES, PLOTS, ResultsFile(figures), program.FOLDER, drawn)
    assert (documents / program.PAGE).read_text() == written


def test_a_plot_has_points_of_several_measures_and_a_sign_for_each_method(tmp_path):
    kept = ResultsFile(tmp_path)
    methods = list(METHODS)
    for number, method in enumerate(methods):
        measures = {"l1": number / 10, "max": number / 20}
        kept.store({"id": f"bibtex {method}", "measures": measures, "cost": {"fit": 1.0 + number}})
    experiments = [Experiment(data="bibtex", method=method) for method in methods]
    bars = tuple(PlotLine(label=one.method, points=(("l1", one), ("max", one))) for one in experiments)
    points = tuple(PlotLine(label=one.method, points=(("cost fit", one),)) for one in experiments)
    plots = (
        Plot(name="bars", title="", x="", y="distance", lines=bars, bars=True),
        Plot(name="points", title="", x="fit", y="l1", lines=points, log=True),
    )
    assert draw(plots, kept, tmp_path) == ["bars", "points"]
    drawn = (tmp_path / "bars.svg").read_text()
    assert ">l1<" in drawn
    assert ">max<" in drawn
    names = (tmp_path / "points.svg").read_text()
    assert all(names.count(f">{method}<") == 1 for method in methods)


def test_damaged_figures_are_refused(tmp_path):
    (tmp_path / "figures.json").write_text("[{}]")
    with pytest.raises(Malformed, match="cannot be read"):
        ResultsFile(tmp_path)


def test_two_runs_keep_the_figures_of_both(tmp_path):
    first, second = ResultsFile(tmp_path), ResultsFile(tmp_path)
    first.store({"id": "one", "measures": {"P@1": 1.23456789}})
    second.store({"id": "other"})
    kept = {figures["id"]: figures for figures in json.loads((tmp_path / "figures.json").read_text())}
    assert kept == {"one": {"id": "one", "measures": {"P@1": 1.23457}}, "other": {"id": "other"}}


EXPERIMENTS = select_experiments([], quick=False)


def test_experiments_are_told_apart_and_all_that_is_compared_with_runs():
    ids = {one.id for one in EXPERIMENTS}
    assert len(EXPERIMENTS) == len(ids) > 250
    names = [named.name for named in (*TABLES, *PLOTS)]
    assert len(names) == len(set(names))
    others = [bound.than for table in TABLES for row in table.rows for bound in row.bounds if bound.than is not None]
    assert len(others) > 10
    assert {other.id for other in others} <= ids


@pytest.mark.parametrize("one", EXPERIMENTS, ids=[one.id for one in EXPERIMENTS])
def test_an_experiment_can_be_run(one):
    """Its data and parameters are known, and so is a command for it."""
    assert command(one).startswith(("abound evaluate ", "python -m benchmarks.reproduction "))
    if one.method == "fsu":
        assert set(one.params) <= {"classes", "w_min", "trials"}
        return
    assert one.data in SETS
    changes = {name: value for name, value in one.params.items() if name != "passes" or not one.is_live}
    if one.is_live:
        changes.pop("params", None)
        ModelConfig.from_dict(changes)
    else:
        BatchEvaluation.from_fields(one.method, changes)


def test_random_splits_are_of_the_seed_and_cover_all(data):
    held = read(DataSet(folder="newsgroups20", test_share=0.2), data, boolean=False)
    train, test = held.split(0)
    assert (len(train), len(test)) == (112, 28)
    assert sorted([*train.vectors, *test.vectors]) == sorted(held.train.vectors)
    assert held.split(0)[1].vectors == test.vectors
    assert held.split(1)[1].vectors != test.vectors
    assert held.text
    longer = read(DataSet(folder="newsgroups20", test_share=0.2, min_length=2), data, boolean=False)
    assert min(map(len, held.matrices(0)[0].keys)) == 1
    assert min(map(len, longer.matrices(0)[0].keys)) == 2
    counted = read(DataSet(folder="newsgroups20", counts=True, queries=3), data, boolean=False)
    assert not counted.text
    assert counted.test is not None
    assert len(counted.test) == 3
    few = read(DataSet(folder="newsgroups20", instances=7), data, boolean=False)
    assert len(few.train) == 7
    assert few.test is not None
    assert len(few.test) == 20
    first = read(DataSet(folder="newsgroups20", labels=("group 1",)), data, boolean=False)
    assert first.train.names == ["group 1"]
    assert len(first.train) == 40
