"""Records with feedback applied by a model: what counts, what becomes a class, later passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.refit import Refitter
from abound_core.types import START
from tests.core.methods.toy import from_log
from tests.core.model.test_calibration import counted, ranked
from tests.core.model.test_live_model import learn as learn_plain
from tests.core.model.test_live_model import vector_of
from tests.core.oracles.calibration import Oracle
from tests.randomness import examples


class Event(NamedTuple):
    keys: list[str]
    labels: Sequence[str] = ()
    rejected: Sequence[str] = ()
    ignored: Sequence[str] = ()
    weight: float = 1.0
    partial: bool = False

    def record(self) -> bytes:
        return vector_of(self.keys) + pack_labels(self.labels, Limits(), *self[2:5], partial=self.partial)

    @property
    def is_scored(self) -> bool:
        return bool(self.labels) and not self.partial


CLASSES = [f"c{i}" for i in range(9)]
WEIGHTS = (0.5, 1.0, 1.0, 3.0)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    made = []
    for _ in range(draw(st.integers(1, 40))):
        labels = draw(st.permutations(CLASSES))[: draw(st.integers(1, 6))]
        first, second = sorted((draw(st.integers(0, len(labels))), draw(st.integers(1, len(labels)))))
        keys = draw(st.lists(st.sampled_from([f"f{i}" for i in range(20)]), min_size=1, max_size=6, unique=True))
        weight = draw(st.sampled_from(WEIGHTS))
        partial = first > 0 and draw(st.integers(0, 3)) == 0
        made.append(Event(keys, labels[:first], labels[first:second], labels[second:], weight, partial))
    return made


def learn(model: LiveModel, stream: list[Event]) -> list[int]:
    records = b"".join(event.record() for event in stream)
    return model.begin(records, len(stream), [Unit(len(stream))]).finish().ranks.tolist()


def learned(stream: list[Event], **config: Any) -> LiveModel:
    model = LiveModel(ModelConfig.from_dict(config), (3, 4))
    learn(model, stream)
    return model


CONFIGS = st.sampled_from(
    [
        {},
        {"update": "sls"},
        {"update": "sls", "rows": False, "implicit": 0.5},
        {"max_features": 5},
        {"calibrate": False, "update": "sls"},
    ]
)


@settings(max_examples=examples(60), deadline=None)
@given(events(), CONFIGS)
def test_what_is_counted(stream, config):
    model = LiveModel(ModelConfig.from_dict(config), (3, 4))
    ranks = learn(model, stream)
    labelled = [(event, rank) for event, rank in zip(stream, ranks, strict=True) if event.is_scored]
    stats = model.stats()
    assert stats["learned"] == model.n_learned == len(stream)
    assert stats["all"]["n"] == len(labelled)
    assert stats["all"]["R@1"] == (sum(rank == 1 for _, rank in labelled) / len(labelled) if labelled else None)
    assert all(rank == 0 for event, rank in zip(stream, ranks, strict=True) if not event.labels)
    assert stats["feedback"] == {
        "unlabelled": len(stream) - len(labelled),
        "rejected": sum(len(event.rejected) for event in stream),
        "ignored": sum(len(event.ignored) for event in stream),
        "weighted": sum(event.weight != 1.0 for event in stream),
    }
    true = [label for event in stream for label in event.labels]
    assert {model.label(i): model.times_learned(i) for i in range(len(model.labels))} == {
        label: true.count(label) for label in true
    }


def test_ignored_labels_are_learned_with_implicit_only():
    seen = [Event(["a", "b"], ["x"]), Event(["a", "c"], ["y"]), Event(["a", "b"], ["x"])]
    for update in ("fsu", "sls"):
        models = [learned(seen, update=update, rating=False, implicit=implicit) for implicit in (0.0, 0.3, 1.0)]
        for model in models:
            learn(model, [Event(["a", "b"], [], ["unknown"], ["x"])])
        scores = [model.rank(vector_of(["a", "b"]), 1, include=["x"]).scores[0] for model in models]
        assert scores[0] > scores[1] > scores[2]


@pytest.mark.parametrize("config", [{}, {"update": "sls"}, {"update": "sls", "rows": False}])
def test_a_refit_learns_feedback_in_each_pass(config):
    """A later pass equals learning the same again without counting the features."""
    rng = np.random.default_rng(1)
    stream = []
    for _ in range(80):
        labels = rng.permutation(CLASSES).tolist()
        keys = [f"f{i}" for i in rng.permutation(20)[:5]]
        first = int(rng.integers(0, 3))
        given = labels[:first], labels[first : first + 2], [], float(rng.choice(WEIGHTS))
        stream.append(Event(keys, *given, first > 0 and rng.random() < 0.3))
    records = b"".join(event.record() for event in stream)
    fitting = Refitter(LiveModel(ModelConfig.from_dict(config), (1, 2)))
    for _ in range(2):
        assert fitting.learn(records, [Unit(len(stream))], START) == []
        fitting.next_pass()
    once = learned(stream, **config)
    assert fitting.live.n_learned == once.n_learned
    assert fitting.live.index.digest() != once.index.digest()
    held = Refitter(LiveModel(ModelConfig.from_dict(config), (1, 2)), 40).learn(records, [Unit(len(stream))], START)
    assert held == [event.record() for event in stream[40:] if event.is_scored]


def test_batch_methods_get_all_true_labels_and_nothing_else():
    stream = [Event(["a"], ["x"], ["y"]), Event(["b"], [], ["x"]), Event(["c"], ["y"], [], ["x"], 2.0)]
    stream.insert(1, Event(["a"], ["y"], partial=True))
    made = from_log([event.record() for event in stream])
    assert made.labels == ["x", "y"]
    assert made.Y.toarray().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("update", "n_labels"), [("fsu", 1), ("fsu", 3), ("sls", 1), ("sls", 3)])
def test_only_rejected_labels_calibrate_if_it_is_not_known_what_is_true(update, n_labels):
    rng = np.random.default_rng(5)
    model, oracle = learned([], update=update), Oracle()
    for count in range(300):
        kinds = rng.permutation(6)[:n_labels].tolist()
        keys = sorted({*(f"k{kind}w{rng.integers(4)}" for kind in kinds), f"k{rng.integers(6)}w{rng.integers(4)}", "n"})
        best = ranked(counted(model, vector_of(keys)), keys)
        if count % 3 or not best:
            learn_plain(model, [(keys, [f"c{kind}" for kind in kinds])])
            oracle.learn(best, {model.labels.find(f"c{kind}".encode()) for kind in kinds})
        else:
            rejected = [class_id for class_id, _ in best[: int(rng.integers(1, 4))]]
            wrong = [model.label(class_id) for class_id in rejected]
            others = [label for label in CLASSES[:6] if label not in wrong and count % 2]
            oracle.learn(best, set(), set() if others else set(rejected))
            learn(model, [Event(keys, others[:1], wrong, partial=bool(others))])
    assert model.calibration.arrays.weights.tolist() == oracle.weights
    assert model.index.in_rows == (update == "sls" and n_labels > 1)


@pytest.mark.parametrize("rows", [False, True])
def test_what_is_not_named_beside_some_of_the_labels_keeps_its_score(rows):
    """And nothing of what a model knows of its own answers changes."""
    decide = {"agreement": 0.9, "audit": 1.0}
    stream = [Event([f"f{i}", f"f{j}"], [f"c{i}", f"c{j}"]) for i in range(5) for j in range(5) if i != j] * 3
    keys, others = vector_of(["f0", "f1", "f2"]), ["c0", "c1"]
    for partial in (False, True):
        model = learned(stream, update="sls", rows=rows, decide=decide)
        assert model.index.in_rows == rows
        before = model.rank(keys, 3, include=["c0", "c1", "c2"]), model.stats(), model.calibration.arrays.weights.copy()
        learn(model, [Event(["f0", "f1", "f2"], ["c2"], partial=partial)])
        after = model.rank(keys, 3, include=["c0", "c1", "c2"])
        scores = [
            dict(zip(map(model.label, one.class_ids.tolist()), one.scores, strict=True)) for one in (before[0], after)
        ]
        assert scores[1]["c2"] > scores[0]["c2"]
        assert all((scores[1][label] == scores[0][label]) == partial for label in others)
        assert (model.calibration.arrays.weights == before[2]).all() == partial
        for measure in ("all", "decisions", "calibration"):
            assert (model.stats()[measure] == before[1][measure]) == partial, measure
