"""Label sets: which labels go together, and the ranking of the others when some labels of an instance are known."""

import random

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.index.index import Index
from abound_core.index.layout_kernels import Feedback
from abound_core.instances.record import pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.label_changes import LabelChange
from abound_core.model.label_sets import params_of
from abound_core.model.label_sets_kernels import GIVEN_WEIGHT
from abound_core.model.live_model import KNOWN, LiveModel
from abound_core.model.refit import Refitter
from abound_core.types import Offset
from tests.core.model.test_label_changes import change, learn, record, stream

X = pack_vector([b"x"], np.ones(1, np.float32))
EVERY = pack_vector([f"w{i}".encode() for i in range(60)], np.full(60, 0.1, np.float32))


def model_of(**config: object) -> LiveModel:
    return LiveModel(ModelConfig.from_dict({"update": "sls", **config}), (1, 2))


def scores_of(live: LiveModel, known: list[str], vector: bytes = X) -> dict[str, float]:
    ranking = live.rank_known(vector, known, 1000)
    return {live.label(one): score for one, score in zip(*(part.tolist() for part in ranking[:2]), strict=True)}


def sets(rng: random.Random, n: int, most: int) -> list[list[str]]:
    """Return label sets: mostly of one of five groups."""
    made = []
    for _ in range(n):
        group = rng.randrange(5)
        names = [f"g{group}-{i}" for i in range(most)] + [f"other {i}" for i in range(3)]
        made.append(rng.sample(names, rng.randrange(1, min(most, 30) + 1)))
    return made


@pytest.mark.parametrize(("most", "rows"), [(3, True), (3, False), (40, False)], ids=["rows", "lists", "many labels"])
def test_label_sets_are_learned_and_added_as_an_oracle_says(most: int, rows: bool) -> None:
    rng = random.Random(1)
    live, oracle, n = model_of(rows=rows, slots=8), Index(params_of(ModelConfig(update="sls", slots=8))), 0
    for labels in sets(rng, 300, most):
        weight = rng.choice([1.0, 1.0, 2.5])
        learned = X + pack_labels(labels, Limits(), ["other 1"] if "other 1" not in labels else [], weight=weight)
        learn(live, [learned])
        if len(labels) > 1:
            ids = [live.find(label) for label in labels]
            target = (n * 0x9E3779B97F4A7C15 % 2**64 >> 32) % len(ids)
            given = (ids[target + 1 :] + ids[:target])[:16]
            oracle.learn(
                np.array(given, np.int32),
                np.ones(len(given), np.float32),
                np.array([ids[target]], np.int32),
                feedback=Feedback(1, 0, weight),
            )
            n += 1
    assert live.label_sets.digest() == oracle.digest()
    assert live.index.in_rows == rows
    known = ["g1-0", "g1-1", "g3-0"]
    given = np.array(sorted(live.find(label) for label in known), np.int32)
    added = oracle.rank(given, np.ones(len(given), np.float32), 1000)
    plain = live.rank(X, 1000)
    expected = dict(zip(plain.class_ids.tolist(), plain.scores.tolist(), strict=True))
    for class_id, score in zip(added.class_ids.tolist(), added.scores.tolist(), strict=True):
        expected[class_id] = expected.get(class_id, 0.0) + GIVEN_WEIGHT * score
    assert added.scores.any()
    assert scores_of(live, [*known, "never seen"]) == {
        live.label(class_id): score for class_id, score in expected.items() if class_id not in given
    }
    again = live.rank(X, 1000)  # the accumulators are zero again
    assert again.scores.tolist() == plain.scores.tolist()


def test_known_labels_bring_up_those_that_go_with_them() -> None:
    live = model_of()
    for i in range(200):
        group = "ab"[i % 2]
        learn(live, [X + pack_labels([f"{group}1", f"{group}2"], Limits())])
    for one, other in (("a1", "a2"), ("a2", "a1"), ("b1", "b2")):
        found = scores_of(live, [one])
        assert next(iter(found)) == other
        assert one not in found
    assert scores_of(live, []) == scores_of(live, ["never seen"])
    ranking = live.rank_known(X, ["a1"], 3, exclude=["b1"], threshold=0.1)
    assert [live.label(one) for one in ranking.class_ids.tolist()] == ["a2", "b2"]
    explained = live.explain(X, ranking, known=True)
    for score, because in zip(ranking.scores.tolist(), explained, strict=True):
        assert sum(part for _, part in because) == pytest.approx(score)
    assert KNOWN in dict(explained[0])


@pytest.mark.parametrize("config", [{"update": "fsu"}, {"known": False}], ids=["fsu", "off"])
def test_a_model_without_label_sets_refuses_known(config: dict[str, object]) -> None:
    live = model_of(**config)
    learn(live, stream(1, 50))
    assert not any(name.startswith("label_sets") for name in live.to_arrays())
    with pytest.raises(InvalidInstance, match="update: sls"):
        live.rank_known(X, ["l1"], 5)


def test_label_sets_follow_changes_of_labels() -> None:
    live = model_of()
    learn(live, stream(3, 400))
    before = scores_of(live, ["l4"], EVERY)
    learn(live, [change(LabelChange("rename", "l4", "four"), LabelChange("retire", "l7"))], 500)
    assert scores_of(live, ["four"], EVERY) == scores_of(live, ["l4"], EVERY)
    assert scores_of(live, ["l4"], EVERY) == {label: score for label, score in before.items() if label != "l7"}
    three = scores_of(live, ["l3"], EVERY)
    learn(live, [change(LabelChange("merge", "l0", "l1"), LabelChange("split", "l3", ["a", "b"]))], 600)
    assert {"l0", "l3", "l7"} & scores_of(live, ["four"], EVERY).keys() == set()
    parts = [scores_of(live, [label], EVERY) for label in ("a", "b")]
    for label in ("l5", "l6"):  # what goes with a label goes with its parts
        assert parts[0][label] == parts[1][label] == pytest.approx(three[label])
    loaded = LiveModel.from_arrays(live.meta(), live.to_arrays(), (7, 8))
    for one in (live, loaded):
        learn(one, stream(4, 100), 700)
    assert loaded.digest() == live.digest()
    assert scores_of(loaded, ["l1", "a"], EVERY) == scores_of(live, ["l1", "a"], EVERY)


def test_merged_labels_join_their_sets() -> None:
    live = model_of()
    for i in range(150):
        learn(live, [record([f"k{i % 7}"], [("TV", "telly", "hats")[i % 3], ("screens", "sets", "wool")[i % 3]])])
    learn(live, [change(LabelChange("merge", "telly", "TV"))], 500)
    assert {*list(scores_of(live, ["TV"]))[:2]} == {"screens", "sets"}
    assert live.label_sets.n_counted == 150
    for one in ("screens", "sets"):
        assert next(iter(scores_of(live, [one]))) == "TV"


def test_a_refit_learns_label_sets_in_each_pass() -> None:
    made = stream(5, 150)
    live = model_of()
    learn(live, made)
    fitting = Refitter(model_of())
    for number in range(1, 4):
        for at, one in enumerate(made, start=1):
            fitting.learn(one, [Unit(1)], Offset(at, 0, 0))
        assert fitting.live.label_sets.n_counted == number * live.label_sets.n_counted
        assert (fitting.live.label_sets.digest() == live.label_sets.digest()) == (number == 1)
        fitting.next_pass()
