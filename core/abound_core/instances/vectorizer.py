"""The vectorizer, which turns instances into vectors for the live index, batch methods and evaluation.

It is stateless: vectors contain keys, and dense ids are assigned where a vector is applied. See
``abound_core.instances.record`` for the bytes.

    features {"rooms": 3}                 rooms        3          numbers <= 0 are ignored, or -3 is rooms=- with 3
             {"price": 1100}              price        3 / (1 + 2 / 1100), price@10 1, and price=1100 1/2
             {"country": "FI"}            country=FI   1
             {"tags": ["a", "b"]}         tags=a 1, tags=b 1
             {"urgent": true}             urgent       1          false is absent
    text     "wheat and wheat"            wheat        1 + ln 2, and 1
             {"title": "wheat"}           wheat        1, and title:wheat 1/2

The words of each field of a text have ``analyzer.field_weight`` times the norm of all its words, so that a word of a
short field counts more than one of a long field.

With ``numbers`` ``scaled`` or ``exact``, a number x above 1 that is not a count (a whole number up to 16) has the value
3 / (1 + 2 / x), and ``name@k`` is a feature with the value 1, for k = floor(log2(x)). With ``exact``, ``name=x`` is a
feature with the value 1/2 if x has at most two decimals and six digits. Then the values of all numbers of the instance
are reduced so that their norm is at most that of everything else (words, strings, true, a dense vector), if there is
anything else. With a text or a dense vector, a count above 1 is enough for that. All other instances get
the same vector as with ``raw``, where a number is the value of its feature.

The values of a repeated key are added, those of the text first. Then the vector is l2-normalised; in a Boolean model
all values are 1 instead, and ``numbers`` has no effect. The dense vector of an instance counts in the norm as 64 codes
with the value 1/4 each (``abound_core.instances.codes_kernels``). With ``analyzer.embed`` an instance without a dense
vector gets the one that an encoder makes of its text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from abound_core.config import AnalyzerConfig, EncoderUrl, ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances import json_kernels as kernels
from abound_core.instances import text_analyzer as analyzers
from abound_core.instances import text_encoder
from abound_core.instances.codes_kernels import WINNERS
from abound_core.instances.html_text import text_of
from abound_core.instances.json_fallback import LONG_JSON, ActiveFeatures, is_usable, read_json
from abound_core.instances.json_kernels import UNUSUAL
from abound_core.instances.names import is_normal_json, label_texts, normalized
from abound_core.instances.outline_kernels import outline
from abound_core.instances.record import add_dense
from abound_core.limits import MAX_FIELD_NAME, MAX_FIELDS, Limits
from abound_core.types import Text

__all__ = ["Limits", "Vectorizer", "warmup"]

_ROOM = 2**16

MOST_COUNTED = 2**16  # different terms of a text, unless twice ``max_features`` are more

_SURROGATE = re.compile("[\ud800-\udfff]")

_NORMALIZED = " once it is in lower case and normalised"

CODE_VALUE = 0.25  # of a code, before the vector is normalised

CODES_NORM = math.sqrt(WINNERS) * CODE_VALUE  # norm of the codes of an instance: 2

use_kernel = True
"""Whether instances are read by the kernel. False while it is being compiled; plain Python gives the same vectors."""


class _Scratch:
    """Working memory for reading one instance, 630 KB with the usual limits."""

    def __init__(self, known: tuple[int, ...]) -> None:
        max_features, max_key_bytes, *_ = known
        self.rules = np.array([*known, *[0] * 6])
        self.values = np.zeros(2 * max_features)
        self.norms = np.zeros(2)
        self.spans = np.zeros(max_features, np.uint64)
        self.table = np.zeros(max(64, 1 << (2 * max_features - 1).bit_length()), np.uint64)
        self.keys_at = 6 * max_features + 4
        self.make_memory(self.keys_at + 4 * max_key_bytes + _ROOM)

    def make_memory(self, size: int) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.view = self.memory.data


class _Pool(list[_Scratch]):
    """The scratches that all vectorizers with the same rules use in turn, as many as were in use at one time.

    So models take none of their own. A vectorizer takes a scratch out while it reads an instance, which is safe
    between threads.
    """


_pools: WeakValueDictionary[tuple[int, ...], _Pool] = WeakValueDictionary()
"""The pool of each set of rules, as long as there is a vectorizer with these rules."""


class Vectorizer:
    """A vectorizer for one configuration of a model.

    Not thread-safe. Different vectorizers can be used in different threads at the same time.
    """

    def __init__(self, config: ModelConfig, limits: Limits) -> None:
        self._limits = limits
        self._boolean = config.boolean
        self._split = config.negative == "split"
        self._scaled = 0 if config.boolean else ("raw", "scaled", "exact").index(config.numbers)
        self._analyzer_config = config.analyzer
        self._normalize = config.normalize
        self._analyzer = analyzers.Analyzer(config.analyzer, casefold=config.normalize)
        embed = config.analyzer.embed
        self.by_url = isinstance(embed, EncoderUrl)
        if isinstance(embed, str):
            with suppress(InvalidInstance):  # a machine without the encoder can still learn what others have encoded
                text_encoder.load(embed)
        self._known = (
            *(limits.max_features, limits.max_key_bytes),
            *(self._split, self._boolean, self._scaled, self._normalize),
        )
        self._pool = _pools.setdefault(self._known, _Pool())
        self._norm = 1.0
        self.warning: str | None = None  # about the last instance

    def vectorize(self, features: bytes | None, text: Text | None, dense: bytes | None = None) -> bytes:
        """Return the vector of an instance.

        Parameters
        ----------
        features : bytes or None
            A JSON object as received, UTF-8.
        text : str, mapping of at most ``MAX_FIELDS`` names to str, or None
        dense : bytes or None
            As int8 numbers (``abound_core.instances.dense_vector``). Empty: the text has no vector.

        Raises InvalidInstance, which names ``features``, ``features.price``, ``features.tags[2]``, ``text`` or
        ``text.title``, or ``analyzer.embed`` if the encoder is not on this machine.
        """
        self.warning = None
        terms: list[str] = []
        counts: Counter[str] | None = None
        fields: dict[str, Counter[str]] = {}
        lines: bytes | None = b""
        if isinstance(text, Mapping):
            given = {name: field for name, field in text.items() if field is not None}
            fields, lines = self._count_fields(given), None
            counts = Counter()
            for field in fields.values():
                counts.update(field)
        elif text is not None:
            prepared = self._prepare(text, "text")
            if len(prepared) > analyzers.LONG:
                counts, lines = self._count_terms(prepared), None
            else:
                found = self._analyzer.terms(prepared)
                terms = found if type(found) is list else list(found)
                lines = _lines(terms, text, self._analyzer_config)
        if text is not None and dense is None and self._analyzer_config.embed is not None:
            encoder = text_encoder.load(self._analyzer_config.embed)
            dense = encoder.encode(text_encoder.text_to_encode(text, self._analyzer_config))
        dense = dense or None
        if lines is not None:
            vector = self._read(lines, features) if dense is None else self._read_with(dense, lines, features)
            if vector is not None:
                return vector
        counts = Counter(terms) if counts is None else counts
        active = self._nothing_active()
        active.add_terms(self._weights(counts, fields))
        n_most = self._limits.max_features
        if features is not None and len(active.keys) + 2 * features.count(b'"') > n_most:
            others = self._nothing_active()
            others.add_pairs(read_json(features))
            if len(active.keys | others.keys) > n_most:
                n_most -= len(others.keys)
        if len(active.keys) > n_most:
            kept = self._most_frequent(counts, fields, n_most)
            self.warning = (
                f"text has more than {n_most} different terms{' with its fields' if fields else ''}; "
                f"only the {len(kept)} most frequent are used"
            )
            active = self._nothing_active()
            active.add_terms(self._weights(_only(counts, kept), {k: _only(own, kept) for k, own in fields.items()}))
        if features is not None:
            active.add_pairs(read_json(features))
        return self._vector(active, dense)

    def labels(self, given: Iterable[object] | None) -> list[str]:
        """Return labels as the model learns them; see ``abound_core.instances.names``."""
        return label_texts(given or (), self._normalize)

    def vectorize_usual(self, features: bytes) -> bytes | None:
        """Return ``vectorize(features, None)`` by the kernel, or None for unusual or invalid features."""
        return self._read(b"", features)

    def vectorize_mapping(self, features: Mapping[str, Any], dense: bytes | None = None) -> bytes:
        """Return the vector of features given as Python values, by the same rules as JSON."""
        active = self._nothing_active()
        active.add_pairs(features.items())
        return self._vector(active, dense)

    def _nothing_active(self) -> ActiveFeatures:
        return ActiveFeatures(self._limits, self._split, self._scaled, self._normalize)

    def _vector(self, active: ActiveFeatures, dense: bytes | None) -> bytes:
        if dense is None:
            return active.vector(self._boolean)[0]
        return _with_dense(*active.vector(self._boolean, CODES_NORM), dense)

    def _read_with(self, dense: bytes, lines: bytes, features: bytes | None) -> bytes | None:
        vector = self._read(lines, features, CODES_NORM * CODES_NORM)
        norm = 1.0 if self._boolean else self._norm
        return None if vector is None else _with_dense(vector, norm, dense)

    def _read(self, lines: bytes, features: bytes | None, added_squares: float = 0.0) -> bytes | None:
        if not use_kernel:
            return None
        if features is None:
            features = b""
        elif not features:
            return None
        elif not features.isascii():
            try:
                decoded = features.decode()
            except UnicodeDecodeError:
                return None
            if self._normalize and not is_normal_json(decoded):
                return None
        pool = self._pool
        try:
            scratch = pool.pop()
        except IndexError:
            scratch = _Scratch(self._known)
        vector = None
        if added_squares:
            scratch.norms[kernels.ADDED_SQUARES] = added_squares
        while True:
            packed: int = kernels.read_instance(
                lines,
                features,
                scratch.rules,
                scratch.values,
                scratch.norms,
                scratch.spans,
                scratch.table,
                scratch.memory,
            )
            if packed >= 0:
                start = scratch.keys_at - 4 - 6 * (packed >> 32)
                vector = scratch.view[start : start + (packed & 0xFFFFFFFF)].tobytes()
            if packed >= 0 or packed == UNUSUAL:
                break
            scratch.make_memory(2 * scratch.memory.size)
        if added_squares:
            self._norm = float(scratch.norms[kernels.NORM])
            scratch.norms[kernels.ADDED_SQUARES] = 0.0
        pool.append(scratch)  # not after an error: then the scratch is dropped
        return vector

    def _count_fields(self, fields: dict[str, str]) -> dict[str, Counter[str]]:
        if len(fields) > MAX_FIELDS:
            raise InvalidInstance(f"text has at most {MAX_FIELDS} fields, not {len(fields)}", "text")
        prepared: dict[str, str] = {}
        for given, text in sorted(fields.items()):  # in whatever order they were sent
            name = normalized(given) if self._normalize else given
            if name in prepared:
                raise InvalidInstance(f"text has the field {name!r} twice", "text")
            if not (1 <= len(name) <= MAX_FIELD_NAME and _is_unicode(name)):
                raise InvalidInstance(f"the name of a field of text has 1 to {MAX_FIELD_NAME} characters", "text")
            prepared[name] = self._prepare(text, f"text.{name}")
        for texts in (fields, prepared):
            if (size := sum(map(len, texts.values()))) > self._limits.max_text_bytes:
                raise InvalidInstance(
                    f"text has at most {self._limits.max_text_bytes} characters in all fields, not {size}"
                    + _NORMALIZED * (texts is prepared),
                    "text",
                )
        return {name: self._count_terms(text) for name, text in prepared.items()}

    def _weights(self, counts: Counter[str], fields: dict[str, Counter[str]]) -> dict[str, float]:
        """Return the values of the terms of a text, and of the terms of each of its fields."""
        weights = analyzers.term_weights(counts)
        norm = _norm(weights) if fields else 0.0
        for name, own in fields.items():
            if own and self._analyzer_config.field_weight:
                values = analyzers.term_weights(own)
                scale = self._analyzer_config.field_weight * norm / _norm(values)
                for term, value in values.items():
                    key = f"{name}:{term}"
                    weights[key] = weights.get(key, 0.0) + scale * value
        return weights

    def _prepare(self, text: str, field: str) -> str:
        """Return a text as the analyzer splits it; refuse one that is too long before or after normalisation."""
        if not _is_unicode(text):
            raise InvalidInstance(f"{field} has half of a surrogate pair", field)
        self._check_size(text, field)
        prepared = self._analyzer.prepare(self._plain(text))
        self._check_size(prepared, field, _NORMALIZED)
        return prepared

    def _plain(self, text: str) -> str:
        return text_of(text) if self._analyzer_config.html else text

    def _check_size(self, text: str, field: str, when: str = "") -> None:
        most = self._limits.max_text_bytes
        if 4 * len(text) <= most:
            return
        size = len(text) if text.isascii() else len(text.encode())
        if size > most:
            raise InvalidInstance(f"{field} has at most {most} bytes, not {size}{when}", field)

    def _count_terms(self, prepared: str) -> Counter[str]:
        """Return the distinct terms of a text with their counts, in order of first appearance.

        Of more than ``MOST_COUNTED``, which only n-grams of a very long text are, the first ones are counted.
        """
        counts: Counter[str] = Counter()
        terms, n_most = iter(self._analyzer.terms(prepared)), max(MOST_COUNTED, 2 * self._limits.max_features)
        while some := list(islice(terms, analyzers.PIECE)):
            counts.update(some if len(counts) < n_most else [term for term in some if term in counts])
        return counts

    def _most_frequent(self, counts: Counter[str], fields: dict[str, Counter[str]], n: int) -> set[str]:
        """Return the most frequent usable terms, with at most ``n`` keys; of equally frequent ones, the first."""
        kept = set()
        own = fields.values() if self._analyzer_config.field_weight else ()
        for term in sorted(counts, key=counts.__getitem__, reverse=True):
            if is_usable(term.encode(), self._limits):
                n -= 1 + sum([term in field for field in own])
                if n < 0:
                    break
                kept.add(term)
        return kept


def _only(counts: Counter[str], kept: set[str]) -> Counter[str]:
    return Counter({term: n for term, n in counts.items() if term in kept})


def _is_unicode(text: str) -> bool:
    return text.isascii() or _SURROGATE.search(text) is None


def _norm(weights: dict[str, float]) -> float:
    total = 0.0
    for weight in weights.values():  # sum() rounds differently from Python 3.12 on
        total += weight * weight
    return math.sqrt(total)


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
    features = b'{"a": 1.5, "b": "c", "d": ["e"], "f": true, "g": false}'
    Vectorizer(ModelConfig(), Limits()).vectorize(features, None)
    bytes_of = np.frombuffer(features, np.uint8)
    outline(bytes_of, bytes_of, np.zeros((0, 2), np.int64), np.zeros(2, np.int64))


MIN_EMBEDDING = 64  # more numbers than this, a third of them negative, look like an embedding

MOST_NAMED = 5  # ignored numbers in a warning

MOST_NAME_CHARACTERS = 64

_NEGATIVE = re.compile(rb":[ \t\r\n]*-")


def negative_warning(features: bytes) -> str | None:
    """Return the warning about negative numbers in the JSON of features; None if it has none or is invalid."""
    is_long = len(features) > LONG_JSON
    if b"-" not in features or (not is_long and _NEGATIVE.search(features) is None):
        return None
    try:
        pairs = dict(read_json(features)) if is_long else msgspec.json.decode(features, type=dict[str, Any])
    except (msgspec.DecodeError, InvalidInstance):
        return None
    numbers = {name: value for name, value in pairs.items() if type(value) in (int, float)}
    ignored = [name for name, value in numbers.items() if value < 0]
    if not ignored:
        return None
    if len(numbers) > MIN_EMBEDDING and 3 * len(ignored) >= len(numbers):
        return (
            f"{len(ignored)} of {len(numbers)} numbers are negative and ignored (`negative: ignore`); send an "
            "embedding as `vector`, to a model with `update: sls`"
        )
    names = [name if len(name) <= MOST_NAME_CHARACTERS else f"{name[:MOST_NAME_CHARACTERS]}..." for name in ignored]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"negative numbers are ignored (`negative: ignore`): {', '.join(names[:MOST_NAMED])}{more}; a model with "
        "`negative: split` learns them"
    )
