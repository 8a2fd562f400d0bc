"""The word-prediction stream has the counts that its definition promises."""

import itertools
import json
from collections import Counter

from abound.datasets.austen import TEMPLATES, features_of, novels, stream, words_of


def test_words():
    assert words_of("'Tis _the_ Don't-Know's, 1817: Élinor’s'") == ["tis", "the", "don't", "know's", "élinor’s"]


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


def test_the_stream_starts_with_the_first_novel():
    first, second = itertools.islice(stream(), 2)
    assert first.labels == ("sense",)
    assert json.loads(first.features or b"")["-1"] == "|"
    assert second.labels == ("and",)
    assert json.loads(second.features or b"")["-2,-1,+1"] == "| sense sensibility"
    last_of_first = next(itertools.islice(stream(), len(novels()[0]) - 1, None))
    assert json.loads(last_of_first.features or b"")["+1"] == "|", "novels do not run into each other"


def test_a_shuffled_stream_is_fixed_by_its_seed():
    def labels(seed: int) -> list[str]:
        return [instance.labels[0] for instance in itertools.islice(stream(seed), 20)]

    assert labels(3) == labels(3)
    assert labels(3) != labels(4)
