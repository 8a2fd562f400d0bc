"""Typed access to one model of a running service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET, Struct, UnsetType

from abound.service.api.schemas.hot import ClassifyAnswer, LearnAnswer
from abound.service.client import requests as client_requests
from abound.service.client.async_client import AsyncClient
from abound.service.client.errors import Answer, Refused, Shape, convert_answer, refusal_of
from abound.service.client.sync_client import Client

Value = float | str | bool | Sequence[str]
Features = Mapping[str, Value]

IN_FLIGHT = 3
"""Default number of concurrent requests of a stream whose order does not matter."""


class InputInstance(Struct, omit_defaults=True, kw_only=True, gc=False):
    """An instance to classify: a text, features, or both."""

    text: str | None = None
    features: Features | None = None


class Labelled(InputInstance, omit_defaults=True, kw_only=True, gc=False):
    """An instance with its labels.

    Attributes
    ----------
    labels : list of str, 1 to 100
    text, features
        Must be None with ``prediction``.
    prediction : str or None
        Id of a prediction that ``classify`` stored with ``remember``; its instance is learned.
    key : str or None
        Idempotency key: an instance that is sent several times is learned once.
    source : str or None
        Stored with the event.
    """

    labels: Sequence[str]
    prediction: str | None = None
    key: str | None = None
    source: str | None = None


class ClassifyOptions(Struct, omit_defaults=True, kw_only=True, gc=False):
    """Options of a classification; see ``POST /classify``."""

    k: int | UnsetType = UNSET
    threshold: float | None = None
    min_probability: float | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    explain: bool = False
    version: str | None = None
    min_offset: str | None = None
    remember: bool = False


class ClassifyKwargs(TypedDict, total=False):
    """The fields of ``ClassifyOptions`` as keyword arguments."""

    k: int
    threshold: float | None
    min_probability: float | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    explain: bool
    version: str | None
    min_offset: str | None
    remember: bool


class LearnKwargs(TypedDict, total=False):
    """The fields of ``Labelled`` except ``labels``, as keyword arguments."""

    text: str | None
    features: Features | None
    prediction: str | None
    key: str | None
    source: str | None


class Model:
    """One model, accessed through a ``Client``.

    Parameters
    ----------
    client : Client
    name : str
    """

    def __init__(self, client: Client, name: str = "default") -> None:
        self.client = client
        self.name = name

    def classify(
        self, *, text: str | None = None, features: Features | None = None, **asking: Unpack[ClassifyKwargs]
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first. ``asking`` takes the fields of ``ClassifyOptions``."""
        request = _classify_request(InputInstance(text=text, features=features), ClassifyOptions(**asking))
        return convert_answer(self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    def learn(self, labels: Sequence[str], **instance: Unpack[LearnKwargs]) -> LearnAnswer:
        """Learn one instance, given the fields of ``Labelled``. Later answers reflect it."""
        request = _fields(Labelled(labels=labels, **instance))
        return convert_answer(self.client.learn(self.name, request), LearnAnswer, self.client.url)

    def classify_many(
        self, instances: Iterable[InputInstance], *, in_flight: int = IN_FLIGHT, **asking: Unpack[ClassifyKwargs]
    ) -> Iterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it."""
        lines = _lines(instances, ClassifyOptions(**asking))
        for answer in self.client.classify_stream(self.name, lines, in_flight=in_flight):
            yield _to_answer(answer, ClassifyAnswer, self.client.url)

    def learn_many(
        self, instances: Iterable[Labelled], *, keyed: bool = True, in_flight: int = IN_FLIGHT
    ) -> Iterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it.

        A request holds a thousand instances, or ends with the first instance that arrives a second after its first one.
        The client waits as long as its source does: the last instances are sent once the source yields more or ends.

        Parameters
        ----------
        instances : iterable of Labelled
        keyed : bool
            Add an idempotency key to instances without one, so that interrupted requests can be sent again.
        in_flight : int
            Number of concurrent requests; more are faster. With 1 the log keeps the order of the instances, except for
            instances refused for now, by a rate limit or a busy service. They are learned after the accepted
            instances of their request.
        """
        made = _labelled_lines(instances, keyed)
        for answer in self.client.learn_stream(self.name, made, keyed=keyed, in_flight=in_flight):
            yield _to_answer(answer, LearnAnswer, self.client.url)


class AsyncModel:
    """One model, accessed through an ``AsyncClient``. Its methods are those of ``Model``."""

    def __init__(self, client: AsyncClient, name: str = "default") -> None:
        self.client = client
        self.name = name

    async def classify(
        self, *, text: str | None = None, features: Features | None = None, **asking: Unpack[ClassifyKwargs]
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first. ``asking`` takes the fields of ``ClassifyOptions``."""
        request = _classify_request(InputInstance(text=text, features=features), ClassifyOptions(**asking))
        return convert_answer(await self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    async def learn(self, labels: Sequence[str], **instance: Unpack[LearnKwargs]) -> LearnAnswer:
        """Learn one instance, given the fields of ``Labelled``. Later answers reflect it."""
        request = _fields(Labelled(labels=labels, **instance))
        return convert_answer(await self.client.learn(self.name, request), LearnAnswer, self.client.url)

    async def classify_many(
        self,
        instances: Iterable[InputInstance] | AsyncIterable[InputInstance],
        *,
        in_flight: int = IN_FLIGHT,
        **asking: Unpack[ClassifyKwargs],
    ) -> AsyncIterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it."""
        wanted = ClassifyOptions(**asking)
        lines = _lines_async(instances, wanted) if isinstance(instances, AsyncIterable) else _lines(instances, wanted)
        async for answer in self.client.classify_stream(self.name, lines, in_flight=in_flight):
            yield _to_answer(answer, ClassifyAnswer, self.client.url)

    async def learn_many(
        self,
        instances: Iterable[Labelled] | AsyncIterable[Labelled],
        *,
        keyed: bool = True,
        in_flight: int = IN_FLIGHT,
    ) -> AsyncIterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it."""
        lines: Iterable[bytes] | AsyncIterable[bytes]
        lines = (
            _labelled_lines_async(instances, keyed)
            if isinstance(instances, AsyncIterable)
            else _labelled_lines(instances, keyed)
        )
        async for answer in self.client.learn_stream(self.name, lines, keyed=keyed, in_flight=in_flight):
            yield _to_answer(answer, LearnAnswer, self.client.url)


def _fields(struct: Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=client_requests.to_builtin)
    return fields


def _classify_request(instance: InputInstance, asking: ClassifyOptions) -> dict[str, Any]:
    return {**_fields(instance), **_fields(asking)}


def _lines(instances: Iterable[InputInstance], asking: ClassifyOptions) -> Iterator[bytes]:
    more = _common_fields(asking)
    for instance in instances:
        yield _line(instance, more)


async def _lines_async(instances: AsyncIterable[InputInstance], asking: ClassifyOptions) -> AsyncIterator[bytes]:
    more = _common_fields(asking)
    async for instance in instances:
        yield _line(instance, more)


def _common_fields(asking: ClassifyOptions) -> bytes:
    """Return the end of each line: the JSON of the options without its opening brace."""
    return client_requests.encode_document(asking)[1:]


def _line(instance: InputInstance, more: bytes) -> bytes:
    own = client_requests.encode(instance)
    return own if more == b"}" else b"{" + more if own == b"{}" else own[:-1] + b"," + more


class _KeyGenerator:
    """Generates unique idempotency keys: a random prefix and a counter."""

    def __init__(self) -> None:
        self._prefix = uuid.uuid4().hex.encode()
        self._n = 0

    def encode_line(self, instance: Labelled, keyed: bool) -> bytes:
        """Return the line of an instance. With ``keyed``, an instance without a key gets one."""
        line = client_requests.encode(instance)
        if not keyed or instance.key is not None:
            return line
        self._n += 1
        return b'%b,"key":"%b:%d"}' % (line[:-1], self._prefix, self._n)


def _labelled_lines(instances: Iterable[Labelled], keyed: bool) -> Iterator[bytes]:
    keys = _KeyGenerator()
    for instance in instances:
        yield keys.encode_line(instance, keyed)


async def _labelled_lines_async(instances: AsyncIterable[Labelled], keyed: bool) -> AsyncIterator[bytes]:
    keys = _KeyGenerator()
    async for instance in instances:
        yield keys.encode_line(instance, keyed)


def _to_answer(answer: Answer, shape: type[Shape], url: str) -> Shape | Refused:
    return refusal_of(answer) or convert_answer(answer, shape, url)
