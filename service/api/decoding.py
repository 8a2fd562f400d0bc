"""Decoding of request bodies, and conversion of instances to vectors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from abound.core.errors import InvalidInstance, Malformed
from abound.core.instances.dense_vector import to_int8
from abound.core.instances.negative_numbers import warning_of
from abound.core.model.live_model import LiveModel
from abound.service.api.problems import decoding_error
from abound.service.api.schemas.learn_classify import Instance, encoder

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

ABSENT = (b"", b"null")

MAX_INTEGER_DIGITS = 4300
"""Most digits of an integer that the decoder reads."""

MAX_FIELD_CHARACTERS = 200


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode JSON; raise Malformed when it is invalid, InvalidInstance when a field is wrong, missing or unknown."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not body or body.isspace():
            raise Malformed("the body is empty") from None
        if _is_for_half_pair(error, body):
            raise Malformed("a string has half of a surrogate pair, such as \\ud83d; send whole characters") from None
        refusal = decoding_error(error, getattr(decoder.type, "__struct_fields__", ()))
        if isinstance(refusal, InvalidInstance) and "[...]" in refusal.field and "out of range" in str(refusal):
            refusal = _out_of_range(body) or refusal
        raise refusal from None


def convert(body: dict[str, Any], kind: type[_S]) -> _S:
    """Convert a JSON object; raise InvalidInstance when a field is wrong, missing or unknown."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise decoding_error(error, kind.__struct_fields__) from None


def _is_for_half_pair(error: Exception, body: bytes) -> bool:
    """Return whether the decoder failed at half of a surrogate pair, which it may report as a truncated body."""
    if type(error) is not msgspec.DecodeError or "truncated" not in str(error):
        return type(error) is msgspec.DecodeError and "surrogate" in str(error)
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _out_of_range(body: bytes) -> InvalidInstance | None:
    """Return the error for the first number that is too large.

    Unlike the decoder's error, it has the number's path with the keys of objects.
    """
    try:
        whole = json.loads(body, parse_int=lambda digits: 0 if len(digits) <= MAX_INTEGER_DIGITS else math.inf)
    except (ValueError, RecursionError):
        return None
    waiting: list[tuple[str, Any]] = [("", whole)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, float) and math.isinf(value):
            field = path[:MAX_FIELD_CHARACTERS].encode("utf-8", "replace").decode()
            return InvalidInstance(f"{field}: the number is out of range", field)
        if isinstance(value, dict):
            parts = [(f"{path}.{key}" if path else key, part) for key, part in value.items()]
        elif isinstance(value, list):
            parts = [(f"{path}[{at}]", part) for at, part in enumerate(value)]
        else:
            continue
        waiting.extend(reversed(parts))
    return None


def vector_of(live: LiveModel, instance: Instance) -> bytes:
    """Return the vector of an instance."""
    raw, dense = bytes(instance.features), None
    if instance.vector is not None:
        dense = to_int8(instance.vector)
        live.check_dimension(len(dense))
    if raw in ABSENT:
        if instance.text is None and dense is None:
            raise InvalidInstance("an instance needs features, a text or a vector", "features")
        return live.vectorizer.vectorize(None, instance.text, dense)
    try:
        return live.vectorizer.vectorize(raw, instance.text, dense)
    except InvalidInstance:
        _refuse_bad_utf8(raw)
        raise


def with_warning(live: LiveModel, answer: bytes, features: Iterable[Any]) -> bytes:
    """Return the JSON of an answer with a ``warning`` if negative numbers of an instance are ignored.

    Parameters
    ----------
    features : iterable of msgspec.Raw or bytes
        The features of each instance of the request.
    """
    warning = _first_warning(live, features)
    return answer if warning is None else b'%b,"warning":%b}' % (answer[:-1], encoder.encode(warning))


class LineWarnings:
    """Warnings about the lines of one request; only the first one is given.

    Attributes
    ----------
    is_given : bool
        Whether an answer has a warning.
    """

    is_given = False

    def of(self, live: LiveModel, features: msgspec.Raw) -> str | None:
        """Return the warning if negative numbers of a line are ignored and no line before it had a warning."""
        return None if self.is_given else _first_warning(live, [features])


def _first_warning(live: LiveModel, features: Iterable[Any]) -> str | None:
    if live.config.negative != "ignore":
        return None
    for given in features:
        if (warning := warning_of(bytes(given))) is not None:
            return warning
    return None


def sole_features(body: bytes) -> bytes | None:
    """Return the features of a request that appears to have no other field, else None.

    Only the first and the last bytes are checked. ``Vectorizer.usual`` accepts the result only if it is one whole
    object, which confirms that the request has no other field.
    """
    if body[:12] != b'{"features":' or body[-1:] != b"}":
        return None
    return body[13:-1] if body[12:13] == b" " else body[12:-1]


def _refuse_bad_utf8(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise Malformed("the body is not valid UTF-8") from None
