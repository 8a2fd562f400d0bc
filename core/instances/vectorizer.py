"""The vectorizer, which turns instances into vectors for the live index, batch methods and evaluation.

It is stateless: vectors contain keys, and dense ids are assigned where a vector is applied. See
``abound.core.instances.record`` for the bytes.

    features {"price": 3}                 price        3          numbers <= 0 are ignored, or -3 is price=- with 3
             {"country": "FI"}            country=FI   1
             {"tags": ["a", "b"]}         tags=a 1, tags=b 1
             {"urgent": true}             urgent       1          false is absent
    text     "wheat and wheat"            wheat        1 + ln 2, and 1

The values of a repeated key are added, those of the text first. Then the vector is l2-normalised; in a Boolean model
all values are 1 instead. The dense vector of an instance counts in the norm as 64 codes with the value 1/4 each
(``abound.core.kernels.records.codes``). With ``analyzer.embed`` an instance without one gets that of its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from abound.core.config import AnalyzerConfig, ModelConfig
from abound.core.errors import InvalidInstance
from abound.core.instances import text_analyzer as analyzers
from abound.core.instances import text_encoder
from abound.core.instances.json_fallback import ActiveFeatures, read_json
from abound.core.instances.record import add_dense
from abound.core.kernels.records import json as kernels
from abound.core.kernels.records.codes import WINNERS
from abound.core.kernels.records.json import UNUSUAL
from abound.core.limits import Limits

__all__ = ["Limits", "Vectorizer", "warmup"]

_ROOM = 2**16

CODE_VALUE = 0.25
"""Value of a code before the vector is normalised."""

CODES_NORM = math.sqrt(WINNERS) * CODE_VALUE
"""Norm of the codes of an instance, 2."""

use_kernel = True
"""Whether instances are read by the kernel. False while it is being compiled; plain Python gives the same vectors."""


class Vectorizer:
    """A vectorizer for one configuration of a model.

    Not thread-safe: scratch memory is reused between calls.

    Parameters
    ----------
    config : ModelConfig
        Only ``boolean``, ``negative`` and ``analyzer`` matter here.
    limits : Limits
    """

    def __init__(self, config: ModelConfig, limits: Limits) -> None:
        self._limits = limits
        self._boolean = config.boolean
        self._split = config.negative == "split"
        self._analyzer_config = config.analyzer
        self._analyzer = analyzers.build_analyzer(
            self._analyzer_config
        )  # built here because its library may take long to import
        if config.analyzer.embed is not None:
            with suppress(InvalidInstance):  # a machine without the encoder can still learn what others have encoded
                text_encoder.load(config.analyzer.embed)
        self._rules = np.array([limits.max_features, limits.max_key_bytes, self._split, self._boolean, 0, 0, 0])
        self._values = np.zeros(limits.max_features)
        self._norms = np.zeros(2)
        self._spans = np.zeros(limits.max_features, np.uint64)
        self._table = np.zeros(max(64, 1 << (2 * limits.max_features - 1).bit_length()), np.uint64)
        self._keys_at = 6 * limits.max_features + 4
        self._make_memory(self._keys_at + 4 * limits.max_key_bytes + _ROOM)

    def _make_memory(self, size: int) -> None:
        self._memory = np.zeros(size, np.uint8)
        self._view = self._memory.data

    def vectorize(self, features: bytes | None, text: str | None, dense: bytes | None = None) -> bytes:
        """Return the vector of an instance.

        Parameters
        ----------
        features : bytes or None
            A JSON object as received, UTF-8.
        text : str or None
        dense : bytes or None
            The dense vector of the instance as int8 numbers (``abound.core.instances.dense_vector``).

        Raises
        ------
        InvalidInstance
            Names the field: ``features``, ``features.price``, ``features.tags[2]`` or ``text``. Or it is
            ``analyzer.embed``: the encoder is not on this machine.
        """
        terms: list[str] | None = None
        lines: bytes | None = b""
        if text is not None:
            terms = self._terms(text)
            if dense is None and self._analyzer_config.embed is not None:
                dense = text_encoder.load(self._analyzer_config.embed).encode(text)
            lines = _lines(terms, text, self._analyzer_config)
        if lines is not None:
            vector = self._read(lines, features) if dense is None else self._read_with(dense, lines, features)
            if vector is not None:
                return vector
        active = ActiveFeatures(self._limits, self._split)
        if terms is not None:
            active.add_terms(analyzers.term_weights(terms))
        if features is not None:
            active.add_pairs(read_json(features))
        return self._vector(active, dense)

    def vectorize_usual(self, features: bytes) -> bytes | None:
        """Return ``vectorize(features, None)`` by the kernel, or None for unusual or invalid features."""
        return self._read(b"", features)

    def vectorize_mapping(self, features: Mapping[str, Any], dense: bytes | None = None) -> bytes:
        """Return the vector of features given as Python values, by the same rules as JSON."""
        active = ActiveFeatures(self._limits, self._split)
        active.add_pairs(features.items())
        return self._vector(active, dense)

    def _vector(self, active: ActiveFeatures, dense: bytes | None) -> bytes:
        if dense is None:
            return active.vector(self._boolean)[0]
        return _with_dense(*active.vector(self._boolean, CODES_NORM), dense)

    def _read_with(self, dense: bytes, lines: bytes, features: bytes | None) -> bytes | None:
        """Return the vector with a dense part by the kernel, or None if the instance is unusual or invalid."""
        self._norms[kernels.ADDED_SQUARES] = CODES_NORM * CODES_NORM
        vector = self._read(lines, features)
        self._norms[kernels.ADDED_SQUARES] = 0.0
        norm = 1.0 if self._boolean else float(self._norms[kernels.NORM])
        return None if vector is None else _with_dense(vector, norm, dense)

    def _read(self, lines: bytes, features: bytes | None) -> bytes | None:
        """Return the vector by the kernel, or None if the instance is unusual or invalid."""
        if not use_kernel:
            return None
        if features is None:
            features = b""
        elif not features:
            return None
        elif not features.isascii():
            try:
                features.decode()
            except UnicodeDecodeError:
                return None
        while True:
            packed: int = kernels.read_instance(
                lines, features, self._rules, self._values, self._norms, self._spans, self._table, self._memory
            )
            if packed >= 0:
                start = self._keys_at - 4 - 6 * (packed >> 32)
                return self._view[start : start + (packed & 0xFFFFFFFF)].tobytes()
            if packed == UNUSUAL:
                return None
            self._make_memory(2 * self._memory.size)

    def _terms(self, text: str) -> list[str]:
        most = self._limits.max_text_bytes
        try:
            size = len(text) if text.isascii() or len(text) > most else len(text.encode())
        except UnicodeEncodeError:
            raise InvalidInstance("text has half of a surrogate pair", "text") from None
        if size > most:
            raise InvalidInstance(f"text has at most {most} bytes", "text")
        return self._analyzer(text)


def _with_dense(vector: bytes, norm: float, dense: bytes) -> bytes:
    """Return a vector with a dense part, or as it is if the value of a code would be 0 beside its features."""
    value = float(np.float32(CODE_VALUE / norm))
    return add_dense(vector, dense, value) if value > 0 else vector


def _lines(terms: list[str], text: str, config: AnalyzerConfig) -> bytes | None:
    """Return the terms as the kernel takes them, or None if a term could contain a line break."""
    if config.kind != "word" and "\n" in text:
        return None
    return "\n".join(terms).encode()


def warmup() -> None:
    """Compile every kernel of this module for the types in use."""
    Vectorizer(ModelConfig(), Limits()).vectorize(b'{"a": 1.5, "b": "c", "d": ["e"], "f": true, "g": false}', None)
