"""The arithmetic of the programs that measure accuracy."""

from benchmarks.rivals.instances import measures


def test_answers_are_measured():
    figures = measures([["a", "b"], ["b", "a"], ["c"]], [["a"], ["a", "b"], []])
    assert figures == {"R@1": 1.0, "R@5": 1.0, "MRR": 1.0, "P@5": 3 / 15}
    assert measures([["a"], ["b"]], [["b"], ["b"]])["R@1"] == 0.5
