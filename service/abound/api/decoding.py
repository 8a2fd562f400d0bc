"""Decoding of request bodies, and conversion of instances to vectors.

No call of this module holds the event loop for more than some milliseconds, whatever is sent. Bodies over
``LARGE_BODY`` are decoded element by element. Long instances are analyzed in a thread. There is one such thread,
because each that wants the GIL delays the event loop by a switch interval.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np

from abound.api.ndjson import NdjsonLine
from abound.api.problems import decoding_error
from abound.api.schemas.learn_classify import Instance, encoder
from abound.processes.remote_encoder import RemoteEncoder
from abound.tasks import TimeSlice
from abound_core.config import EncoderUrl
from abound_core.errors import AboundError, EncoderUnavailable, InvalidInstance, Malformed, NotReady, TooLarge
from abound_core.instances import outline_kernels as kernels
from abound_core.instances.dense_vector import to_int8
from abound_core.instances.encoded_vector import VectorOfText
from abound_core.instances.json_fallback import LONG_JSON, nan_hint
from abound_core.instances.record import dense_of
from abound_core.instances.vectorizer import Vectorizer, negative_warning
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

ABSENT = (b"", b"null")

MAX_INTEGER_DIGITS = 4300  # the decoder reads no longer integers
MAX_FIELD_CHARACTERS = 200

LARGE_BODY = 2**17  # bytes; longer bodies are decoded element by element
LONG_TEXT = 2**13  # bytes of a text that the event loop analyzes: at most 12 ms, and half of the bytes for n-grams
MAX_WORK = 2**20  # values, times 4, and escapes of one instance; more if the settings allow more features
MAX_DETAILS_WORK = 2**17  # the same for JSON that becomes Python objects, which take longer to make
_thread = ThreadPoolExecutor(1, "decode")


async def in_thread(work: Callable[..., _T], *given: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(_thread, work, *given)


async def decode_batch(
    decoder: msgspec.json.Decoder[_T],
    body: bytes,
    name: str = "",
    element: msgspec.json.Decoder[Any] | None = None,
    max_elements: int = 0,
    *,
    max_work: int,
) -> _T:
    """Decode JSON of any size; raise what ``decode`` raises, and InvalidInstance if it has too many values.

    ``name`` is the array in ``body`` that may be long, ``element`` the decoder of its elements. ``max_work`` bounds the
    work of one element, and of the rest of the body.
    """
    if len(body) <= LARGE_BODY:
        return decode(decoder, body)
    spans, work = np.zeros((max_elements, 2), np.int64), np.zeros(2, np.int64)
    key = np.frombuffer(f'"{name}"'.encode(), np.uint8)
    n = await in_thread(kernels.outline, np.frombuffer(body, np.uint8), key, spans, work)
    if n == kernels.TWICE:
        raise InvalidInstance(f"{name} comes twice", name)
    if n > max_elements:
        raise InvalidInstance(f"{name}: a batch has at most {max_elements}, not {n}", name)
    if (most := int(work.max())) > max_work:
        raise InvalidInstance(
            f"the body has too many values or escaped characters for one {'instance' if element else 'request'}: "
            f"4 times the values and the escapes are {most}, and may be {max_work}",
            "",
        )
    if n < 2 or element is None:
        return decode(decoder, body)
    pace = TimeSlice()
    first, *others = spans[:n].tolist()
    request = decode(decoder, body[: first[1]] + body[others[-1][1] :])
    elements = getattr(request, name)
    for at, (begin, end) in enumerate(others, 1):
        if pace.due():
            await pace.pause()
        try:
            elements.append(decode(element, body[begin:end]))
        except InvalidInstance as error:
            raise error.inside(f"{name}[{at}]") from None
    return request


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode JSON; raise Malformed when it is invalid, InvalidInstance when a field is wrong, missing or unknown."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not body or body.isspace():
            raise Malformed("the body is empty") from None
        if body.startswith(codecs.BOM_UTF8):  # looked for only now: nearly no body has one
            return decode(decoder, body[len(codecs.BOM_UTF8) :])
        if _is_for_half_pair(error, body):
            raise Malformed("a string has half of a surrogate pair, such as \\ud83d; send whole characters") from None
        refusal = decoding_error(error, getattr(decoder.type, "__struct_fields__", ()))
        if isinstance(refusal, Malformed):
            refusal = Malformed(f"{refusal}{nan_hint(body)}")
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
    """Return the error for the first number that is too large, with its path, which the decoder's error lacks."""
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


class Warnings:
    """Warnings about the instances of one request; only the first one is given."""

    first: str | None = None


async def encode_lines(
    remote: RemoteEncoder, live: LiveModel, lines: list[NdjsonLine], decoder: msgspec.json.Decoder[Any]
) -> None:
    """Decode lines and encode their texts, if the encoder is behind a URL. A line that fails gets its error."""
    if not live.vectorizer.by_url:
        return
    for line in lines:
        with suppress(AboundError):  # it is raised when the line's turn comes
            line.request = await decode_batch(decoder, line.body, max_work=max_work_of(live.limits))
    decoded = [line for line in lines if line.request is not None]
    try:
        await remote.encode(live.config.analyzer, [line.request for line in decoded])
    except EncoderUnavailable as error:
        for line in decoded:
            if line.request.text is not None and line.request.vector is None:
                line.error = error


async def vector_of(live: LiveModel, instance: Instance, warnings: Warnings) -> bytes:
    if not is_long(live, instance):
        return vector_immediately(live, instance, warnings)
    config = live.config

    def work() -> bytes:
        # The model's vectorizer has scratch memory, which belongs to the event loop.
        return _vector(Vectorizer(config, live.limits), instance, live, warnings)

    vector = await in_thread(work)
    if instance.vector is not None and (dense := dense_of(vector)) is not None:
        live.check_dimension(len(dense))  # the first learned vector may have fixed it meanwhile
    return vector


def vector_immediately(live: LiveModel, instance: Instance, warnings: Warnings) -> bytes:
    return _vector(live.vectorizer, instance, live, warnings)


def is_long(live: LiveModel, instance: Instance) -> bool:
    """Return whether an instance may take more than some milliseconds to analyze."""
    text = instance.text
    if text is not None and not (type(text) is str and 8 * len(text) <= LONG_TEXT):
        most = LONG_TEXT if live.config.analyzer.ngrams == (1, 1) else LONG_TEXT // 2
        texts = [text] if isinstance(text, str) else [one for one in text.values() if one]
        if 4 * sum(map(len, texts)) > most and sum(len(x) if x.isascii() else len(x.encode()) for x in texts) > most:
            return True
    return len(memoryview(instance.features)) > LONG_JSON


def _vector(vectorizer: Vectorizer, instance: Instance, live: LiveModel, warnings: Warnings) -> bytes:
    raw, dense = bytes(instance.features), None
    if instance.vector_model is not None:
        _check_vector_model(live, instance)
    if isinstance(instance.vector, VectorOfText):
        dense = instance.vector.numbers
        if instance.vector.analyzer != live.config.analyzer:
            raise NotReady("the configuration of the model has just changed; nothing was learned, try again")
    elif instance.vector is not None:
        dense = to_int8(instance.vector)
        live.check_dimension(len(dense))
    if raw in ABSENT and instance.text is None and dense is None:
        raise InvalidInstance("an instance needs features, a text or a vector", "features")
    try:
        vector = vectorizer.vectorize(None if raw in ABSENT else raw, instance.text, dense)
    except InvalidInstance:
        _refuse_bad_utf8(raw)
        raise
    if warnings.first is None:
        warnings.first = vectorizer.warning or warning_about(live, raw)
    return vector


def _check_vector_model(live: LiveModel, instance: Instance) -> None:
    """Raise InvalidInstance unless the vector is of the model of ``analyzer.embed``."""
    embed = live.config.analyzer.embed
    name = embed.model if isinstance(embed, EncoderUrl) else embed
    if instance.vector_model != name or isinstance(instance.vector, VectorOfText | None):
        raise InvalidInstance(f"vector_model must come with a vector and be that of the model, {name}", "vector_model")


def add_warning(answer: bytes, warning: str | None) -> bytes:
    return answer if warning is None else b'%b,"warning":%b}' % (answer[:-1], encoder.encode(warning))


def warning_about(live: LiveModel, features: bytes) -> str | None:
    return negative_warning(features) if live.config.negative == "ignore" else None


def max_work_of(limits: Limits) -> int:
    return MAX_WORK + 2 * kernels.VALUE_WORK * limits.max_features


def check_batch(request: Instance, n: int, limit: int) -> None:
    own = {name: getattr(request, name) is not None for name in ("text", "vector", "vector_model")}
    for field, given in (own | {"features": bytes(request.features) not in ABSENT}).items():
        if given:
            raise InvalidInstance(f"{field}: a batch has none; move it into instances", field)
    if n > limit:
        raise InvalidInstance(f"instances: a batch has at most {limit}, not {n}", "instances")


LARGE_VECTORS = (
    "the instances of this request take more than {} bytes as vectors; send fewer or smaller instances in one request"
)


class ByteBudget:
    """Bytes left for one request: for its vectors, which can be many times the size of its body, or its answer."""

    def __init__(self, limit: int, refusal: str = LARGE_VECTORS) -> None:
        self._limit = limit
        self._left = limit
        self._refusal = refusal

    def reserve(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(self._refusal.format(self._limit))


def sole_features(body: bytes) -> bytes | None:
    """Return the features of a request that appears to have no other field, else None.

    Only the first and the last bytes are checked. ``Vectorizer.vectorize_usual`` accepts the result only if it
    is one whole object, which confirms that the request has no other field.
    """
    if body[:12] != b'{"features":' or body[-1:] != b"}":
        return None
    return body[13:-1] if body[12:13] == b" " else body[12:-1]


def _refuse_bad_utf8(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise Malformed("the body is not valid UTF-8") from None
