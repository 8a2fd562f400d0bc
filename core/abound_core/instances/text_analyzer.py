"""Text analysis: words of every script, n-grams of them, and n-grams of characters.

A term is a feature key like any other: the word ``wheat`` of a text and ``wheat`` in the features are one feature.

``unicode`` boundaries use Unicode's word characters (UTS 18: letters, marks, digits, joiners, ``_``), by the tables of
the library ``regex``.

A call of ``re``, ``unicodedata`` or ``Counter`` holds the GIL until it returns; ``regex`` releases it. So that a thread
can analyze a long text while the event loop goes on, no call of the first kind gets more than a piece of it.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, cast

import regex
from Stemmer import Stemmer

from abound_core.config import AnalyzerConfig
from abound_core.errors import InvalidInstance

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

PIECE = 2048
MAX_UNORDERED = 64  # marks at the end of a piece that are left to ``unicodedata.normalize`` to sort

LONG = 2**16  # characters of a text up to which one call finds all words

_SPACES = re.compile(r"\s\s+")
_ASCII_WORD = re.compile(r"\w+")
_ASCII_SIGN = re.compile(r"[#@+]|(?<![\w.])\.[a-zA-Z]")
_ASCII_TOKEN = re.compile(r"\w+(?:\+\+|#(?!\w))?|(?:(?<!\w)[#@]|(?<![\w.])\.(?=[a-zA-Z]))\w+(?:\+\+|#(?!\w))?")
"""Finds the same tokens as ``_TOKEN`` in ASCII. In a text without signs, ``_ASCII_WORD`` finds them too."""

_VARIATION_SELECTOR = "\ufe0f"
"""Requests a coloured emoji. It is removed, so that an emoji with it and one without it are the same token."""


def stop_words_of(config: AnalyzerConfig) -> frozenset[str]:
    """Return the words that an analyzer ignores. Raises InvalidInstance if scikit-learn, which has them, is missing."""
    if config.kind != "word" or config.stop_words is None:
        return frozenset()
    try:
        # Imported here: takes most of a second and 60 MB.
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
    except ImportError:
        field = "analyzer.stop_words"
        install = "pip install 'abound[sklearn]', or build the image with EXTRAS=sklearn"
        raise InvalidInstance(f"{field} needs scikit-learn: {install}", field) from None
    return cast("frozenset[str]", ENGLISH_STOP_WORDS)


class Analyzer:
    """Splits texts into terms, in two steps, so that the caller can bound the size in between.

    With ``simple`` boundaries, and for n-grams, the terms equal those of ``CountVectorizer`` of scikit-learn. All terms
    of a length come before the longer ones.
    """

    def __init__(self, config: AnalyzerConfig, casefold: bool = False) -> None:
        self._config, self._casefold = config, casefold
        self._lowercase, self._least = config.lowercase, config.min_length
        self._is_unicode = config.kind == "word" and config.boundaries == "unicode"
        self._simple = re.compile(r"\w+" if config.min_length == 1 else rf"\w{{{config.min_length},}}")
        self._stop_words: frozenset[str] | None = None
        with suppress(InvalidInstance):  # a machine without scikit-learn can still learn what others have analyzed
            self._stop_words = stop_words_of(config)
        self._stem: Callable[[list[str]], list[str]] | None = None
        if config.kind == "word" and config.stem is not None:
            self._stem = Stemmer(config.stem).stemWords
        self._are_tokens = (
            config.kind == "word" and config.ngrams == (1, 1) and config.stop_words is None and config.prefix is None
        )

    def __call__(self, text: str) -> list[str]:
        return list(self.terms(self.prepare(text)))

    def prepare(self, text: str) -> str:
        """Return a text as the configuration normalises it, which can be 18 times as long."""
        if text.isascii():
            return text.lower() if self._lowercase else text
        if self._lowercase:
            # The dot of a Turkish capital I is left beside it, and Turkish is written without it on other keyboards.
            text = text.casefold().replace("i\u0307", "i") if self._casefold else text.lower()
            if text.isascii():
                return text
        if self._config.strip_accents:
            text = "".join([letter for letter in _normalized(text, "NFKD") if not unicodedata.combining(letter)])
        return _normalized(text, "NFKC").replace(_VARIATION_SELECTOR, "") if self._is_unicode else text

    def terms(self, prepared: str) -> Iterable[str]:
        """Return the terms of a prepared text. N-grams are made as they are read.

        Raises InvalidInstance, as ``stop_words_of`` does.
        """
        if self._are_tokens:
            return self._stems(self._tokens(prepared))
        config = self._config
        if config.kind == "word":
            tokens = self._tokens(prepared)
            stop_words = stop_words_of(config) if self._stop_words is None else self._stop_words
            if stop_words:
                tokens = [token for token in tokens if token not in stop_words]
            tokens = self._stems(tokens)
            if config.ngrams == (1, 1):
                return tokens + self._prefixes(tokens)
            return chain(self._prefixes(tokens), _ngrams(tokens, config.ngrams, " ".join))
        text = "".join([_SPACES.sub(" ", piece) for piece in _pieces(prepared, _is_no_space)])
        if config.kind == "char":
            return _ngrams(text, config.ngrams, str)
        return _ngrams_within_words(text.split(), config.ngrams)

    def _tokens(self, text: str) -> list[str]:
        if not self._is_unicode:
            if len(text) <= LONG:
                return self._simple.findall(text)
            return [found[0] for found in self._simple.finditer(text)]
        if text.isascii() and len(text) <= LONG:
            tokens: list[str] = (_ASCII_TOKEN if _ASCII_SIGN.search(text) else _ASCII_WORD).findall(text)
        else:
            tokens = _unicode_tokens(text)
        least = self._least
        if least > 1:
            tokens = [token for token in tokens if len(token) >= least or not _is_word(token)]
        return tokens

    def _stems(self, tokens: list[str]) -> list[str]:
        if self._stem is None:
            return tokens
        pieces = [self._stem(tokens[at : at + PIECE]) for at in range(0, len(tokens), PIECE)]
        return [stem for piece in pieces for stem in piece]

    def _prefixes(self, tokens: list[str]) -> list[str]:
        n = self._config.prefix
        return [] if n is None else [token[:n] for token in tokens if len(token) > n and _is_word(token)]


def _ngrams(parts: Sequence[str], lengths: tuple[int, int], join: Callable[[Any], str]) -> Iterator[str]:
    for n in range(lengths[0], lengths[1] + 1):
        for at in range(len(parts) - n + 1):
            yield join(parts[at : at + n])


def _ngrams_within_words(words: list[str], lengths: tuple[int, int]) -> Iterator[str]:
    for word in words:
        padded = f" {word} "
        for n in range(lengths[0], lengths[1] + 1):
            yield padded[:n]
            if len(padded) <= n:
                break  # a short word counts once
            for at in range(1, len(padded) - n + 1):
                yield padded[at : at + n]


def _pieces(text: str, begins: Callable[[str], bool]) -> Iterator[str]:
    """Cut a text into pieces of about ``PIECE`` characters, each from a character on with which one may begin."""
    first = 0
    while len(text) - first > PIECE:
        end = first + PIECE
        while end < len(text) and not begins(text[end]):
            end += 1
        yield text[first:end]
        first = end
    yield text[first:]


def _is_no_space(letter: str) -> bool:
    return not letter.isspace()


def _is_independent(letter: str) -> bool:
    """Return whether normalisation never joins or reorders a character with those before it."""
    if letter.isascii():
        return True
    first = unicodedata.normalize("NFKD", letter)[0]
    # Only marks, and the vowels and final consonants of Hangul, are the second part of a composition.
    is_mark = unicodedata.combining(first) or unicodedata.category(first)[0] == "M"
    return not is_mark and not "\u1160" <= first <= "\u11ff"


def _normalized(text: str, form: Literal["NFKC", "NFKD"]) -> str:
    """Return a text in a normal form, piece by piece, because ``unicodedata.normalize`` holds the GIL.

    It also takes quadratic time for marks in a row: minutes for a megabyte of them. In order they take linear time.
    """
    if len(text) <= PIECE:
        return unicodedata.normalize(form, text)
    return "".join(
        [
            unicodedata.normalize(form, piece if len(piece) <= PIECE + MAX_UNORDERED else _in_order(piece))
            for piece in _pieces(text, _is_independent)
        ]
    )


def _in_order(text: str) -> str:
    parts: list[str] = []
    marks: dict[int, list[str]] = {}
    for given in text:
        for letter in unicodedata.normalize("NFKD", given):
            if order := unicodedata.combining(letter):
                marks.setdefault(order, []).append(letter)
                continue
            if marks:
                parts += [mark for order in sorted(marks) for mark in marks[order]]
                marks = {}
            parts.append(letter)
    return "".join(parts + [mark for order in sorted(marks) for mark in marks[order]])


def _is_word(token: str) -> bool:
    return not (_UNSPACED_RUN.match(token) or _EMOJI.match(token))


def _unicode_tokens(text: str) -> list[str]:
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
            if len(characters) <= PIECE:
                tokens += map(operator.add, characters, characters[1:]) if len(characters) > 1 else characters
                continue
            for at in range(0, len(characters) - 1, PIECE):
                tokens += map(operator.add, characters[at : at + PIECE], characters[at + 1 : at + PIECE + 1])
        else:
            tokens.append(token)
    return tokens


def term_weights(terms: Iterable[str]) -> dict[str, float]:
    """Return each distinct term in order of first appearance, with 1 + ln of its count; ``terms`` may be a Counter."""
    return {term: 1.0 if count == 1 else 1.0 + math.log(count) for term, count in Counter(terms).items()}
