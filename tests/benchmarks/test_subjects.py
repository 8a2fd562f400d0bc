"""The measures of subject indexing, on examples small enough to compute by hand."""

import math

import pytest

from abound_core.instances.data_formats import DatasetInstance
from benchmarks.subjects import f1, language_of, ndcg


def test_measures_of_two_hits_among_three_true_labels():
    suggested = ["a", "x", "b", "y", "z", "c"]  # the third true label is the sixth suggestion
    assert f1(suggested, ["a", "b", "c"]) == pytest.approx(2 * 2 / (3 + 5))
    gain = 1 + 1 / math.log2(4) + 1 / math.log2(7)
    assert ndcg(suggested, ["a", "b", "c"]) == pytest.approx(gain / (1 + 1 / math.log2(3) + 1 / math.log2(4)))


def test_fewer_suggestions_and_labels_that_are_not_found_count():
    assert f1(["a"], ["a", "b"]) == pytest.approx(2 / 3)
    assert f1([], ["a"]) == ndcg([], ["a"]) == 0
    assert ndcg([*"0123456789", "a"], ["a"]) == 0  # the eleventh


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", {"title": "Grundlagen der Regelungstechnik", "body": "Eine Einführung in die Theorie."}),
        ("en", {"title": "Control theory", "body": "An introduction to the theory of control."}),
        ("en", {"title": "Biometrics", "body": None}),
    ],
)
def test_language_of_a_record(language, text):
    assert language_of(DatasetInstance(features=None, text=text, labels=("x",))) == language
