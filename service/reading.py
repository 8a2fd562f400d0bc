"""From the bytes of a request to checked values: decoding, and instances to vectors."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from core.errors import InvalidInstance, Malformed
from core.live import LiveModel
from service.errors import unreadable

_T = TypeVar("_T")

ABSENT = (b"", b"null")


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode JSON; Malformed when it is none, InvalidInstance when a field is wrong, missing or unknown."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not body or body.isspace():
            raise Malformed("the body is empty") from None
        raise unreadable(error) from None


def vector_of(live: LiveModel, features: Any, text: str | None) -> bytes:
    """The vector of an instance.

    Parameters
    ----------
    features : msgspec.Raw
        The bytes of the JSON object as they came, empty or ``null`` when there is none.
    """
    raw = bytes(features)
    if raw in ABSENT:
        if text is None:
            raise InvalidInstance("an instance has features, a text, or both", "features")
        return live.vectorizer.vectorize(None, text)
    try:
        return live.vectorizer.vectorize(raw, text)
    except InvalidInstance:
        _refuse_bad_utf8(raw)
        raise


def is_empty(vector: bytes) -> bool:
    """Whether a vector has no active feature."""
    return vector[:4] == b"\0\0\0\0"


def _refuse_bad_utf8(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise Malformed("the body is not valid UTF-8") from None
