"""``abound evaluate`` and ``abound methods``, and the running accuracy of commands against the plain definition."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound.cli.accuracy import RunningAccuracy
from tests.support.command_line import Run


def test_evaluate_gives_the_promised_object(run: Run, train: Path, test: Path) -> None:
    ran = run("evaluate", "--train", train, "--test", test, "--set", "margin=0.5", "--passes", 2, "--json")
    assert ran.code == 0
    names = {f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in (1, 3, 5)}
    assert ran.json["metrics"].keys() == names | {"R@1", "R@5", "macro R@5", "MRR", "HR"}
    assert ran.json["metrics"]["R@1"] > 0.9
    assert ran.json["metrics"]["HR"] >= 1.0
    assert ran.json["instances"] == {"train": 1500, "test": 100}
    assert ran.json.keys() >= {"connections", "work_per_feature", "bytes", "seconds"}
    assert ran.json["seconds"].keys() >= {"fit", "rank"}


def test_evaluate_shows_what_a_model_would_decide(run: Run, train: Path, test: Path) -> None:
    ran = run("evaluate", "--train", train, "--test", test, "--set", "update=sls", "--decide", 0.93, "--json")
    rows = ran.json["decisions"]
    assert [row["target"] for row in rows] == [0.8, 0.9, 0.93, 0.95, 0.98, 0.99]
    assert [sum(row[name] for name in ("answer", "defer", "none")) for row in rows] == pytest.approx([1.0] * 6)
    answers = [row["answer"] for row in rows]
    assert answers == sorted(answers, reverse=True)
    assert rows[2]["agreement"] > 0.9
    told = run("evaluate", "--train", train, "--test", test, "--decide", 0.9)
    assert "agreement" in told.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "svm"], "there is no method"),
        (["--set", "w_min=2"], "w_min must be"),
        (["--set", "wmin=0.1"], "wmin is not a field"),
        (["--set", "analyzer.kind=words"], "analyzer.kind must be word"),
        (["--propensity-b", "0"], "b > 0"),
        (["--hide-labels", "0.5"], "from a method only"),
        (["--method", "swnn", "--passes", "2"], "for the live index"),
        (["--method", "swnn", "--decide", "0.9"], "for the live index"),
        (["--decide", "0.1"], "greater than or equal to 0.5"),
        (["--method", "swnn", "--set", "S=0"], "S must be"),
        (["--method", "swnn", "--set", "margin=1"], "margin is not a parameter of swnn"),
        (["--method", "swnn", "--set", "params=auto", "--set", "S=3"], "params can only be auto"),
        (["--method", "frequency", "--set", "params=auto"], "no parameters that can be searched"),
    ],
)
def test_evaluate_refuses_what_it_does_not_know(options, message, run, train, test):
    ran = run("evaluate", "--train", train, "--test", test, *options)
    assert ran.code == 2
    assert message in ran.err


def test_a_batch_method_is_evaluated_by_the_same_command(run: Run, train: Path, test: Path) -> None:
    files = ("--train", train, "--test", test, "--method", "swnn")
    ran = run("evaluate", *files, "--set", "S=9", "--set", "analyzer.min_length=2", "--json")
    live = run("evaluate", "--train", train, "--test", test, "--json")
    assert ran.code == 0
    assert ran.json.keys() >= live.json.keys() - {"digest", "calibration"}
    assert ran.json["metrics"].keys() == live.json["metrics"].keys()
    assert ran.json["metrics"]["R@1"] > 0.9
    assert ran.json["params"] == {"S": 9, "alpha": 2.0, "beta": 1.0, "prune": True}
    assert ran.json["idf"] is True
    assert ran.json["instances"] == {"train": 1500, "test": 100}
    people = run("evaluate", *files)
    assert "1,500 instances, 1,500 learned" in people.out
    assert "alpha" in people.out


def test_a_method_is_evaluated_without_the_encoder_of_an_analyzer(run: Run, train: Path, test: Path) -> None:
    files = ("evaluate", "--train", train, "--test", test, "--method", "swnn", "--json")
    for embed in ("wordllama", '{"url": "http://127.0.0.1:9/v1", "model": "small"}'):
        ran = run(*files, "--set", f"analyzer.embed={embed}")
        assert (ran.code, ran.json["metrics"]) == (0, run(*files).json["metrics"])


def test_parameters_are_searched_for(run: Run, train: Path, test: Path) -> None:
    for method in ("ff", "swnn"):
        ran = run("evaluate", "--train", train, "--test", test, "--method", method, "--set", "params=auto", "--json")
        assert ran.code == 0
        assert ran.json["params"].keys() >= ({"passes", "margin"} if method == "ff" else {"S", "alpha"})


def test_ff_is_the_method_of_jobs(run: Run, train: Path, test: Path) -> None:
    """With its default parameters it learns as a new live index does."""
    files = ("evaluate", "--train", train, "--test", test, "--json")
    ran = run(*files, "--method", "ff", "--set", "vote_min=0.05", "--set", "passes=2")
    assert ran.json["params"] == run("methods", "--json").json["ff"]["params"] | {"vote_min": 0.05, "passes": 2}
    live, batch = run(*files).json, run(*files, "--method", "ff").json
    assert batch["metrics"] == pytest.approx(live["metrics"], abs=0.02)
    assert batch["params"]["margin"] == live["params"]["margin"] == 0.0


def test_hidden_labels_are_not_learned(run: Run, train: Path, test: Path) -> None:
    files = ("--train", train, "--test", test, "--method", "frequency", "--json")
    assert run("evaluate", *files, "--hide-labels", 0.8).json["learned"] < 1000
    assert run("evaluate", *files, "--hide-labels", 1).code == 1
    assert run("evaluate", *files).json["learned"] == 1500


def test_the_methods_are_listed(run: Run) -> None:
    listed = run("methods", "--json")
    assert listed.json["swnn"]["params"]["S"] == 75
    assert listed.json["swnn"]["search"] is True
    assert all(method["cost"] and method["use"] for method in listed.json.values())
    people = run("methods")
    assert people.code == 0
    assert all(name in people.out for name in listed.json)


def plain(ranks: list[int | None]) -> dict[str, object]:
    n = len(ranks)
    if n == 0:
        return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
    found = [rank for rank in ranks if rank]
    return {
        "n": n,
        "R@1": sum(rank <= 1 for rank in found) / n,
        "R@5": sum(rank <= 5 for rank in found) / n,
        "MRR": pytest.approx(sum(1 / rank for rank in found) / n),
    }


@given(st.lists(st.none() | st.integers(0, 9), max_size=30), st.integers(1, 10))
def test_all_and_the_newest(ranks: list[int | None], window: int) -> None:
    tally = RunningAccuracy(window)
    for rank in ranks:
        tally.add(rank)
    assert tally.all() == plain(ranks)
    assert tally.window() == plain(ranks[-window:])
