"""Evaluating with classes above the labels."""

import pytest
import typer

from abound.cli.evaluate import _read_hierarchy
from abound.evaluation.batch import BatchEvaluation, evaluate_method
from tests.evaluation.test_evaluate import instances

PAIRS = tuple((f"kind {i}", "even" if i % 2 == 0 else "odd") for i in range(8))


def test_a_hierarchy_is_followed_and_tells_of_embeddings():
    rows, fresh = instances(300), instances(60, seed=1)
    down = evaluate_method(rows, fresh, BatchEvaluation.from_fields("top_down", {}, hierarchy=PAIRS))
    assert down["metrics"]["R@1"] > 0.8
    embedded = evaluate_method(rows, fresh, BatchEvaluation.from_fields("rembrandt", {"k": 8}, hierarchy=PAIRS))
    assert 0.0 <= embedded["nearest_labels_that_are_siblings"] <= 1.0
    assert "nearest_labels_that_are_siblings" not in evaluate_method(
        rows, fresh, BatchEvaluation.from_fields("rembrandt", {"k": 8})
    )


def test_a_file_has_two_names_a_line(tmp_path):
    path = tmp_path / "above.tsv"
    path.write_text("kind 1\todd\n\nodd\tall\n")
    assert _read_hierarchy(path) == (("kind 1", "odd"), ("odd", "all"))
    path.write_text("kind 1\todd\nkind 2\n")
    with pytest.raises(typer.BadParameter, match="line 2 is not two names"):
        _read_hierarchy(path)
    with pytest.raises(typer.BadParameter):
        _read_hierarchy(tmp_path / "missing")
