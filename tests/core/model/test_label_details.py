"""Registered labels: their names are learned once, their details are part of the state."""

import pytest

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.instances.record import (
    EMPTY_VECTOR,
    add_details,
    check_records,
    details_of,
    iterate,
    pack_labels,
    record_shape,
)
from abound_core.limits import MAX_DETAILS_BYTES, Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.refit import Refitter
from abound_core.types import START
from tests.core.methods.toy import from_log

SECRET = (1, 2)
RULES = [{}, {"update": "sls"}, {"calibrate": False}, {"max_features": 10}, {"update": "sls", "calibrate": False}]
RULE_IDS = ["fsu", "sls", "fsu-plain", "bounded", "sls-plain"]


def model_of(**config) -> LiveModel:
    return LiveModel(ModelConfig.from_dict(config), SECRET)


def labelled(live: LiveModel, text: str, *labels: str) -> bytes:
    return live.vectorizer.vectorize(None, text) + pack_labels(labels, Limits())


def named(live: LiveModel, label: str, name: str = "", details: bytes = b"{}") -> bytes:
    return add_details(labelled(live, name, label) if name else EMPTY_VECTOR + pack_labels([label], Limits()), details)


def learn(live: LiveModel, *records: bytes):
    return live.begin(b"".join(records), len(records), [Unit(len(records))]).finish()


def best(live: LiveModel, text: str) -> list[str]:
    return [live.label(i) for i in live.rank(live.vectorizer.vectorize(None, text), 5).class_ids.tolist()]


@pytest.mark.parametrize("config", RULES, ids=RULE_IDS)
def test_a_label_that_was_never_learned_is_found_by_its_name(config):
    live = model_of(**config)
    result = learn(live, named(live, "c7", "wheat flour"), named(live, "c8", "crude oil"), labelled(live, "gold", "c9"))
    assert best(live, "the price of wheat") == ["c7"]
    assert result.ranks.tolist() == [0, 0, 0]
    assert live.n_learned == 1
    assert [live.times_learned(i) for i in range(3)] == [0, 0, 1]
    assert live.stats()["all"]["n"] == 1


@pytest.mark.parametrize("rule", RULES, ids=RULE_IDS)
def test_a_known_name_and_a_label_without_one_are_no_instances(rule):
    live = model_of(**rule)
    learn(live, named(live, "c7", "wheat"), named(live, "c8", "corn"), labelled(live, "wheat", "c8"))
    before = live.digest()
    learn(live, named(live, "c7", "wheat"), named(live, "c8", "corn"))
    assert live.digest() == before
    index = live.index.digest()
    learn(live, named(live, "c9"))
    assert live.labels.find(b"c9") == 2
    assert live.index.digest() == index


def test_a_refit_learns_names_and_does_not_score_them():
    live, records = model_of(), []
    for i in range(8):
        records += [named(live, f"c{i}", f"wheat{i}"), labelled(live, f"gold{i}", f"c{i}")]
    units = [Unit(len(records))]
    fitting = Refitter(model_of())
    assert fitting.learn(b"".join(records), units, START) == []
    learn(live, *records)
    assert fitting.live.digest() == live.digest()
    holding = Refitter(model_of(), 3)
    assert holding.learn(b"".join(records), units, START) == records[7::2]
    assert (holding.live.n_learned, len(holding.live.details)) == (3, 8)
    fitting.next_pass()
    fitting.learn(b"".join(records), units, START)


@pytest.mark.parametrize("rule", [{"margin": 7.0}, {"update": "sls"}], ids=["fsu", "sls"])
def test_a_refit_learns_a_name_once_in_each_pass(rule):
    """As the live model does: the same name again is not learned, and a former name is new once more."""
    base = model_of(**rule)
    learn(base, named(base, "c7", "wheat"), labelled(base, "gold silver", "c9", "c7"))
    corn, wheat, oil = named(base, "c7", "corn"), named(base, "c7", "wheat"), named(base, "c8", "crude oil")
    instance, bare = labelled(base, "oil corn", "c8"), named(base, "c8")
    once = refitted(base, [corn, instance, oil])
    assert refitted(base, [wheat, corn, corn, instance, oil, bare, oil]) == once
    assert refitted(base, [corn, wheat, corn, instance, oil]) != once


def refitted(base: LiveModel, records: list[bytes]) -> str:
    fitting = Refitter(LiveModel.from_arrays(base.meta(), base.to_arrays(), SECRET))
    for _ in range(3):
        fitting.learn(b"".join(records), [Unit(len(records))], START)
        fitting.next_pass()
    return fitting.live.digest()


def test_batch_methods_learn_a_name_once():
    model = model_of()
    wheat, oil = named(model, "c7", "wheat"), named(model, "c8", "oil")
    for records, expected in (
        ([wheat, oil, labelled(model, "gold", "c7")], ["c7", "c8", "c7"]),
        ([wheat, wheat, oil, named(model, "c7"), wheat, labelled(model, "gold", "c7"), oil], ["c7", "c8", "c7"]),
        ([named(model, "c8"), wheat, named(model, "c7", "corn"), wheat, oil], ["c7", "c7", "c7", "c8"]),
    ):
        data = from_log(records)
        assert [data.labels[column] for column in data.Y.indices] == expected
        assert data.X.nnz == len(expected)


def test_records_with_details_are_checked():
    good = named(model_of(), "c7", "wheat", "välja".encode())
    shape = record_shape(good, 0)
    assert details_of(good, shape) == "välja".encode()
    assert (shape.n_true, shape.n_labels, shape.end) == (1, 1, len(good))
    [record] = iterate(good, 1)
    assert record.labels == ["c7"]
    check_records(good + good, 2)
    for cut in range(len(good)):
        with pytest.raises(Corrupted):
            check_records(good[:cut], 1)
    two = EMPTY_VECTOR + pack_labels(["a", "b"], Limits())
    bad = [
        named(model_of(), "c7", "", b"\xff"),
        named(model_of(), "c7", "", b"x" * (MAX_DETAILS_BYTES + 1)),
        good[:-1] + b"x",
        two[:7] + bytes([two[7] | 0x40]) + two[8:] + bytes(4),
    ]
    check_records(named(model_of(), "c7", "", b"x" * MAX_DETAILS_BYTES), 1)
    for record in bad:
        with pytest.raises(Corrupted):
            check_records(record, 1)
