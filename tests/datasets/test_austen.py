"""The word-prediction stream has the counts that its definition promises."""

import itertools
import json
from collections import Counter

from abound.datasets.austen import TEMPLATES, context, features_of, novels, stream, words_of


def test_words():
    assert words_of("'Tis _the_ Don't-Know's, 1817: Élinor’s'") == ["tis", "the", "don't", "know's", "élinor’s"]


def test_counts_of_the_set():
    counts = Counter(itertools.chain.from_iterable(novels()))
    assert counts.total() == 724_858
    assert len(counts) == 14_072
    assert sum(count == 1 for count in counts.values()) == 4_498
    assert counts.most_common(3) == [("the", 26_357), ("to", 24_050), ("and", 22_517)]
    assert round(sum(count for _, count in counts.most_common(10)) / counts.total(), 3) == 0.228


def test_distinct_words_on_their_offsets():
    singles = set()
    for novel in novels():
        padded = ["|"] * 3 + list(novel) + ["|"] * 3
        for offset in (-3, -2, -1, 1, 2, 3):
            singles |= {(offset, word) for word in padded[3 + offset : 3 + offset + len(novel)]}
    assert len(singles) == 84_434


def test_features_read_well():
    assert len(TEMPLATES) == 15
    features = features_of(["a", "b", "c", "X", "d", "e", "f"], 3)
    assert list(features.items()) == [
        ("-3", "a"),
        ("-2", "b"),
        ("-1", "c"),
        ("+1", "d"),
        ("+2", "e"),
        ("+3", "f"),
        ("-3,-2", "a b"),
        ("-2,-1", "b c"),
        ("-1,+1", "c d"),
        ("+1,+2", "d e"),
        ("+2,+3", "e f"),
        ("-3,-2,-1", "a b c"),
        ("-2,-1,+1", "b c d"),
        ("-1,+1,+2", "c d e"),
        ("+1,+2,+3", "d e f"),
    ]


def test_the_stream_starts_with_the_first_novel():
    first, second = itertools.islice(stream(), 2)
    assert first.labels == ("sense",)
    assert json.loads(first.features or b"")["-1"] == "|"
    assert second.labels == ("and",)
    assert json.loads(second.features or b"")["-2,-1,+1"] == "| sense sensibility"


def test_novels_do_not_run_into_each_other():
    last_of_first = next(itertools.islice(stream(), len(novels()[0]) - 1, None))
    assert json.loads(last_of_first.features or b"")["+1"] == "|"


def test_a_shuffled_stream_is_fixed_by_its_seed():
    def labels(seed: int) -> list[str]:
        return [instance.labels[0] for instance in itertools.islice(stream(seed), 20)]

    assert labels(3) == labels(3)
    assert labels(3) != labels(4)


def test_a_context():
    features = json.loads(context("It is a truth universally", "that a").features or b"")
    assert features["-1"] == "universally"
    assert features["-1,+1"] == "universally that"
    assert features["+3"] == "|"
