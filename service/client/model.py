"""Typed access to one model of a running service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import UNSET, Struct, UnsetType

from abound.service.api.schemas.hot import ClassifyAnswer, LearnAnswer
from abound.service.client import requests as client_requests
from abound.service.client.async_client import AsyncClient
from abound.service.client.errors import Answer, Refused, Shape, convert_answer, refusal_of
from abound.service.client.sync_client import Client

Value = float | str | bool | Sequence[str]
Features = Mapping[str, Value]
T = TypeVar("T")

IN_FLIGHT = 3
"""Default number of concurrent requests of a stream whose order does not matter."""


class InputInstance(Struct, omit_defaults=True, kw_only=True, gc=False):
    """An instance to classify: a text, features, a vector, or several of them.

    Attributes
    ----------
    text : str or None
    features : mapping or None
    vector : array or list of numbers, shape (d,), or None
        A dense vector, such as an embedding. Arrays of float32 and int8 are sent as bytes.
    """

    text: str | None = None
    features: Features | None = None
    vector: Any = None

    def __post_init__(self) -> None:
        self.vector = client_requests.encode_vector(self.vector)


class Labelled(InputInstance, omit_defaults=True, kw_only=True, gc=False):
    """An instance with its labels.

    Attributes
    ----------
    labels : list of str, 1 to 100
    text, features, vector
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
    """The fields of ``Labelled`` that are not part of the instance, as keyword arguments."""

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

    def __repr__(self) -> str:
        return f"<Model {self.name!r} of {self.client.url}>"

    def create(self, **config: Any) -> Answer:
        """Create the model with these fields of its configuration, such as ``update="sls"``, and return it.

        Raises ValueError if the model exists.
        """
        if any(one["name"] == self.name for one in self.client.models()["models"]):
            raise ValueError(f"the model {self.name!r} exists")
        return self.client.configure(self.name, config)

    def classify(
        self,
        instance: str | InputInstance | None = None,
        *,
        text: str | None = None,
        features: Features | None = None,
        vector: Any = None,
        **asking: Unpack[ClassifyKwargs],
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first.

        The instance is a text or an ``InputInstance``; or give ``text``, ``features``, ``vector`` or several of them.
        ``asking`` takes the fields of ``ClassifyOptions``.
        """
        request = _classify_request(_instance(instance, text, features, vector), ClassifyOptions(**asking))
        return convert_answer(self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    def learn(
        self,
        instance: str | InputInstance | None = None,
        labels: Sequence[str] = (),
        *,
        text: str | None = None,
        features: Features | None = None,
        vector: Any = None,
        **more: Unpack[LearnKwargs],
    ) -> LearnAnswer:
        """Learn one instance with its labels: ``learn("wheat prices rise", ["grain"])``. Later answers reflect it.

        The instance is given as for ``classify``, or by ``prediction``. ``more`` takes the other fields of
        ``Labelled``.
        """
        request = _learn_request(_instance(instance, text, features, vector), labels, more)
        return convert_answer(self.client.learn(self.name, request), LearnAnswer, self.client.url)

    def classify_many(
        self, instances: Iterable[InputInstance], **asking: Unpack[ClassifyKwargs]
    ) -> Iterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it."""
        lines = map(_classify_encoder(ClassifyOptions(**asking)), instances)
        for answer in self.client.classify_stream(self.name, lines):
            yield _to_answer(answer, ClassifyAnswer, self.client.url)

    def learn_many(self, instances: Iterable[Labelled], *, keyed: bool = True) -> Iterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it.

        A request holds a thousand instances, or ends with the first instance that arrives a second after its first one.
        The client waits as long as its source does: the last instances are sent once the source yields more or ends.

        The log keeps the order of the instances, except for instances refused for now, by a rate limit or a busy
        service. They are learned after the accepted instances of their request.

        Parameters
        ----------
        instances : iterable of Labelled
        keyed : bool
            Add an idempotency key to instances without one, so that interrupted requests can be sent again.
        """
        lines = map(_learn_encoder(keyed), instances)
        for answer in self.client.learn_stream(self.name, lines, keyed=keyed):
            yield _to_answer(answer, LearnAnswer, self.client.url)


class AsyncModel:
    """One model, accessed through an ``AsyncClient``. Its methods are those of ``Model``.

    The methods for many instances also take ``in_flight``, the number of concurrent requests. More are faster; with
    more than 1, requests may be learned in another order.
    """

    def __init__(self, client: AsyncClient, name: str = "default") -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<AsyncModel {self.name!r} of {self.client.url}>"

    async def create(self, **config: Any) -> Answer:
        """Create the model; see ``Model.create``."""
        if any(one["name"] == self.name for one in (await self.client.models())["models"]):
            raise ValueError(f"the model {self.name!r} exists")
        return await self.client.configure(self.name, config)

    async def classify(
        self,
        instance: str | InputInstance | None = None,
        *,
        text: str | None = None,
        features: Features | None = None,
        vector: Any = None,
        **asking: Unpack[ClassifyKwargs],
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first; see ``Model.classify``."""
        request = _classify_request(_instance(instance, text, features, vector), ClassifyOptions(**asking))
        return convert_answer(await self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    async def learn(
        self,
        instance: str | InputInstance | None = None,
        labels: Sequence[str] = (),
        *,
        text: str | None = None,
        features: Features | None = None,
        vector: Any = None,
        **more: Unpack[LearnKwargs],
    ) -> LearnAnswer:
        """Learn one instance with its labels; see ``Model.learn``."""
        request = _learn_request(_instance(instance, text, features, vector), labels, more)
        return convert_answer(await self.client.learn(self.name, request), LearnAnswer, self.client.url)

    async def classify_many(
        self,
        instances: Iterable[InputInstance] | AsyncIterable[InputInstance],
        *,
        in_flight: int = IN_FLIGHT,
        **asking: Unpack[ClassifyKwargs],
    ) -> AsyncIterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it."""
        lines = _map(_classify_encoder(ClassifyOptions(**asking)), instances)
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
        lines = _map(_learn_encoder(keyed), instances)
        async for answer in self.client.learn_stream(self.name, lines, keyed=keyed, in_flight=in_flight):
            yield _to_answer(answer, LearnAnswer, self.client.url)


def _fields(struct: Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=client_requests.to_builtin)
    return fields


def _instance(
    instance: str | InputInstance | None, text: str | None, features: Features | None, vector: Any
) -> InputInstance:
    """Return the instance that was given in one of the ways of ``Model.classify``."""
    if instance is None:
        return InputInstance(text=text, features=features, vector=vector)
    given = features is not None or vector is not None
    if text is not None or (given and not isinstance(instance, str)):
        raise TypeError("give the instance, or text, features and vector, not both")
    if isinstance(instance, str):
        return InputInstance(text=instance, features=features, vector=vector)
    if not isinstance(instance, InputInstance):
        raise TypeError(f"an instance is a text or an InputInstance, not {type(instance).__name__}")
    return instance


def _learn_request(instance: InputInstance, labels: Sequence[str], more: LearnKwargs) -> dict[str, Any]:
    if isinstance(labels, str):
        raise TypeError(f"labels is a list of strings, such as [{labels!r}]")
    return _fields(
        Labelled(labels=labels, text=instance.text, features=instance.features, vector=instance.vector, **more)
    )


def _classify_request(instance: InputInstance, asking: ClassifyOptions) -> dict[str, Any]:
    return {**_fields(instance), **_fields(asking)}


def _map(
    encode: Callable[[T], bytes], instances: Iterable[T] | AsyncIterable[T]
) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Return the line of each instance."""
    if isinstance(instances, AsyncIterable):
        return (encode(instance) async for instance in instances)
    return map(encode, instances)


def _classify_encoder(asking: ClassifyOptions) -> Callable[[InputInstance], bytes]:
    """Return a function that encodes an instance as a line, and adds the options to it."""
    options = client_requests.encode_document(asking)

    def encode(instance: InputInstance) -> bytes:
        line = client_requests.encode(instance)
        return line if options == b"{}" else options if line == b"{}" else line[:-1] + b"," + options[1:]

    return encode


def _learn_encoder(keyed: bool) -> Callable[[Labelled], bytes]:
    """Return a function that encodes the line of an instance. With ``keyed``, it adds a unique key to one without."""
    prefix, numbers = uuid.uuid4().hex.encode(), count(1)

    def encode(instance: Labelled) -> bytes:
        line = client_requests.encode(instance)
        if not keyed or instance.key is not None:
            return line
        return b'%b,"key":"%b:%d"}' % (line[:-1], prefix, next(numbers))

    return encode


def _to_answer(answer: Answer, shape: type[Shape], url: str) -> Shape | Refused:
    return refusal_of(answer) or convert_answer(answer, shape, url)
