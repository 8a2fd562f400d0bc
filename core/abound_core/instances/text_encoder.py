"""Encoders, which turn a text into a dense vector: the sum of the vectors of its tokens.

An encoder is a table with one vector for each token (a ``safetensors`` file) and a tokenizer (``tokenizer.json`` of the
library tokenizers), as WordLlama and Model2Vec make them. The table is converted to int8, so that sums are exact and a
text has the same vector on every machine. Only the vector gets into the log: nothing but new texts needs an encoder.

An encoder behind a URL (``EncoderUrl``) is asked by the service before it vectorizes an instance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.config import AnalyzerConfig, EncoderUrl
from abound_core.errors import InvalidInstance
from abound_core.instances.dense_vector import quantize
from abound_core.instances.html_text import text_of
from abound_core.types import Text

FIELD = "analyzer.embed"

MAX_CHARACTERS = 8_000  # the rest of a longer text is not encoded

CACHED_WORDS = 20_000  # in the cache of token ids
LONGEST_CACHED = 40  # characters of such a word

BERT = ("BertPreTokenizer", "BertNormalizer")
SPACE = "\u2581"  # stands for a space in the tokens of SentencePiece
SENTENCE_PIECE = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}


def has_tokens_of_words(tokenizer: Any) -> bool:
    """Return whether the tokens of a text are those of its words, if single spaces separate them.

    True for BERT's tokenizers, which cut at spaces, and for those of SentencePiece if no token has a space inside.
    """
    about = json.loads(tokenizer.to_str())
    if any(token["normalized"] for token in about["added_tokens"]):
        return False
    if about["pre_tokenizer"] is not None:
        return (about["pre_tokenizer"]["type"], (about["normalizer"] or {}).get("type")) == BERT
    model = about["model"]
    return bool(
        about["normalizer"] == SENTENCE_PIECE
        and model["type"] == "BPE"
        and model["dropout"] is None
        and not any(re.search(f"[^{SPACE}]{SPACE}", token) for token in model["vocab"])
    )


class TextEncoder:
    """A table (n_tokens, d) with the vector of each token, and a tokenizer of at most ``n_tokens`` tokens."""

    def __init__(self, table: npt.NDArray[Any], tokenizer: Any) -> None:
        self._table = np.rint(table * (127 / np.abs(table).max())).astype(np.int8)
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._has_tokens_of_words = has_tokens_of_words(tokenizer)
        self._special = (SPACE, *(token.content for token in tokenizer.get_added_tokens_decoder().values()))
        self._ids_of_word = lru_cache(CACHED_WORDS)(self._ids)

    @property
    def dimension(self) -> int:
        return int(self._table.shape[1])

    def encode(self, text: str) -> bytes | None:
        """Return the vector of a text as int8 numbers, None if no token has one."""
        total = self._table.take(self.tokens(text[:MAX_CHARACTERS]), 0).sum(axis=0, dtype=np.int32)
        return quantize(total, "text") if total.any() else None

    def tokens(self, text: str) -> Sequence[int]:
        """Return the ids of the tokens of a text. Ids of short words are cached: several times as fast."""
        words = text.split(" ")
        if not self._has_tokens_of_words or not 0 < min(map(len, words)) <= max(map(len, words)) <= LONGEST_CACHED:
            return self._ids(text)
        if any(special in text for special in self._special):
            return self._ids(text)
        return list(chain.from_iterable(map(self._ids_of_word, words)))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


source: Callable[[str], TextEncoder] | None = None
"""Returns the encoder of a name. Set by ``abound.processes.encoder_files``, because encoders are files."""


def text_to_encode(text: Text, config: AnalyzerConfig) -> str:
    """Return what an encoder reads of a text: ``embed_field`` if the text has it, else all fields, without markup."""
    if isinstance(text, Mapping):
        text = (config.embed_field and text.get(config.embed_field)) or text
    if isinstance(text, Mapping):
        # Shortest first: the end is cut.
        given = (field for field in text.values() if field is not None)
        text = "\n".join(sorted(given, key=lambda field: (len(field), field)))
    return text_of(text) if config.html else text


def load(name: str | EncoderUrl) -> TextEncoder:
    """Return the encoder of this name. Raises InvalidInstance if it is not on this machine, or damaged."""
    if isinstance(name, EncoderUrl):
        raise InvalidInstance(f"{FIELD}: only a service and `abound evaluate` ask an encoder behind a URL", FIELD)
    if source is None:
        raise InvalidInstance(f"{FIELD}: this program has no encoders", FIELD)
    return source(name)
