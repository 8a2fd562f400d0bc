"""The arithmetic of the programs that measure accuracy, on rows made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from abound.core.config import ModelConfig
from abound.core.evaluation.evaluate import fit, measure, rank
from abound.core.instances.data_formats import Dataset
from abound.core.instances.record import pack_labels, pack_vector
from abound.core.limits import DATASET_LIMITS
from abound.core.measures import LabelSets, Propensity
from benchmarks import drift
from benchmarks.rivals.instances import measures
from benchmarks.sets import Rows, Task, validation
from benchmarks.updates import in_order_of_arrival, learned, ranked
from tests.core.index.test_sls import stream


def rows(n, seed=1):
    instances = list(stream(seed, n, labels=3))
    ids, values, labels = zip(*instances, strict=True)
    return Rows(
        np.cumsum([0, *map(len, ids)]),
        np.concatenate(ids),
        np.concatenate(values),
        np.cumsum([0, *map(len, labels)]),
        np.concatenate(labels),
    )


def test_taken_rows_are_those_instances_in_that_order():
    some = rows(20)
    taken = some.taken(np.array([7, 3, 3]))
    assert len(taken) == 3
    for at, place in enumerate((7, 3, 3)):
        for starts, values in (("starts", "ids"), ("starts", "values"), ("label_starts", "label_ids")):
            own, other = (
                getattr(part, values)[slice(*getattr(part, starts)[i : i + 2])]
                for part, i in ((taken, at), (some, place))
            )
            assert own.tolist() == other.tolist()


def test_validation_leaves_the_test_part_alone():
    task = validation(Task(rows(100), rows(5, seed=2), 60, 20), "clinc150")
    assert (len(task.train), len(task.test)) == (90, 10)
    last = validation(Task(rows(100), rows(5, seed=2), 60, 20), "commits-git")
    assert last.test.ids.tolist() == rows(100).taken(np.arange(90, 100)).ids.tolist()


def test_classes_are_numbered_as_they_arrive():
    train, test = in_order_of_arrival(rows(30), rows(5, seed=2))
    seen = train.label_ids.tolist()
    assert [c for i, c in enumerate(seen) if c not in seen[:i]] == list(range(len(set(seen))))
    assert len(test.label_ids) == len(rows(5, seed=2).label_ids)


@pytest.mark.long
def test_what_is_learned_and_measured_is_what_the_model_learns_and_measures():
    def dataset(part):
        vectors = [
            pack_vector([b"%d" % i for i in part.ids[a:b].tolist()], part.values[a:b])
            for a, b in zip(part.starts[:-1], part.starts[1:], strict=True)
        ]
        sets = [
            part.label_ids[a:b].tolist() for a, b in zip(part.label_starts[:-1], part.label_starts[1:], strict=True)
        ]
        names = [str(i) for i in range(20)]
        packed = [pack_labels([str(label) for label in labels], DATASET_LIMITS) for labels in sets]
        return Dataset(vectors=vectors, label_parts=packed, labels=LabelSets.of(sets), names=names)

    config = ModelConfig(update="sls")
    train, test = in_order_of_arrival(rows(300), rows(50, seed=2))
    live = fit(dataset(train), config, (1, 2))
    expected = measure(live, dataset(train), dataset(test), rank(live, dataset(test)), Propensity())
    index, _, _ = learned(config, train)
    assert index.n_connections == live.index.n_connections
    figures, _ = ranked(index, test)
    for name in ("R@1", "R@5", "MRR", "P@5"):
        assert abs(figures[name] - expected[name]) < 1e-12


def test_recovery_is_counted_from_the_change_on():
    plain = np.ones(8000, bool)
    changed = plain.copy()
    changed[4000:5000] = False
    assert drift.recovery(changed, plain) == 1900
    assert drift.recovery(np.zeros(8000, bool), plain) is None


def test_classes_are_permuted_from_the_half_on():
    before = rows(40)
    after = drift.permuted(before)
    half = before.label_starts[20]
    assert after.label_ids[:half].tolist() == before.label_ids[:half].tolist()
    pairs = set(zip(before.label_ids[half:].tolist(), after.label_ids[half:].tolist(), strict=True))
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
    assert any(old != new for old, new in pairs)


def test_answers_are_measured():
    figures = measures([["a", "b"], ["b", "a"], ["c"]], [["a"], ["a", "b"], []])
    assert figures == {"R@1": 1.0, "R@5": 1.0, "MRR": 1.0, "P@5": 3 / 15}
    assert measures([["a"], ["b"]], [["b"], ["b"]])["R@1"] == 0.5
