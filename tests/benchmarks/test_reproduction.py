"""``python -m benchmarks.reproduction`` on tiny data: it goes on where it was, and the page says what is kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from abound.evaluation.batch import BatchEvaluation
from abound_core.config import ModelConfig
from benchmarks.reproduction import __main__ as program
from benchmarks.reproduction.comparisons import PLOTS, TABLES, select_experiments
from benchmarks.reproduction.data_sets import SETS
from benchmarks.reproduction.experiment import Bound, Experiment, ResultTable, Row
from benchmarks.reproduction.proportions import deviation, distances
from benchmarks.reproduction.report import command, page
from benchmarks.reproduction.results import ResultsFile
from tests.documents.data_sets import make

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    words = [sys.executable, "-m", "benchmarks.reproduction", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, env=environment | {"COLUMNS": "300"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_quick_on_tiny_data(tmp_path):
    """All that is quick; a sentence for each set that is not there; the second time nothing runs."""
    data, out = tmp_path / "data", tmp_path / "docs"
    make(data, ("bibtex", "newsgroups20"))
    said = run("--quick", "--data", data, "--out", out)
    figures = {one["id"]: one for one in json.loads((out / "reproduction/figures.json").read_text())}
    here = ("bibtex", "newsgroups20", "newsgroups20-random")
    assert set(figures) == {one.id for one in select_experiments([], quick=True) if one.data in here}
    assert figures["bibtex swnn"]["measures"]["P@1"] > 50
    assert said.count("delicious: not in the data folder") == 1
    text = (out / "reproduction.md").read_text()
    assert f"{len(figures)} of " in text
    assert "not run" in text
    assert (out / "reproduction/bibtex-fit.svg").read_text().startswith("<?xml")
    written = (out / "reproduction/figures.json").stat().st_mtime_ns
    said = run("--quick", "--data", data, "--out", out)
    assert "bibtex swnn" not in said
    assert (out / "reproduction/figures.json").stat().st_mtime_ns == written
    assert (out / "reproduction.md").read_text() == text


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
    documents = Path(program.__file__).parents[2] / "benchmarks" / "notes"
    figures = documents / program.FOLDER
    drawn = [plot.name for plot in PLOTS if (figures / f"{plot.name}.svg").exists()]
    written = page(TABLES, PLOTS, ResultsFile(figures), program.FOLDER, drawn)
    assert (documents / program.PAGE).read_text() == written


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


def test_a_tenth_as_least_weight_is_worse_than_a_hundredth():
    """Figures 21 and 22."""
    means = [np.mean([deviation(0.1, 100, w, np.random.default_rng(seed)) for seed in range(20)]) for w in (0.01, 0.1)]
    assert means[0] < means[1]
    l1 = [np.mean([distances(w, np.random.default_rng(seed))[0] for seed in range(20)]) for w in (0.01, 0.1)]
    assert l1[0] < l1[1]
