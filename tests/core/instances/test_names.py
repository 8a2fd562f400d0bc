"""The normal form of labels and of the names of features."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound_core.instances.names import is_normal_json, label_texts, normalized

INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u2060\ufeff"
odd = st.text(st.one_of(st.sampled_from(" \t\xa0\u3000\u0301\u0307eaż" + INVISIBLE), st.characters(codec="utf-8")))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("grain", "grain"),
        (" grain\n", "grain"),
        ("New\u00a0York", "New York"),
        ("New\u200b York\ufeff", "New York"),
        ("soft\u00adware", "software"),
        ("a\tb\u3000 c", "a b  c"),  # runs of spaces stay
        ("Cafe\u0301", "Caf\u00e9"),
        ("e\u200d\u0301", "\u00e9"),
        ("\u200d \u200b", ""),
        ("CAFÉ", "CAFÉ"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # a joiner that is part of the spelling
        ("👩\u200d🔬 science", "👩\u200d🔬 science"),
        ("x\0y", "x\0y"),
    ],
)
def test_normal_form(given, expected):
    assert normalized(given) == expected


@given(odd)
def test_the_normal_form_is_nfc_trimmed_and_stays(name):
    once = normalized(name)
    assert normalized(once) == once == unicodedata.normalize("NFC", once).strip()
    assert not set(once) & set("\u00a0\u200b\u2060\ufeff\n\t")


@given(odd.map(lambda name: f'{{"{name}": "{name}"}}'))
def test_json_that_counts_as_normal_is(json):
    if is_normal_json(json):
        assert normalized(json).replace(" ", "") == json.translate({9: None, 10: None, 13: None, 32: None})


def test_a_whole_number_is_one_label_and_null_is_none():
    assert label_texts([3, 3.0, "3", " 3", "3.0", 2.5, None, float("nan")], True) == ["3"] * 4 + ["3.0", "2.5"]
    assert label_texts([" 3"], False) == [" 3"]
