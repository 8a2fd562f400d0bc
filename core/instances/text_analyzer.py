"""Text analysis: words of every script, n-grams of them, and n-grams of characters.

A term is a feature key like any other: the word ``wheat`` of a text and ``wheat`` in the features are one feature.

``unicode`` boundaries use Unicode's word characters (UTS 18: letters, marks, digits, joiners, ``_``), by the tables of
the library ``regex``. ``simple`` boundaries and everything else are scikit-learn's analyzers.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import cast

import regex

from abound.core.config import AnalyzerConfig

_UNSPACED = r"[\w&&[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Line_Break=Complex_Context}]]"
"""Word characters of scripts without spaces. Complex_Context is Thai, Lao, Khmer, Myanmar and their neighbours."""

_LETTERS = rf"[\w--{_UNSPACED}]"

_TOKEN = regex.compile(
    rf"""(?xV1)
      (?: (?<!\w)[\#@] )? {_UNSPACED}+
    | \p{{Regional_Indicator}}{{1,2}}
    | \p{{Extended_Pictographic}} (?: \p{{Emoji_Modifier}} | \u200d\p{{Extended_Pictographic}} )*
    | (?: (?<!{_LETTERS})[\#@] | (?<![{_LETTERS}.])\.(?=[^\W\d_]) )? {_LETTERS}+ (?: \+\+ | \#(?!{_LETTERS}) )?
    """
)
"""A run of a script without spaces, a flag, an emoji, or a word. Runs and words may begin with ``#`` or ``@``."""

_UNSPACED_RUN = regex.compile(rf"(?V1){_UNSPACED}")
_CHARACTER = regex.compile(r"\X")
"""A letter with its marks (a grapheme cluster); pairs of code points would separate Thai vowels from their letters."""

_EMOJI = regex.compile(r"[\p{Regional_Indicator}\p{Extended_Pictographic}]")

_ASCII_WORD = re.compile(r"\w+")
_ASCII_SIGN = re.compile(r"[#@+]|(?<![\w.])\.[a-zA-Z]")
_ASCII_TOKEN = re.compile(r"\w+(?:\+\+|#(?!\w))?|(?:(?<!\w)[#@]|(?<![\w.])\.(?=[a-zA-Z]))\w+(?:\+\+|#(?!\w))?")
"""Finds the same tokens as ``_TOKEN`` in ASCII. In a text without signs, ``_ASCII_WORD`` finds them too."""

_VARIATION_SELECTOR = "\ufe0f"
"""Requests a coloured emoji. It is removed, so that an emoji with it and one without it are the same token."""


def build_analyzer(config: AnalyzerConfig) -> Callable[[str], list[str]]:
    """Return a function that splits a text into its terms, in order and including repetitions.

    Notes
    -----
    With ``simple`` boundaries the result equals ``CountVectorizer(...).build_analyzer()`` of scikit-learn. The import
    of scikit-learn takes most of a second and 60 MB, so this function imports it only for n-grams,
    accents and stop words.
    """
    words = config.kind == "word"
    in_unicode = words and config.boundaries == "unicode"
    pattern = r"\w+" if config.min_length == 1 else rf"\w{{{config.min_length},}}"
    find = _unicode_tokenizer(config.min_length) if in_unicode else re.compile(pattern).findall
    if words and config.ngrams == (1, 1) and not config.strip_accents and config.stop_words is None:
        return (lambda text: find(text.lower())) if config.lowercase else find

    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(
        analyzer=config.kind,
        ngram_range=config.ngrams,
        lowercase=config.lowercase,
        strip_accents="unicode" if config.strip_accents else None,
        token_pattern=None if in_unicode else pattern,
        tokenizer=find if in_unicode else None,
        stop_words=config.stop_words if words else None,
    )
    return cast("Callable[[str], list[str]]", vectorizer.build_analyzer())


def _unicode_tokenizer(min_length: int) -> Callable[[str], list[str]]:
    """Return a function that splits a text into tokens at ``unicode`` boundaries.

    Words of fewer than ``min_length`` characters are left out.
    """

    def tokenize(text: str) -> list[str]:
        if text.isascii():
            tokens = (_ASCII_TOKEN if _ASCII_SIGN.search(text) else _ASCII_WORD).findall(text)
        else:
            tokens = _tokens(text)
        if min_length > 1:
            tokens = [token for token in tokens if len(token) >= min_length or not _is_word(token)]
        return tokens

    return tokenize


def _is_word(token: str) -> bool:
    return not (_UNSPACED_RUN.match(token) or _EMOJI.match(token))


def _tokens(text: str) -> list[str]:
    text = unicodedata.normalize("NFKC", text).replace(_VARIATION_SELECTOR, "")
    found = _TOKEN.findall(text)
    if not _UNSPACED_RUN.search(text):
        return cast("list[str]", found)
    tokens: list[str] = []
    for token in found:
        if token[0] in "#@" and _UNSPACED_RUN.match(token, 1):
            tokens.append(token)
            token = token[1:]
        if len(token) > 1 and _UNSPACED_RUN.match(token):
            characters = _CHARACTER.findall(token)
            tokens += map(operator.add, characters, characters[1:]) if len(characters) > 1 else characters
        else:
            tokens.append(token)
    return tokens


def term_weights(terms: list[str]) -> dict[str, float]:
    """Return each distinct term in order of first appearance, with 1 + the natural logarithm of its count."""
    return {term: 1.0 if count == 1 else 1.0 + math.log(count) for term, count in Counter(terms).items()}
