"""Text to terms."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from abound.core.config import AnalyzerConfig
from abound.core.instances.text_analyzer import build_analyzer, term_weights

SENTENCE = "The Wheat_2 prices, e.g. in Żółw's U.S.A., and the WHEAT prices!"


def test_words_by_default():
    terms = build_analyzer(AnalyzerConfig())(SENTENCE)
    assert " ".join(terms) == "the wheat_2 prices e g in żółw s u s a and the wheat prices"


@pytest.mark.parametrize(
    ("config", "terms"),
    [
        ({"lowercase": False}, "The Wheat_2 prices e g in Żółw s U S A and the WHEAT prices"),
        ({"strip_accents": True}, "the wheat_2 prices e g in zołw s u s a and the wheat prices"),
        ({"min_length": 3}, "the wheat_2 prices żółw and the wheat prices"),
        ({"stop_words": "english"}, "wheat_2 prices e g żółw s u s wheat prices"),
        ({"stop_words": "english", "min_length": 4}, "wheat_2 prices żółw wheat prices"),
    ],
)
def test_words(config, terms):
    assert " ".join(build_analyzer(AnalyzerConfig(**config))(SENTENCE)) == terms


def test_grams_of_words_and_characters():
    assert build_analyzer(AnalyzerConfig(ngrams=(1, 2)))("Wheat and grain") == [
        "wheat",
        "and",
        "grain",
        "wheat and",
        "and grain",
    ]
    assert build_analyzer(AnalyzerConfig(kind="char", ngrams=(3, 3)))("A wheat") == ["a w", " wh", "whe", "hea", "eat"]
    assert build_analyzer(AnalyzerConfig(kind="char_wb", ngrams=(3, 3)))("a bc") == [" a ", " bc", "bc "]


def test_weights_in_order_of_appearance():
    assert list(term_weights(["b", "a", "b", "c", "b", "a"]).items()) == [
        ("b", 1 + math.log(3)),
        ("a", 1 + math.log(2)),
        ("c", 1.0),
    ]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("min_length", [1, 3])
@given(text=st.text() | st.text(st.sampled_from("aB1_ \u0130\u00df\u0301\u200d\u0660.'\n-")))
def test_single_words_are_those_of_scikit_learn(lowercase, min_length, text):
    theirs = CountVectorizer(lowercase=lowercase, token_pattern=rf"\w{{{min_length},}}").build_analyzer()
    assert build_analyzer(AnalyzerConfig(lowercase=lowercase, min_length=min_length))(text) == theirs(text)


def test_nothing_of_scikit_learn_is_loaded_for_single_words():
    program = (
        "import sys; from abound.service.processes.kernel_cache import set_cache_dir; set_cache_dir(); "
        "from abound.core.model.live_model import warmup; warmup(); "
        "print('sklearn' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert out.stdout == "False\n"
