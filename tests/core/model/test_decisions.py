"""Decisions against a plain oracle, bit for bit; what is part of the state; what `none` teaches."""

import random
from typing import Any

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance
from abound_core.instances.record import Record, add_details, pack_change, pack_labels, unpack
from abound_core.instances.siphash_kernels import siphash13
from abound_core.limits import Limits
from abound_core.model.decision_kernels import DEFERRED, HELD, REACHED, THETA, TRUE_LABELS
from abound_core.model.decisions import NAMES
from abound_core.model.entry_application import Unit
from abound_core.model.label_changes import ChangeRequest, LabelChange, encode
from abound_core.model.live_model import LiveModel
from tests.core.model.test_reranker import Instance, vector_of
from tests.core.model.test_reranker import stream as clean_stream
from tests.core.oracles.decisions import Oracle

DECIDE = {"agreement": 0.8, "audit": 0.3, "none": 0.1, "coverage": 0.9}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fsu": ({"update": "fsu"}, {"p_vector": 0.0}),
    "sls": ({"update": "sls"}, {"p_vector": 0.0}),
    "vectors": ({"update": "sls"}, {}),
    "vectors without re-ranker": ({"update": "sls", "rerank": False}, {}),
    "several labels": ({"update": "sls"}, {"n_labels": 3}),
    "bounded": ({"update": "sls", "max_features": 30}, {"n_labels": 2}),
}


def stream(n: int, seed: int, **shape: Any) -> list[Instance]:
    """Instances of which one in ten has another label, and one in twenty none, with words of its own."""
    rng, made = random.Random(seed), []
    for words, q, labels in clean_stream(n, seed, **shape):
        kind = rng.random()
        if kind < 0.05:
            made.append(([f"other{rng.randrange(40)}"], q, []))
        else:
            made.append((words, q, [f"c{rng.randrange(6)}"] if kind < 0.15 else labels))
    return made


def model_of(**config: Any) -> LiveModel:
    return LiveModel(ModelConfig.from_dict({"decide": DECIDE} | config), (3, 4))


def record_of(instance: Instance) -> bytes:
    words, q, labels = instance
    return vector_of(words, q) + pack_labels(labels, Limits(), none=not labels)


def learn(model: LiveModel, instances: list[Instance]) -> None:
    model.begin(b"".join(map(record_of, instances)), len(instances), [Unit(len(instances))]).finish()


def change(model: LiveModel, asked: LabelChange) -> None:
    model.begin(pack_change(encode(ChangeRequest([asked]))), 1, [Unit(1)]).finish()


def is_audited(vector: bytes) -> bool:
    key = [np.uint64(int.from_bytes(part, "big")) for part in (b"audit...", b"..abound")]
    hashed = int(siphash13(*key, np.frombuffer(vector + bytes(8), np.uint8), 0, len(vector)))
    return (hashed >> 11) / 2**53 < DECIDE["audit"]


@pytest.mark.parametrize("name", CASES)
def test_decides_and_learns_as_the_oracle_does_bit_for_bit(name):
    config, shape = CASES[name]
    decide, decisions = DECIDE | {"agreement": 0.6 if "n_labels" in shape else 0.8}, set()
    model, oracle = model_of(**config, decide=decide), Oracle(**decide, is_audited=is_audited)
    for at, (words, q, labels) in enumerate(stream(500, 1, **shape)):
        if at == 350:
            change(model, LabelChange("retire", "c1"))
        if at >= 350 and labels == ["c1"]:  # nothing is learned of it
            learn(model, [(words, q, labels)])
            continue
        vector = vector_of(words, q)
        ranking = model.rank_estimated(vector, 50)
        plain = model.decisions.arrays.plain[0]
        ranked = list(zip(*(column.tolist() for column in ranking), strict=True))
        decision, applied, candidates = oracle.decide(ranked, plain)
        found = model.decide(vector, 3)
        decisions.add(decision)
        assert (found.decision, found.candidates.tolist()) == (decision, candidates)
        assert found.audit == (decision != "defer" and is_audited(vector))
        assert found.applied.class_ids.tolist() == applied
        assert found.ranking.class_ids.tolist() == [one[0] for one in ranked]
        left = [model.labels.find(label.encode()) for label in labels if at < 350 or label != "c1"]
        oracle.learn(vector, ranked, plain, left)
        learn(model, [(words, q, labels)])
    state = model.decisions.arrays
    assert decisions == set(NAMES)
    assert state.outcomes.tolist() == oracle.outcomes
    assert state.scores.tolist() == oracle.scores
    sets = [state.sets[place] for place in (THETA, DEFERRED, HELD, REACHED, TRUE_LABELS)]
    assert sets == [oracle.theta, oracle.deferred, oracle.held, oracle.reached, oracle.more_labels]
    figures = model.stats()["decisions"]
    counted = [one[0] for one in oracle.counted]
    assert figures["all"]["n"] == len(counted)
    assert figures["all"]["audited"] == counted.count("answer")
    assert figures["all"]["agreement"] == sum(one[2] for one in oracle.counted) / sum(one[1] for one in oracle.counted)


@pytest.mark.parametrize("name", ["fsu", "sls", "vectors"])
def test_deciding_changes_nothing_else_that_is_learned(name):
    config, shape = CASES[name]
    plain, deciding = model_of(**config | {"decide": None, "calibrate": False}), model_of(**config)
    for model in (plain, deciding):
        learn(model, stream(300, 3, **shape))
    theirs = deciding.to_arrays()
    for part, array in plain.to_arrays().items():
        np.testing.assert_array_equal(array, theirs.pop(part), err_msg=part)
    assert {part.split("/")[0] for part in theirs} == {"calibration", "decisions"}


@pytest.mark.parametrize("name", CASES)
def test_changes_of_labels_leave_the_decisions_as_they_are(name):
    config, shape = CASES[name]
    model = model_of(**config)
    learn(model, stream(200, 10, **shape))
    before = model.decisions.digest_bytes()
    for asked in (
        LabelChange("rename", "c0", "new"),
        LabelChange("merge", "c1", "c2"),
        LabelChange("retire", "c3"),
        LabelChange("split", "c4", ["a", "b"]),
    ):
        change(model, asked)
    assert model.decisions.digest_bytes() == before
    restored = LiveModel.from_arrays(model.meta(), model.to_arrays(), (5, 6))
    for one in (model, restored):
        learn(one, stream(200, 11, **shape))
    assert model.digest() == restored.digest()
    assert model.decisions.digest_bytes() != before


def test_it_begins_and_ends_with_the_setting_and_keeps_its_state_when_a_target_changes():
    model, never = (model_of(decide=None, calibrate=False) for _ in range(2))
    for one in (model, never):
        learn(one, stream(100, 4))
    model.configure({"decide": {}})
    assert model.config.decide.agreement == 0.95
    learn(model, stream(200, 5))
    learn(never, stream(200, 5))
    before = model.decisions.digest_bytes()
    model.configure({"decide": {"agreement": 0.9}})
    assert (model.config.decide.agreement, model.config.decide.audit) == (0.9, 0.05)
    assert model.decisions.digest_bytes() == before
    model.configure({"decide": None})
    assert model.digest() == never.digest()


def test_without_evidence_nothing_is_answered_and_a_change_ends_the_answers():
    model = model_of(decide={"agreement": 0.9, "audit": 0.2})
    right = [([f"k{i % 6}", f"n{i}"], None, [f"c{i % 6}"]) for i in range(1500)]
    assert model.decide(vector_of(*right[0][:2]), 1).decision == "defer"
    learn(model, right[:20])
    assert model.decide(vector_of(*right[0][:2]), 1).decision == "defer"
    learn(model, right[20:])
    assert model.decide(vector_of(*right[0][:2]), 1).decision == "answer"
    answers = []
    for at in range(1500, 3500):
        words, label = [f"k{at % 6}", f"n{at}"], f"c{(at + 1) % 6}"
        found = model.decide(vector_of(words, None), 1)
        if found.decision == "answer":
            answers.append(model.label(int(found.applied.class_ids[0])) == label)
        if found.decision != "answer" or found.audit:
            learn(model, [(words, None, [label])])
    assert answers.count(False) < 150
    assert answers[-300:].count(True) > 270


def test_more_agreement_answers_less():
    model = model_of(**CASES["sls"][0])
    learn(model, stream(600, 6, p_vector=0.0))
    asked = [vector_of(words, q) for words, q, _ in stream(100, 7, p_vector=0.0)]
    answers = [sum(model.decide(v, 1, agreement=a).decision == "answer" for v in asked) for a in (0.5, 0.8, 0.999)]
    assert answers[0] >= answers[1] > answers[2] == 0


def test_none_is_a_record_without_labels():
    record = vector_of(["a"], None) + pack_labels([], Limits(), none=True)
    assert unpack(record)[2:] == Record([], [], [], [], [], 1.0)[2:]
    for labels, wrong in ((["a"], []), ([], ["b"])):
        with pytest.raises(InvalidInstance, match="none"):
            pack_labels(labels, Limits(), wrong, none=True)
    with pytest.raises(InvalidInstance, match="or none"):
        pack_labels([], Limits())


def test_registrations_and_wrong_labels_alone_are_not_decided():
    model = model_of()
    learn(model, stream(200, 8, p_vector=0.0))
    before, vector = model.decisions.digest_bytes(), vector_of(["k1w1"], None)
    named = add_details(vector + pack_labels(["c1"], Limits()), b"{}")
    wrong = vector + pack_labels([], Limits(), ["c1"])
    for record in (named, wrong):
        model.begin(record, 1, [Unit(1)]).finish()
    assert model.decisions.digest_bytes() == before


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [("outcomes", (3, 1), 1e9), ("sets", THETA, 21.0), ("sets", HELD, 1e6), ("totals", 4, 10**6), ("newest", 0, 3)],
    ids=["right", "theta", "held", "totals", "newest"],
)
def test_contradictory_arrays_are_refused(array, place, value):
    model = model_of()
    learn(model, stream(50, 9))
    arrays = model.to_arrays()
    arrays[f"decisions/{array}"][place] = value
    with pytest.raises(Corrupted, match="decisions"):
        LiveModel.from_arrays(model.meta(), arrays, (1, 2))
