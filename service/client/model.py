"""One model of a running service: typed instances in, typed answers out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET, Struct, UnsetType

from abound.service.api.schemas.hot import ClassifyAnswer, LearnAnswer
from abound.service.client import requests as client_requests
from abound.service.client.async_client import AsyncClient
from abound.service.client.errors import Answer, Refused, Shape, refusal_of, shaped
from abound.service.client.sync_client import Client

Value = float | str | bool | Sequence[str]
Features = Mapping[str, Value]

IN_FLIGHT = 3
"""Requests of a stream that are on their way at once where their order does not matter."""


class Instance(Struct, omit_defaults=True, kw_only=True, gc=False):
    """What is to be labelled: a text, features, or both."""

    text: str | None = None
    features: Features | None = None


class Labelled(Instance, omit_defaults=True, kw_only=True, gc=False):
    """An instance with its labels.

    Attributes
    ----------
    labels : list of str, 1 to 100
    text, features
        Not with ``prediction``.
    prediction : str or None
        Id of an instance that ``classify`` remembered.
    key : str or None
        An idempotency key: the instance is learned once, however often it is sent.
    source : str or None
        Kept with the event.
    """

    labels: Sequence[str]
    prediction: str | None = None
    key: str | None = None
    source: str | None = None


class Asking(Struct, omit_defaults=True, kw_only=True, gc=False):
    """How instances are to be ranked; see ``POST /classify``."""

    k: int | UnsetType = UNSET
    threshold: float | None = None
    min_probability: float | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    explain: bool = False
    version: str | None = None
    min_offset: str | None = None
    remember: bool = False


class Asked(TypedDict, total=False):
    """The fields of ``Asking`` by name."""

    k: int
    threshold: float | None
    min_probability: float | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    explain: bool
    version: str | None
    min_offset: str | None
    remember: bool


class More(TypedDict, total=False):
    """The fields of ``Labelled`` but its labels, by name."""

    text: str | None
    features: Features | None
    prediction: str | None
    key: str | None
    source: str | None


class Model:
    """One model, by a ``Client``.

    Parameters
    ----------
    client : Client
    name : str
    """

    def __init__(self, client: Client, name: str = "default") -> None:
        self.client = client
        self.name = name

    def classify(
        self, *, text: str | None = None, features: Features | None = None, **asking: Unpack[Asked]
    ) -> ClassifyAnswer:
        """Labels of one instance, best first. ``asking``: the fields of ``Asking``."""
        request = _asked(Instance(text=text, features=features), Asking(**asking))
        return shaped(self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    def learn(self, labels: Sequence[str], **instance: Unpack[More]) -> LearnAnswer:
        """Learn one instance; ``instance``: the other fields of ``Labelled``. The next answer already knows."""
        request = _fields(Labelled(labels=labels, **instance))
        return shaped(self.client.learn(self.name, request), LearnAnswer, self.client.url)

    def classify_many(
        self, instances: Iterable[Instance], *, in_flight: int = IN_FLIGHT, **asking: Unpack[Asked]
    ) -> Iterator[ClassifyAnswer | Refused]:
        """An answer for each instance, in order: its labels, or why there are none."""
        lines = _lines(instances, Asking(**asking))
        for answer in self.client.classify_stream(self.name, lines, in_flight=in_flight):
            yield _read(answer, ClassifyAnswer, self.client.url)

    def learn_many(
        self, instances: Iterable[Labelled], *, keyed: bool = True, in_flight: int = IN_FLIGHT
    ) -> Iterator[LearnAnswer | Refused]:
        """An answer for each instance, in order: what learning it found, or why it was not learned.

        Instances go out a thousand at a time, or with the first one that comes a second after the first of these. A
        source that waits is waited for: what it gave last is learned once it gives more, or ends.

        Parameters
        ----------
        instances : iterable of Labelled
        keyed : bool
            Give an idempotency key to those without one, so that whatever breaks off can be sent again.
        in_flight : int
            1 keeps the order of the instances in the log, too, but for those that are refused for now, by a rate or
            while the service is busy: they are sent again, behind those of their request that were taken. With more
            it is faster.
        """
        made = _labelled(instances, keyed)
        for answer in self.client.learn_stream(self.name, made, keyed=keyed, in_flight=in_flight):
            yield _read(answer, LearnAnswer, self.client.url)


class AsyncModel:
    """One model, by an ``AsyncClient``; the methods are those of ``Model``."""

    def __init__(self, client: AsyncClient, name: str = "default") -> None:
        self.client = client
        self.name = name

    async def classify(
        self, *, text: str | None = None, features: Features | None = None, **asking: Unpack[Asked]
    ) -> ClassifyAnswer:
        """Labels of one instance, best first. ``asking``: the fields of ``Asking``."""
        request = _asked(Instance(text=text, features=features), Asking(**asking))
        return shaped(await self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    async def learn(self, labels: Sequence[str], **instance: Unpack[More]) -> LearnAnswer:
        """Learn one instance; ``instance``: the other fields of ``Labelled``. The next answer already knows."""
        request = _fields(Labelled(labels=labels, **instance))
        return shaped(await self.client.learn(self.name, request), LearnAnswer, self.client.url)

    async def classify_many(
        self,
        instances: Iterable[Instance] | AsyncIterable[Instance],
        *,
        in_flight: int = IN_FLIGHT,
        **asking: Unpack[Asked],
    ) -> AsyncIterator[ClassifyAnswer | Refused]:
        """An answer for each instance, in order: its labels, or why there are none."""
        wanted = Asking(**asking)
        lines = _alines(instances, wanted) if isinstance(instances, AsyncIterable) else _lines(instances, wanted)
        async for answer in self.client.classify_stream(self.name, lines, in_flight=in_flight):
            yield _read(answer, ClassifyAnswer, self.client.url)

    async def learn_many(
        self,
        instances: Iterable[Labelled] | AsyncIterable[Labelled],
        *,
        keyed: bool = True,
        in_flight: int = IN_FLIGHT,
    ) -> AsyncIterator[LearnAnswer | Refused]:
        """An answer for each instance, in order: what learning it found, or why it was not learned."""
        lines: Iterable[bytes] | AsyncIterable[bytes]
        lines = _alabelled(instances, keyed) if isinstance(instances, AsyncIterable) else _labelled(instances, keyed)
        async for answer in self.client.learn_stream(self.name, lines, keyed=keyed, in_flight=in_flight):
            yield _read(answer, LearnAnswer, self.client.url)


def _fields(struct: Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=client_requests.plain)
    return fields


def _asked(instance: Instance, asking: Asking) -> dict[str, Any]:
    return {**_fields(instance), **_fields(asking)}


def _lines(instances: Iterable[Instance], asking: Asking) -> Iterator[bytes]:
    more = _more(asking)
    for instance in instances:
        yield _line(instance, more)


async def _alines(instances: AsyncIterable[Instance], asking: Asking) -> AsyncIterator[bytes]:
    more = _more(asking)
    async for instance in instances:
        yield _line(instance, more)


def _more(asking: Asking) -> bytes:
    """What each line says behind its own fields."""
    return client_requests.encode_whole(asking)[1:]


def _line(instance: Instance, more: bytes) -> bytes:
    own = client_requests.encode(instance)
    return own if more == b"}" else b"{" + more if own == b"{}" else own[:-1] + b"," + more


class _Keys:
    """Idempotency keys that nobody else gives."""

    def __init__(self) -> None:
        self._prefix = uuid.uuid4().hex.encode()
        self._n = 0

    def encoded(self, instance: Labelled, keyed: bool) -> bytes:
        """The line of an instance, with a key."""
        line = client_requests.encode(instance)
        if not keyed or instance.key is not None:
            return line
        self._n += 1
        return b'%b,"key":"%b:%d"}' % (line[:-1], self._prefix, self._n)


def _labelled(instances: Iterable[Labelled], keyed: bool) -> Iterator[bytes]:
    keys = _Keys()
    for instance in instances:
        yield keys.encoded(instance, keyed)


async def _alabelled(instances: AsyncIterable[Labelled], keyed: bool) -> AsyncIterator[bytes]:
    keys = _Keys()
    async for instance in instances:
        yield keys.encoded(instance, keyed)


def _read(answer: Answer, shape: type[Shape], url: str) -> Shape | Refused:
    return refusal_of(answer) or shaped(answer, shape, url)
