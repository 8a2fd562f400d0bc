"""Data set formats: parsing of lines, and vectorized data sets in memory.

Parsing is pure: bytes in, instances out. ``abound/datasets/files.py`` opens the files. The formats of lines:

``txt``
    The text of the Extreme Classification repository: a header ``N D L``, then N lines ``l1,l2 f:v f:v``. A line
    without labels starts with a space or with its first feature.
``svm``
    svmlight: ``l1,l2 f:v f:v # comment``. Blank lines and ``qid:`` are skipped.
``jsonl``
    One JSON object per line with ``text`` (a string, or strings by field), ``features``, ``vector`` or several of them,
    and ``labels`` (strings or whole numbers), and optionally ``rejected``, ``ignored`` (as ``labels``), ``weight`` (a
    number), ``none`` (true: no label fits), ``partial`` (true: the labels are not all), ``key`` and ``source``. A
    vector is a list of numbers or an object (``abound_core.instances.dense_vector``). ``label`` is another name of
    ``labels``, and one label may be a string. Other fields are errors, unless they are ignored by name.
``fasttext``
    ``__label__a __label__b the text``.
``vw``
    Vowpal Wabbit: ``label weight 'tag|name words |other words``. Several labels are separated by commas; the words of
    the namespaces are the fields of the text, ``name:0.5`` is a feature.

The feature and label numbers of the first two formats become text keys and labels: feature 17 is the key ``17``.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np

from abound_core.errors import InvalidInstance, Malformed, WrongOption
from abound_core.instances.dense_vector import to_int8
from abound_core.instances.encoded_vector import EncodedVector, Numbers
from abound_core.instances.json_fallback import nan_hint
from abound_core.instances.names import label_texts
from abound_core.instances.read_options import ANY_FIELD, ReadOptions
from abound_core.instances.record import EMPTY_VECTOR, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.measures import Ints, LabelSets
from abound_core.types import Text

MAX_DIGITS = 18  # of a whole number in a file

FASTTEXT_LABEL = "__label__"  # begins each label of a line

_PLAIN_PAIR = rb"(?:0|[1-9]\d{0,17}):-?(?:0|[1-9]\d{0,17})(?:\.\d+)?"
_PLAIN_PAIRS = re.compile(rb"(?:%b(?: %b)*)?" % (_PLAIN_PAIR, _PLAIN_PAIR))
_PLAIN_ID = re.compile(rb"(\d+):")


class DatasetInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as parsed from a file."""

    labels: tuple[str, ...] = ()  # empty for an instance without true labels
    text: Text | None = None
    features: bytes | None = None  # a JSON object, not validated beyond its syntax
    vector: list[float] | EncodedVector | None = None  # a dense vector, not validated beyond its type
    file: str = ""  # name of the file in messages
    line: int = 0  # line number in the file, from 1; 0 if the instance is not from a file
    fields: tuple[str, ...] = ()  # the names of the columns of a table
    # rejected, ignored: labels that are wrong, and labels that were shown and not chosen
    rejected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    weight: float = 1.0  # importance of the instance
    none: bool = False  # whether no label fits
    partial: bool = False  # whether the labels are not all
    # key, source: idempotency key and source of the event. Only ``abound learn`` uses the last seven; everything else
    # reads ``complete_labels``
    key: str | None = None
    source: str | None = None

    @property
    def is_labelled(self) -> bool:
        return bool(self.labels or self.rejected or self.ignored or self.none)

    @property
    def complete_labels(self) -> tuple[str, ...]:
        """The true labels if they are all, else none: labels that a partial instance does not name are not wrong."""
        return () if self.partial else self.labels

    @property
    def dense(self) -> bytes | None:
        """The dense vector as int8 numbers. Raises InvalidInstance if it is invalid."""
        return None if self.vector is None else to_int8(self.vector)

    @property
    def location(self) -> str:
        return f"{self.file}: line {self.line}" if self.file else f"line {self.line}"

    def to_json(self, *, labels: bool = True) -> bytes:
        """Return the instance as one line of JSON for the service; leave out its labels for classify."""
        fields: dict[str, object] = {}
        if self.text is not None:
            fields["text"] = self.text
        if self.features is not None:
            fields["features"] = msgspec.Raw(self.features)
        if self.vector is not None:
            fields["vector"] = self.vector
        if labels:
            fields["labels"] = self.labels
            given: dict[str, object] = {"rejected": self.rejected, "ignored": self.ignored, "none": self.none}
            given |= {
                "partial": self.partial,
                "weight": None if self.weight == 1.0 else self.weight,
                "key": self.key,
                "source": self.source,
            }
            fields |= {
                name: value for name, value in given.items() if value is not None and value is not False and value != ()
            }
        return msgspec.json.encode(fields)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset:
    """Vectorized instances with their labels."""

    vectors: Sequence[bytes]  # see ``abound_core/instances/record.py``
    label_parts: Sequence[bytes]  # the part that completes a vector to a record; empty for an instance without labels
    labels: LabelSets  # labels of each instance, as indices into ``names``
    names: list[str]  # every label once, in order of first appearance

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def learnable(self) -> Ints:
        """Indices of the instances that have a label and an active feature, in order."""
        active = np.fromiter((vector != EMPTY_VECTOR for vector in self.vectors), dtype=np.bool_, count=len(self))
        return np.flatnonzero(active & (self.labels.sizes > 0))

    @property
    def label_counts(self) -> Ints:
        """Number of instances with each label, shape (len(names),)."""
        return np.bincount(self.labels.ids, minlength=len(self.names))

    def select(self, places: Sequence[int]) -> Dataset:
        """Return these instances in this order, with all names."""
        starts, ids = self.labels
        return Dataset(
            vectors=[self.vectors[place] for place in places],
            label_parts=[self.label_parts[place] for place in places],
            labels=LabelSets.of(ids[starts[place] : starts[place + 1]].tolist() for place in places),
            names=self.names,
        )

    def records(self, places: Iterable[int]) -> bytes:
        """Return the concatenated records of these instances. Each must have a label."""
        return b"".join([part for place in places for part in (self.vectors[place], self.label_parts[place])])


def vectorize_all(instances: Iterable[DatasetInstance], vectorizer: Vectorizer, limits: Limits) -> Dataset:
    """Vectorize a stream of instances, as the model of ``vectorizer`` does, and keep all of them in memory.

    Raises Malformed for an invalid instance, with its location.
    """
    vectors: list[bytes] = []
    label_sets: list[list[int]] = []
    label_parts: list[bytes] = []
    ids: dict[str, int] = {}
    packed: dict[tuple[str, ...], bytes] = {(): b""}
    for instance in instances:
        labels = tuple(vectorizer.labels(instance.complete_labels))
        try:
            vectors.append(vectorizer.vectorize(instance.features, instance.text, instance.dense))
            if labels not in packed:
                packed[labels] = pack_labels(labels, limits)
        except InvalidInstance as error:
            raise Malformed(f"{instance.location}: {error.field}: {error}") from error
        label_parts.append(packed[labels])
        label_sets.append([ids.setdefault(label, len(ids)) for label in labels])
    return Dataset(vectors=vectors, label_parts=label_parts, labels=LabelSets.of(label_sets), names=list(ids))


def raise_error(error: Malformed) -> None:
    raise error


def read_instances(
    lines: Iterable[bytes],
    options: ReadOptions,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
) -> Iterator[DatasetInstance]:
    """Yield the instances of a file of lines. The format is that of ``options``, JSON lines without roles by default.

    ``on_bad`` is called with the error of each invalid line, which is then skipped. Its message begins with
    ``<file>: line <number>``. ``options.ignore`` has the unknown fields of a JSON line that are left out.
    """
    numbered = enumerate(lines, start=1)
    if options.format == "txt":
        yield from _read_txt(numbered, file, on_bad)
        return
    readers = {"svm": _parse_svm, "fasttext": _parse_fasttext, "vw": _parse_vw}
    parse = readers.get(options.format or "", partial(_parse_json, ignore=options.ignore))
    for number, line in numbered:
        try:
            instance = parse(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, number, file)
        except Malformed as error:
            on_bad(at_line(file, number, error))
            continue
        if instance is not None:
            yield instance


class _JsonInstance(msgspec.Struct):
    text: Text | None = None
    features: msgspec.Raw = msgspec.Raw(b"null")
    vector: Numbers | EncodedVector | None = None
    labels: list[str | int | float | None] | str | int | float | None = None
    label: list[str | int | float | None] | str | int | float | None = None
    rejected: list[str | int | float | None] | None = None
    ignored: list[str | int | float | None] | None = None
    weight: float | None = None
    none: bool = False
    partial: bool = False
    key: str | None = None
    source: str | None = None


class _StrictJsonInstance(_JsonInstance, forbid_unknown_fields=True):
    pass


_decode_json = msgspec.json.Decoder(_JsonInstance).decode
_decode_strict_json = msgspec.json.Decoder(_StrictJsonInstance).decode


def _parse_json(line: bytes, number: int, file: str, ignore: tuple[str, ...]) -> DatasetInstance | None:
    if not line.strip():
        return None
    try:
        fields = _decoded(line, ignore)
    except RecursionError:
        raise Malformed("not an instance in JSON: it is nested too deeply") from None
    features = None if bytes(fields.features) == b"null" else bytes(fields.features)
    if fields.text is None and features is None and fields.vector is None:
        raise Malformed(f"an instance needs text, features or a vector; this one has {_listed(_names_of(line))}")
    return DatasetInstance(
        labels=_labels_of(fields),
        text=fields.text,
        features=features,
        vector=fields.vector,
        file=file,
        line=number,
        **_event_fields(fields),
    )


OWN_FIELDS = (
    "features",
    "rejected",
    "ignored",
    "weight",
    "none",
    "partial",
    "key",
    "source",
)  # that lines keep where fields have roles


def with_own_fields(instance: DatasetInstance, own: dict[str, Any]) -> DatasetInstance:
    """Return the row of a JSON line with the fields that it has of its own; its features are joined with theirs."""
    fields = {name: value for name, value in own.items() if name != "features"}
    given = _event_fields(msgspec.convert(fields, _JsonInstance))
    parts = (instance.features, msgspec.json.encode(own.get("features", {})))
    features = b",".join(part[1:-1] for part in parts if part is not None and part != b"{}")
    given = {name: given[name] for name in fields} | {"features": b"{%b}" % features if features else instance.features}
    return msgspec.structs.replace(instance, **given)


def _event_fields(fields: _JsonInstance) -> dict[str, Any]:
    return {
        "rejected": tuple(label_texts(fields.rejected or (), False)),
        "ignored": tuple(label_texts(fields.ignored or (), False)),
        "weight": 1.0 if fields.weight is None else fields.weight,
        "none": fields.none,
        "partial": fields.partial,
        "key": fields.key,
        "source": fields.source,
    }


def _labels_of(fields: _JsonInstance) -> tuple[str, ...]:
    labels = fields.label if fields.labels is None else fields.labels
    return tuple(label_texts(labels if isinstance(labels, list) else () if labels == "" else [labels], False))


def _decoded(line: bytes, ignore: tuple[str, ...]) -> _JsonInstance:
    """Return the fields of a line. Raise Malformed, RecursionError."""
    try:
        fields = _decode_json(line) if ignore else _decode_strict_json(line)
        line.decode()
        is_labelled = fields.labels or fields.label or fields.rejected or fields.ignored
        if ignore and not (is_labelled and ANY_FIELD in ignore):
            _check_names(_names_of(line), ignore)
        return fields
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "unknown field" in str(error):
            _check_names(_names_of(line), ignore)
        if isinstance(error, UnicodeDecodeError):
            raise WrongOption("not UTF-8; name the encoding of the file, such as cp1252") from error
        for name in ("rejected", "ignored"):
            if str(error).endswith(f"`$.{name}`"):
                example = f'{{"text": "wheat prices", "{name}": ["grain"]}}'
                raise Malformed(f"{name} must be a list, as in {example}") from error
        raise Malformed(f"not an instance in JSON: {error}{nan_hint(line)}") from error


def _names_of(line: bytes) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))


@lru_cache(64)
def _check_names(names: tuple[str, ...], ignore: tuple[str, ...]) -> None:
    """Raise Malformed if a name is unknown and not ignored, or looks like a misspelt field that is missing."""
    known = _JsonInstance.__struct_fields__
    missing = [name for name in ("text", "features", "vector", "labels", "rejected") if name not in names]
    unknown = [name for name in names if name not in known and name not in ignore]
    for name in unknown:
        if near := get_close_matches(name.lower(), missing, n=1, cutoff=0.8):
            raise Malformed(f"unknown field {name!r}; did you mean {near[0]!r}?")
    if unknown and ANY_FIELD not in ignore:
        raise Malformed(
            f"unknown field {unknown[0]!r}; an instance has {', '.join(known)}; name the fields of the text and the "
            f"labels, as text and label, or ignore {', '.join(unknown)}, or {ANY_FIELD} for all"
        )


def _listed(names: tuple[str, ...]) -> str:
    return f"the fields {', '.join(map(repr, names))}" if names else "no fields"


def _parse_fasttext(line: bytes, number: int, file: str) -> DatasetInstance | None:
    words = _decoded_line(line).split()
    labels = tuple(takewhile(lambda word: word.startswith(FASTTEXT_LABEL), words))
    text = " ".join(words[len(labels) :])
    named = tuple(label.removeprefix(FASTTEXT_LABEL) for label in labels)
    return DatasetInstance(labels=named, text=text, file=file, line=number) if words else None


def _parse_vw(line: bytes, number: int, file: str) -> DatasetInstance | None:
    head, *parts = _decoded_line(line).split("|")
    if not parts:
        if head.strip():
            raise Malformed("not a line of Vowpal Wabbit: it has no |")
        return None
    given = [word for word in head.split() if not word.startswith("'")]
    weight = _float(given[1].encode()) if len(given) > 1 else 1.0
    if ":" in head or math.isnan(weight):
        raise Malformed(f"{head.strip()!r} are no labels and a weight, as in 'sports,news 2.0 |text a goal'")
    texts: dict[str, str] = {}
    features: dict[str, float] = {}
    for part in parts:
        words = part.split()
        name = words.pop(0).partition(":")[0] if words and not part[:1].isspace() else "text"
        pairs = [(word, *word.rpartition(":")[::2]) for word in words if ":" in word]
        numbers = {word: (key, value) for word, key, text in pairs if math.isfinite(value := _float(text.encode()))}
        features |= dict(numbers.values())
        texts[name] = " ".join(word for word in words if word not in numbers)
    texts = {name: text for name, text in texts.items() if text}
    return DatasetInstance(
        labels=tuple(label for label in (given or [""])[0].split(",") if label),
        text=texts if len(texts) > 1 else next(iter(texts.values()), None),
        features=msgspec.json.encode(features) if features or not texts else None,
        weight=weight,
        file=file,
        line=number,
    )


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise WrongOption("not UTF-8; name the encoding of the file, such as cp1252") from error


def _parse_svm(line: bytes, number: int, file: str) -> DatasetInstance | None:
    line = line.partition(b"#")[0].rstrip()
    if not line.strip():
        return None
    labels, pairs = _cut_labels(line)
    named = tuple(_label_text(label) for label in labels)
    pairs = [pair for pair in pairs if not pair.startswith(b"qid:")]
    return DatasetInstance(labels=named, features=_pairs_to_json(pairs, None), file=file, line=number)


def _read_txt(
    numbered: Iterator[tuple[int, bytes]], file: str, on_bad: Callable[[Malformed], None]
) -> Iterator[DatasetInstance]:
    number, header = next(numbered, (1, b""))
    sizes = header.split()
    if len(sizes) != 3 or not all(size.isdigit() and len(size) <= MAX_DIGITS for size in sizes):
        raise at_line(file, 1, "the header must be three whole numbers, of instances, features and labels")
    n_instances, n_features, n_labels = map(int, sizes)
    read = 0
    for number, line in numbered:
        if read == n_instances:
            if line.strip():
                raise at_line(file, number, f"the header promises {n_instances} instances, there are more")
            continue
        read += 1
        try:
            labels, pairs = _cut_labels(line)
            named = tuple(str(_id(label, n_labels, "label")) for label in labels)
            features = _pairs_to_json(pairs, n_features)
        except Malformed as error:
            on_bad(at_line(file, number, error))
            continue
        yield DatasetInstance(labels=named, features=features, file=file, line=number)
    if read < n_instances:
        raise at_line(file, number, f"the file ends after {read} of the {n_instances} instances of its header")


def at_line(file: str, number: int, detail: object) -> Malformed:
    """Return the error with the file and the line number. Number 0 means the whole file."""
    kind = type(detail) if isinstance(detail, Malformed) else Malformed
    return kind(": ".join(part for part in (file, f"line {number}" if number else "", str(detail)) if part))


def _cut_labels(line: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the labels and the ``f:v`` pairs of a line."""
    pairs = line.split()
    if not pairs or line[:1].isspace() or b":" in pairs[0]:
        return [], pairs
    labels = pairs[0].split(b",")
    return labels, pairs[1:]


def _pairs_to_json(pairs: list[bytes], n_features: int | None) -> bytes:
    plain = b" ".join(pairs)
    if _PLAIN_PAIRS.fullmatch(plain) and (
        n_features is None or max(map(int, _PLAIN_ID.findall(plain)), default=-1) < n_features
    ):
        # The keys and numbers are already valid JSON.
        return b'{"%b}' % plain.replace(b":", b'":').replace(b" ", b',"') if plain else b"{}"
    parts = []
    for pair in pairs:
        key, colon, number = pair.partition(b":")
        value = _float(number)
        if not colon or not math.isfinite(value):
            raise Malformed(f"{_shown(pair)} is not a feature and its value, as in 17:0.5")
        parts.append(f'"{_id(key, n_features, "feature")}":{value!r}')
    return f"{{{','.join(parts)}}}".encode()


def _float(text: bytes) -> float:
    """Parse a number; return NaN if it is invalid."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan


def _id(text: bytes, bound: int | None, what: str) -> int:
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise Malformed(f"{_shown(text)} is not the number of a {what}")
    number = int(text)
    if bound is not None and number >= bound:
        raise Malformed(f"{what} {number} is not below the {bound} of the header")
    return number


def _label_text(label: bytes) -> str:
    """Return a label of svmlight. Whole numbers get one spelling (``+1`` and ``1.0`` are ``1``)."""
    number = _float(label)
    if number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    if not label:
        raise Malformed("an empty label")
    try:
        return label.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"{_shown(label)} is not UTF-8") from error


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace"))
