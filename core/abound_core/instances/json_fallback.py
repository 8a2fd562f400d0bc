"""The active features of an instance, collected in plain Python: handles every instance and reports what is invalid.

The kernel for JSON handles the usual instances and this module the rest; both give the same bytes. A dict compares
the keys, and values of repeated keys are added in order of appearance. No step is quadratic in the size of an
instance.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, KeysView, Mapping
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NoReturn

import numpy as np

from abound_core.errors import InvalidInstance
from abound_core.instances.json_kernels import END_OF_EXACT, EXACT, EXACT_VALUE, MOST_OF_A_COUNT
from abound_core.instances.names import is_absent, normalized
from abound_core.instances.record import pack_vector
from abound_core.limits import Limits

LONG_JSON = 2**16  # bytes of features up to which they are read in one call

NULL_HINT = "; JSON has no NaN or Infinity: write null for a missing value"
_NAN = re.compile(rb"[:,\[]\s*-?(?:NaN|nan|Infinity)\b")

_LONGEST_NAME = 64
_WANTED = "must be a number, a string, true, false or a list of strings"


class _Object(tuple[tuple[str, Any], ...]):
    """The pairs of a JSON object, in order and including repeated keys."""


def _no_constant(name: str) -> NoReturn:
    raise InvalidInstance(f"features must be JSON{NULL_HINT}, not {name}", "features")


def nan_hint(body: bytes) -> str:
    """Return how to write a missing value, for the error of a body that is no JSON, if it seems to have NaN."""
    return NULL_HINT if _NAN.search(body) else ""


def field_of(name: str) -> str:
    """Return the name of a feature in an error, such as ``features.price``; long names are cut at 64 characters."""
    shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
    return "features." + shown.encode("utf-8", "backslashreplace").decode()


def read_json(features: bytes) -> Iterable[tuple[str, Any]]:
    """Return the pairs of a JSON object. Raises InvalidInstance if it is none, or nested too deeply."""
    decoder = json.JSONDecoder(object_pairs_hook=_Object, parse_int=float, parse_constant=_no_constant)
    if len(features) > LONG_JSON:
        # In C it would hold the GIL for half a second.
        decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]
    try:
        pairs = decoder.decode(features.decode())
    except RecursionError:
        raise InvalidInstance("features are nested too deeply", "features") from None
    except UnicodeDecodeError:
        raise InvalidInstance("features must be UTF-8", "features") from None
    except ValueError as error:
        raise InvalidInstance(f"features must be JSON: {error}", "features") from None
    if not isinstance(pairs, _Object):
        raise InvalidInstance("features must be an object", "features")
    return pairs


def is_usable(term: bytes, limits: Limits) -> bool:
    return len(term) <= limits.max_key_bytes and term[0] != 0


class ActiveFeatures:
    """Keys and values collected so far.

    ``split``: a negative number becomes the value of ``name=-``; otherwise it is ignored. ``scaled``: 1, numbers above
    1 are scaled and bounded; EXACT, those of few digits are features of their own, too. ``normalize``: names and
    strings are normalized, and empty strings are absent.
    """

    def __init__(self, limits: Limits, split: bool, scaled: int, normalize: bool) -> None:
        self._normalize = normalize
        self._limits = limits
        self._split = split
        self._scaled = scaled
        self._has_text = self._has_count = self._has_scaled = False
        self._values: dict[bytes, float] = {}
        self._numbers: dict[bytes, float] = {}

    @property
    def keys(self) -> KeysView[bytes]:
        return self._values.keys()

    def add_terms(self, weights: Mapping[str, float]) -> None:
        """Add the terms of a text; skip terms of more than ``max_key_bytes``, and those that begin with a zero byte."""
        for term, weight in weights.items():
            key = term.encode()
            if is_usable(key, self._limits):
                self._values[key] = self._values.get(key, 0.0) + weight
        self._has_text = bool(self._values)

    def add_pairs(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Add names with values as in JSON. Raises InvalidInstance for the first pair that breaks a rule."""
        for name, value in pairs:
            key = self._key(name)
            if value is True:
                self._add(key, 1.0, name)
            elif isinstance(value, str):
                self._add_string(key, value, name, field_of(name))
            elif is_absent(value):
                continue
            elif isinstance(value, (int, float, np.integer, np.floating)):
                self._add_number(key, value, name)
            elif isinstance(value, (list, tuple)) and not isinstance(value, _Object):
                for i, item in enumerate(value):
                    if isinstance(item, str):
                        self._add_string(key, item, name, f"{field_of(name)}[{i}]")
                    elif not is_absent(item):
                        raise InvalidInstance("a list must hold strings only", f"{field_of(name)}[{i}]")
            else:
                raise InvalidInstance(_WANTED, field_of(name))

    def _key(self, name: str) -> bytes:
        if not isinstance(name, str):
            raise InvalidInstance("a feature's name must be a string", "features")
        try:
            key = (normalized(name) if self._normalize else name).encode()
        except UnicodeEncodeError:
            raise InvalidInstance("a feature's name has half of a surrogate pair", field_of(name)) from None
        if not key:
            raise InvalidInstance("a feature's name must not be empty", "features")
        if not key[0]:
            raise InvalidInstance("a feature's name must not begin with a zero character", field_of(name))
        if len(key) > self._limits.max_key_bytes:
            self._refuse_length(key, field_of(name))
        return key

    def _refuse_length(self, key: bytes, field: str) -> NoReturn:
        most = self._limits.max_key_bytes
        raise InvalidInstance(f"a feature key has at most {most} bytes, this one has {len(key)}", field)

    def _add_string(self, key: bytes, value: str, name: str, field: str) -> None:
        if self._normalize and not (value := normalized(value)):
            return
        try:
            composed = key + b"=" + value.encode()
        except UnicodeEncodeError:
            raise InvalidInstance("a string has half of a surrogate pair", field) from None
        if len(composed) > self._limits.max_key_bytes:
            self._refuse_length(composed, field)
        self._add(composed, 1.0, name)

    def _add_number(self, key: bytes, number: float | np.integer[Any] | np.floating[Any], name: str) -> None:
        try:
            value = float(number)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise InvalidInstance("a number must be finite and below 1.8e308", field_of(name))
        if value < 0 and self._split:
            key += b"=-"
            if len(key) > self._limits.max_key_bytes:
                self._refuse_length(key, field_of(name))
            value = -value
        if value <= 0:
            return
        if not self._scaled or value <= 1:
            self._add_part(key, value, name)
            return
        if value <= MOST_OF_A_COUNT and value == math.floor(value):
            self._has_count = True
            self._add_part(key, value, name)
            return
        self._has_scaled = True
        self._add_part(key, 3.0 / (1.0 + 2.0 / value), name)
        keys = {key + b"@%d" % (math.frexp(value)[1] - 1): 1.0}
        if self._scaled == EXACT and value < END_OF_EXACT and round(100.0 * value) / 100.0 == value:
            digits = b"%.2f" % value
            digits = digits.rstrip(b"0").rstrip(b".")
            if len(digits.replace(b".", b"")) < len(str(END_OF_EXACT)):
                keys[key + b"=" + digits] = EXACT_VALUE
        for key, part in keys.items():
            if len(key) <= self._limits.max_key_bytes:
                self._add_part(key, part, name)

    def _add_part(self, key: bytes, value: float, name: str) -> None:
        self._add(key, value, name)
        self._numbers[key] = self._numbers.get(key, 0.0) + value

    def _add(self, key: bytes, value: float, name: str) -> None:
        values = self._values
        total = values.get(key, 0.0) + value
        if total == math.inf:
            raise InvalidInstance("the values of a feature add up to more than 1.8e308", field_of(name))
        values[key] = total
        if len(values) > self._limits.max_features:
            raise InvalidInstance(f"an instance has at most {self._limits.max_features} active features", "features")

    def _bound_numbers(self, more: float) -> None:
        """Reduce the values that numbers contributed; see ``abound_core.instances.json_kernels.bound_numbers``."""
        others, numbers = more, 0.0
        for key, value in self._values.items():
            number = self._numbers.get(key, 0.0)
            others += (value - number) * (value - number)
            numbers += number * number
        if not 0.0 < others < numbers:
            return
        factor = math.sqrt(others / numbers)
        for key, number in self._numbers.items():
            self._values[key] = (self._values[key] - number) + factor * number

    def vector(self, boolean: bool, more: float = 0.0) -> tuple[bytes, float]:
        """Return the vector of the collected features and its norm: l2-normalised, or with all values 1 if Boolean.

        The norm covers the values and one additional value, ``more``. It is 1 if Boolean.
        """
        keys = list(self._values)
        if boolean:
            return pack_vector(keys, np.ones(len(keys), np.float32)), 1.0
        if not keys:
            return pack_vector(keys, np.zeros(0, np.float32)), more
        if self._has_scaled or (self._has_count and (self._has_text or more)):
            self._bound_numbers(more * more)
        values = np.fromiter(self._values.values(), np.float64, len(keys))
        largest = values.max()
        scale = 1.0
        if largest > 1e150 or (largest < 1e-150 and not more):
            scale = largest  # so that no square overflows or underflows
            values /= scale
        norm = math.sqrt(np.add.accumulate(values * values)[-1] + (more / scale) ** 2)
        stored = (values / norm).astype(np.float32)
        if not stored.all():
            active = stored > 0
            keys = [key for key, kept in zip(keys, active.tolist(), strict=True) if kept]
            stored = stored[active]
        return pack_vector(keys, stored), norm * float(scale)
