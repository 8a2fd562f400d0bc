"""The typed instances of ``Model`` and ``AsyncModel``: their fields, and how they are sent."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import count
from typing import Any, TypedDict, TypeVar

import msgspec
from msgspec import Struct

from abound.client import requests as client_requests
from abound.client.errors import Answer, Refused, Shape, convert_answer, refusal_of
from abound_core.errors import Malformed
from abound_core.instances.read_options import ReadOptions, date_features

Value = float | str | bool | Sequence[str]
Features = Mapping[str, Value]

InputText = str | Mapping[str, str]  # a text, or the texts of named fields, such as ``title`` and ``body``
Fields = Mapping[str, Any]  # the fields of an ``InputInstance`` or a ``Labelled``, by name
T = TypeVar("T")
S = TypeVar("S", bound="InputInstance")

IN_FLIGHT = 3  # concurrent requests of a stream whose order does not matter


class InputInstance(Struct, omit_defaults=True, kw_only=True, gc=False):
    """An instance to classify: a text, features, a vector, or several of them.

    Attributes
    ----------
    text : str, mapping of names of fields to str, or None
    features : mapping or None
    vector : array or list of numbers, shape (d,), or None
        A dense vector, such as an embedding. Arrays of float32 and int8 are sent as bytes.
    vector_model : str or None
        The model that made ``vector``, for the service to compare with the one that it encodes texts with.
    """

    text: InputText | None = None
    features: Features | None = None
    vector: Any = None
    vector_model: str | None = None

    def __post_init__(self) -> None:
        self.vector = client_requests.encode_vector(self.vector)
        if self.features and any(isinstance(value, date) for value in self.features.values()):
            parts = (date_features(k, v) if isinstance(v, date) else {k: v} for k, v in self.features.items())
            self.features = {name: value for part in parts for name, value in part.items()}


class Labelled(InputInstance, omit_defaults=True, kw_only=True, gc=False):
    """An instance with its labels.

    Attributes
    ----------
    labels : list of str
        The true labels, at most 100; may be empty with ``rejected`` or ``ignored``.
    text, features, vector
        Must be None with ``prediction``.
    prediction : str or None
        Id of a prediction that ``classify`` stored with ``remember``; its instance is learned.
    key : str or None
        Idempotency key: an instance that is sent several times is learned once.
    source : str or None
        Stored with the event.
    rejected : list of str
        Labels that are wrong, at most 100.
    ignored : list of str
        Labels that were shown and not chosen, at most 100.
    weight : float
        Importance, above 0 and at most 100.
    none : bool
        No label fits; without labels.
    partial : bool
        The labels are not all: others count neither as true nor as wrong.
    """

    labels: Sequence[str] = ()
    prediction: str | None = None
    key: str | None = None
    source: str | None = None
    rejected: Sequence[str] = ()
    ignored: Sequence[str] = ()
    weight: float = 1.0
    none: bool = False
    partial: bool = False


class ClassifyOptions(TypedDict, total=False):
    """Options of a classification, as keyword arguments; see ``POST /classify``."""

    k: int
    threshold: float | None
    min_probability: float | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    known: Sequence[str] | None
    rare: bool
    explain: bool
    levels: bool
    names: bool
    zero_shot: bool
    version: str | None
    min_offset: str | None
    remember: bool
    decide: Mapping[str, float] | bool | None


class LearnKwargs(TypedDict, total=False):
    """The fields of ``Labelled`` that are not part of the instance, as keyword arguments."""

    prediction: str | None
    key: str | None
    source: str | None
    rejected: Sequence[str]
    ignored: Sequence[str]
    weight: float
    none: bool
    partial: bool


def _fields(struct: Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=client_requests.to_builtin)
    return fields


def as_instance(
    instance: str | InputInstance | None, text: InputText | None, features: Features | None, vector: Any
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


def learn_request(instance: InputInstance, labels: Sequence[str], more: LearnKwargs) -> dict[str, Any]:
    for name, given in (("labels", labels), ("rejected", more.get("rejected")), ("ignored", more.get("ignored"))):
        if isinstance(given, str):
            raise TypeError(f"{name} is a list of strings, such as [{given!r}]")
    return _fields(
        Labelled(
            labels=labels,
            text=instance.text,
            features=instance.features,
            vector=instance.vector,
            vector_model=instance.vector_model,
            **more,
        )
    )


def classify_request(instance: InputInstance, options: ClassifyOptions) -> dict[str, Any]:
    return _fields(instance) | _given(options)


def _given(options: ClassifyOptions) -> dict[str, Any]:
    unknown = sorted(options.keys() - ClassifyOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"unknown options: {', '.join(unknown)}")
    return {name: value for name, value in options.items() if value is not None}


class Outgoing:
    """Encodes the instances of a stream. One that cannot be sent is refused at its place; the others go on."""

    def __init__(self, encode: Callable[[Any], bytes], instances: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._encode, self._instances = encode, instances
        self._refused: deque[tuple[int, Refused]] = deque()  # with the number of lines before it
        self._read = self._sent = self._answered = 0

    def lines(self) -> Any:
        """Return an iterator, async if the instances are."""
        if isinstance(self._instances, AsyncIterable):
            return (line async for one in self._instances for line in self._lines_of(one))
        return (line for one in self._instances for line in self._lines_of(one))

    def refused(self, *, ended: bool = False) -> Iterator[Refused]:
        """Yield the errors of the instances before the next answer."""
        while self._refused and (ended or self._refused[0][0] <= self._answered):
            yield self._refused.popleft()[1]
        self._answered += 1

    def _lines_of(self, instance: Any) -> Iterator[bytes]:
        self._read += 1
        try:
            if isinstance(instance, Malformed):
                raise instance
            line = self._encode(instance)
        except (Malformed, Refused, TypeError, ValueError, OverflowError) as error:
            if not isinstance(instance, (Malformed, Mapping, InputInstance)):
                raise
            problem = error.problem if isinstance(error, Refused) else {}
            detail = f"instance {self._read}: {problem.get('detail', error)}"
            self._refused.append((self._sent, Refused(422, problem | {"detail": detail})))
            return
        self._sent += 1
        yield line


def rows_of(instances: Any, options: Mapping[str, Any]) -> Any:
    """Return the rows of a frame, or of dicts whose fields have roles, as instances; anything else as it is.

    A row that is none is its error.
    """
    if not options and not hasattr(instances, "columns"):
        return instances
    from abound_core.instances.tables import read_batches, read_records

    given, bad = ReadOptions.of(**options), list[Malformed]()
    if hasattr(instances, "columns"):
        rows = read_batches(batches_of(instances), given, "", bad.append)
    else:
        rows = read_records(instances, given, on_bad=bad.append)
    return _with_errors(rows, bad)


def batches_of(frame: Any) -> list[Any]:
    """Return a frame as record batches, without the index of pandas. Raises ValueError if that needs pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError("frames with other columns than numbers need pyarrow: pip install 'abound[arrow]'") from error
    batches: list[Any] = pyarrow.table(frame).select([str(name) for name in frame.columns]).to_batches()
    return batches


def _with_errors(rows: Iterator[Any], bad: list[Malformed]) -> Iterator[Any]:
    for row in rows:
        yield from bad
        bad.clear()
        yield row
    yield from bad


def _struct(given: object, kind: type[S]) -> S:
    """Return an instance that was given as a ``kind`` or as a mapping of its fields. Raises TypeError otherwise."""
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        return kind(**given)
    if hasattr(given, "to_json"):  # the row of a table
        return msgspec.json.decode(given.to_json(), type=kind)
    kinds = "a Labelled" if kind is Labelled else "a text, an InputInstance"
    raise TypeError(f"an instance is {kinds} or a dict of its fields, not {type(given).__name__}")


def classify_encoder(options: ClassifyOptions) -> Callable[[str | InputInstance | Fields], bytes]:
    added = client_requests.encode_document(_given(options))

    def encode(instance: str | InputInstance | Fields) -> bytes:
        given = {"text": instance} if isinstance(instance, str) else instance
        return _joined(client_requests.encode_document(_struct(given, InputInstance)), added)

    return encode


def learn_encoder(keyed: bool) -> Callable[[Labelled | Fields], bytes]:
    """Return a function that encodes the line of an instance. With ``keyed``, it adds a unique key to one without."""
    prefix, numbers = uuid.uuid4().hex.encode(), count(1)

    def encode(given: Any) -> bytes:
        if isinstance(given, Mapping) and (named := given.keys() & {"label", "labels"}):  # as in JSON lines
            labels = given["labels" if "labels" in named else "label"]
            labels = [labels] if isinstance(labels, str | int | float) else labels
            given = {name: value for name, value in given.items() if name != "label"} | {"labels": labels}
        instance = _struct(given, Labelled)
        line = client_requests.encode_document(instance)
        if not keyed or instance.key is not None:
            return line
        return _joined(line, b'{"key":"%b:%d"}' % (prefix, next(numbers)))

    return encode


def _joined(line: bytes, added: bytes) -> bytes:
    return line if added == b"{}" else added if line == b"{}" else line[:-1] + b"," + added[1:]


def to_answer(answer: Answer, shape: type[Shape], url: str) -> Shape | Refused:
    return refusal_of(answer) or convert_answer(answer, shape, url)
