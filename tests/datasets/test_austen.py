"""The word-prediction stream has the counts that its definition promises."""

import itertools
from collections import Counter

from abound.datasets.austen import TEMPLATES, features_of, novels


def test_counts_of_the_set():
    counts = Counter(itertools.chain.from_iterable(novels()))
    assert counts.total() == 724_858
    assert len(counts) == 14_072
    assert sum(count == 1 for count in counts.values()) == 4_498
    assert counts.most_common(3) == [("the", 26_357), ("to", 24_050), ("and", 22_517)]
    assert round(sum(count for _, count in counts.most_common(10)) / counts.total(), 3) == 0.228


def test_features_read_well():
    assert len(TEMPLATES) == 15
    features = features_of(["a", "b", "c", "X", "d", "e", "f"], 3)
    names = "-3 -2 -1 +1 +2 +3 -3,-2 -2,-1 -1,+1 +1,+2 +2,+3 -3,-2,-1 -2,-1,+1 -1,+1,+2 +1,+2,+3"
    assert " ".join(features) == names
    assert "|".join(features.values()) == "a|b|c|d|e|f|a b|b c|c d|d e|e f|a b c|b c d|c d e|d e f"
