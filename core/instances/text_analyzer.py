"""Text analysis with scikit-learn's analyzers, set up from a model's configuration.

A term is a feature key like any other: the word ``wheat`` of a text and ``wheat`` in the features are one feature.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import cast

from abound.core.config import AnalyzerConfig


def build_analyzer(config: AnalyzerConfig) -> Callable[[str], list[str]]:
    """Return the function from a text to its terms, in order and including repetitions.

    Notes
    -----
    The result equals ``CountVectorizer(...).build_analyzer()`` of scikit-learn. Words are runs of letters, digits and
    ``_``. Single words need only a regular expression. The import of scikit-learn takes most of a second and 60 MB,
    so this function imports it only for other settings.
    """
    words = config.kind == "word"
    pattern = r"\w+" if config.min_length == 1 else rf"\w{{{config.min_length},}}"
    if words and config.ngrams == (1, 1) and not config.strip_accents and config.stop_words is None:
        find = re.compile(pattern).findall
        return (lambda text: find(text.lower())) if config.lowercase else find

    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(
        analyzer=config.kind,
        ngram_range=config.ngrams,
        lowercase=config.lowercase,
        strip_accents="unicode" if config.strip_accents else None,
        token_pattern=pattern,
        stop_words=config.stop_words if words else None,
    )
    return cast("Callable[[str], list[str]]", vectorizer.build_analyzer())


def term_weights(terms: list[str]) -> dict[str, float]:
    """Return each distinct term in order of first appearance, with 1 + the natural logarithm of its count."""
    return {term: 1.0 if count == 1 else 1.0 + math.log(count) for term, count in Counter(terms).items()}
