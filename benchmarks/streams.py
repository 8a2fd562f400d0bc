"""Synthetic streams of instances with the shapes of published data sets.

Features are drawn from a background vocabulary of Zipf-like frequencies and from small vocabularies of the instance's
class and of its topic, and some instances are labelled with another class of the topic. An index learned from such a
stream has about the accuracy and the connections that the paper reports (Madani, Connor and Greiner, JMLR 2009,
section 6). Ids are given in order of arrival, as a vocabulary does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.instances.record import pack_labels
from abound_core.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a stream looks like.

    A feature of an instance comes from the vocabulary of its class, or of the class's topic, or from the background.

    Attributes
    ----------
    n_instances, n_classes : int
    active : float
        Draws of a feature for an instance, on average; what is drawn twice counts once.
    own, topic : float, 0 to 1
        Shares of the draws that come from the vocabulary of the class and of its topic.
    own_size, topic_size, background_size : int
        Features in the vocabulary of a class, of a topic, and of all.
    steepness, own_steepness, class_steepness : float
        Exponents of the Zipf distributions of the background, of the vocabularies of classes and topics, and of the
        classes.
    mistaken : float, 0 to 1
        Share of the instances that are labelled with another class of the topic.
    labels : float, at least 1
        Draws of a class for an instance, on average; the further ones are other classes of the topic.
    """

    n_instances: int
    n_classes: int
    active: float
    own: float
    topic: float
    own_size: int
    topic_size: int
    background_size: int
    steepness: float
    own_steepness: float
    class_steepness: float
    mistaken: float
    labels: float = 1.0


TOPIC = 40
"""Classes in a topic."""

SHAPES = {
    "ads": Shape(
        n_instances=369_000,
        n_classes=12_600,
        active=30.5,
        own=0.2,
        topic=0.18,
        own_size=27,
        topic_size=150,
        background_size=14_000,
        steepness=1.1,
        class_steepness=0.8,
        own_steepness=1.6,
        mistaken=0.2,
    ),
    "web": Shape(
        n_instances=70_000,
        n_classes=14_000,
        active=335.0,
        own=0.12,
        topic=0.4,
        own_size=105,
        topic_size=130,
        background_size=8_000,
        steepness=0.95,
        class_steepness=0.8,
        own_steepness=1.35,
        mistaken=0.4,
    ),
    "sparse": Shape(
        n_instances=200_000,
        n_classes=100_000,
        active=122.0,
        own=0.5,
        topic=0.1,
        own_size=72,
        topic_size=200,
        background_size=300_000,
        steepness=1.0,
        class_steepness=0.4,
        own_steepness=0.7,
        mistaken=0.1,
    ),
    "topics": Shape(
        n_instances=100_000,
        n_classes=120,
        active=60.0,
        own=0.2,
        topic=0.2,
        own_size=200,
        topic_size=600,
        background_size=20_000,
        steepness=1.0,
        class_steepness=0.8,
        own_steepness=1.0,
        mistaken=0.1,
        labels=3.0,
    ),
    "intents": Shape(
        n_instances=1_000_000,
        n_classes=150,
        active=10.0,
        own=0.3,
        topic=0.2,
        own_size=60,
        topic_size=150,
        background_size=4_000,
        steepness=1.0,
        class_steepness=0.5,
        own_steepness=1.0,
        mistaken=0.1,
    ),
    "products": Shape(
        n_instances=800_000,
        n_classes=1_000_000,
        active=12.0,
        own=0.35,
        topic=0.25,
        own_size=12,
        topic_size=100,
        background_size=50_000,
        steepness=1.0,
        class_steepness=0.3,
        own_steepness=1.0,
        mistaken=0.05,
    ),
}
"""Advertisements, web pages, more features than fit into a cache, several labels of few, few classes for long, and
half a million classes, most of them with one instance or two."""


class Stream(NamedTuple):
    """Instances one after the other: features of instance i are ``starts[i]`` to ``starts[i + 1]``.

    Attributes
    ----------
    starts, label_starts : int64, shape (n + 1,)
    ids, values : int32, float32, shape (nnz,)
        Unique within an instance; values l2-normalised.
    class_ids : int32, shape (n_assertions,)
        Unique within an instance; ``label_starts`` as ``starts``.
    """

    starts: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    label_starts: npt.NDArray[np.int64]
    class_ids: npt.NDArray[np.int32]

    @property
    def n_instances(self) -> int:
        """Instances in the stream."""
        return len(self.starts) - 1

    @property
    def n_features(self) -> int:
        """Different features that arrive."""
        return int(self.ids.max()) + 1

    @property
    def n_classes(self) -> int:
        """Different classes that arrive."""
        return int(self.class_ids.max()) + 1


def zipf_draws(rng: np.random.Generator, n_ranks: int, steepness: float, n: int) -> npt.NDArray[np.int64]:
    """``n`` ranks from 0, rank r with probability proportional to (r + 3)^-steepness."""
    heights = np.cumsum((np.arange(n_ranks) + 3.0) ** -steepness)
    return np.searchsorted(heights, rng.random(n) * heights[-1])


def by_arrival(raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Dense ids in order of first appearance."""
    _, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
    ids = np.empty(len(first), np.int32)
    ids[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return ids[inverse]


def draw(shape: Shape, seed: int) -> Stream:
    """A stream of this shape; the same seed gives the same stream."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(shape.n_classes)[
        zipf_draws(rng, shape.n_classes, shape.class_steepness, shape.n_instances)
    ]
    lengths = np.maximum(1, rng.poisson(shape.active, shape.n_instances))
    instance = np.repeat(np.arange(shape.n_instances), lengths)
    n, topics = len(instance), classes // TOPIC
    source = rng.random(n)
    own, topic = source < shape.own, source >= 1.0 - shape.topic
    first_topical = shape.background_size
    first_own = first_topical + (shape.n_classes // TOPIC + 1) * shape.topic_size
    raw = zipf_draws(rng, shape.background_size, shape.steepness, n)
    raw[topic] = first_topical + topics[instance[topic]] * shape.topic_size
    raw[topic] += zipf_draws(rng, shape.topic_size, shape.own_steepness, int(topic.sum()))
    raw[own] = first_own + classes[instance[own]] * shape.own_size
    raw[own] += zipf_draws(rng, shape.own_size, shape.own_steepness, int(own.sum()))
    _, first = np.unique(instance * (first_own + shape.n_classes * shape.own_size) + raw, return_index=True)
    first.sort()
    instance, raw = instance[first], raw[first]
    mistaken = rng.random(shape.n_instances) < shape.mistaken
    classes[mistaken] = np.minimum(
        topics[mistaken] * TOPIC + rng.integers(0, TOPIC, int(mistaken.sum())), classes.max()
    )
    values = np.exp(rng.normal(0.0, 0.7, len(raw)))
    norms = np.sqrt(np.bincount(instance, values**2, shape.n_instances))
    starts = np.zeros(shape.n_instances + 1, np.int64)
    np.cumsum(np.bincount(instance, minlength=shape.n_instances), out=starts[1:])
    label_starts, classes = labelled(rng, shape, classes)
    return Stream(
        starts, by_arrival(raw), (values / norms[instance]).astype(np.float32), label_starts, by_arrival(classes)
    )


def labelled(
    rng: np.random.Generator, shape: Shape, classes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Add further labels to the first of each instance; where the labels of each instance begin, and all labels."""
    n = len(classes)
    if shape.labels == 1.0:
        return np.arange(n + 1), classes
    further = np.repeat(np.arange(n), rng.poisson(shape.labels - 1.0, n))
    others = classes[further] // TOPIC * TOPIC + rng.integers(0, TOPIC, len(further))
    owner = np.concatenate((np.arange(n), further))
    drawn = np.concatenate((classes, np.minimum(others, shape.n_classes - 1)))
    _, first = np.unique(owner * shape.n_classes + drawn, return_index=True)
    first = first[np.argsort(owner[first], kind="stable")]
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(owner[first], minlength=n), out=starts[1:])
    return starts, drawn[first]


def records(stream: Stream, n: int) -> bytes:
    """The first ``n`` instances as records with string keys, ``feature0000017`` and ``class17``
    (``abound_core.instances.record``)."""
    keys = np.array(
        [b"feature%07d" % feature for feature in range(int(stream.ids[: stream.starts[n]].max()) + 1)], "S14"
    )
    packed = cache(lambda class_ids: pack_labels([f"class{class_id}" for class_id in class_ids], Limits()))
    parts = []
    for i in range(n):
        own = slice(stream.starts[i], stream.starts[i + 1])
        length = own.stop - own.start
        names, lengths = keys[stream.ids[own]].tobytes(), np.full(length, 14, np.uint16).tobytes()
        vector = np.uint32(length).tobytes() + stream.values[own].tobytes() + lengths + names
        true = stream.class_ids[stream.label_starts[i] : stream.label_starts[i + 1]]
        parts += [vector, bytes(-len(vector) % 4), packed(tuple(true.tolist()))]
    return b"".join(parts)
