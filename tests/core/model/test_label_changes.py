"""Changes of labels in a model: what becomes of its names, of what it learned, and of what it learns later."""

import random
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from abound_core.config import DecideConfig, ModelConfig
from abound_core.errors import AboundError
from abound_core.instances.record import add_dense, add_details, pack_change, pack_labels, pack_vector, unpack
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.label_changes import ChangePlan, ChangeRequest, LabelChange, encode
from abound_core.model.live_model import LiveModel
from abound_core.model.refit import Refitter
from abound_core.types import Offset
from tests.core.methods.toy import from_log

CONFIGS: dict[str, dict[str, Any]] = {
    "fsu": {"calibrate": False},
    "no leak": {"leak": False, "max_features": 40},
    "sls": {"update": "sls", "slots": 4, "calibrate": False},
    "rows": {"update": "sls", "rows": True},
    "calibrated": {"update": "sls"},
    "deciding": {"update": "sls", "decide": DecideConfig(audit=0.5)},
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)

Stream = list[bytes]  # records


def model_of(**config: Any) -> LiveModel:
    return LiveModel(ModelConfig(**config), (1, 2))


def record(keys: Sequence[str], labels: Sequence[str], rejected: Sequence[str] = (), dense: bytes = b"") -> bytes:
    vector = pack_vector([key.encode() for key in keys], np.full(len(keys), 0.4, np.float32))
    part = pack_labels(labels, Limits(), rejected, none=not (labels or rejected))
    return (add_dense(vector, dense, 0.1) if dense else vector) + part


def change(*changes: LabelChange) -> bytes:
    return pack_change(encode(ChangeRequest(list(changes), "by", "key")))


def merge(*names: str, into: str, alias: bool = True) -> bytes:
    return change(*[LabelChange("merge", name, into, alias) for name in names])


def learn(live: LiveModel, records: Iterable[bytes], first: int = 1) -> list[bool]:
    """Learn each record at an offset of its own; return whether each has changed the model."""
    return [
        bool(live.begin(one, 1, [Unit(1)], Offset(at, 0, 0)).finish().updated[0])
        for at, one in zip(count(first), records, strict=False)
    ]


def stream(seed: int, n: int, dense: bool = False, labels: int = 9) -> Stream:
    rng, records = random.Random(seed), []
    for _ in range(n):
        label = rng.randrange(labels)
        keys = sorted({f"w{(label * 5 + rng.randrange(6)) % 60}" for _ in range(4)} | {f"x{rng.randrange(20)}"})
        more = [f"l{(label + 1) % labels}", f"l{(label + 2) % labels}"][: rng.randrange(3)]
        vector = bytes([(label * 13 + i) % 100 + 1 for i in range(8)]) if dense else b""
        wrong = [f"l{(label + 4) % labels}"] if rng.random() < 0.2 else []
        records.append(record(keys, [f"l{label}", *more], wrong, vector))
    return records


def names_of(live: LiveModel, keys: Sequence[str]) -> list[str]:
    vector = pack_vector([key.encode() for key in keys], np.full(len(keys), 0.4, np.float32))
    return [live.label(class_id) for class_id in live.rank(vector, 100).class_ids.tolist()]


ALL = [f"w{i}" for i in range(60)]


def test_a_renamed_label_keeps_what_it_learned_and_its_old_names() -> None:
    live = model_of()
    learn(live, [record(["screen"], ["TV"]), record(["hat"], ["hats"])])
    assert learn(live, [change(LabelChange("rename", "TV", "Television"))], 10) == [True]
    assert names_of(live, ["screen"]) == ["Television"]
    learn(live, [record(["remote"], ["TV"]), record(["screen"], ["hats"], ["TV"])], 20)
    assert (live.n_classes, live.times_learned(live.find("TV")), live.aliases(live.find("TV"))) == (2, 2, ["TV"])
    assert [one.name for one in live.changes.listed()] == ["TV"]
    learn(live, [change(LabelChange("rename", "TV", "TV"), LabelChange("rename", "Television", "telly", False))], 30)
    learn(live, [record(["remote"], ["Television"])], 40)  # a new label: the name was given up
    assert live.find("TV") == live.find("telly") != live.find("Television")
    assert live.aliases(live.find("telly")) == ["TV"]
    assert set(names_of(live, ["remote"])) == {"telly", "Television"}


@pytest.mark.parametrize(
    ("config", "dense"),
    [(config, dense) for config in CONFIGS.values() for dense in (False, True)[: 1 + ("update" in config)]],
    ids=[f"{name}{dense}" for name in CONFIGS for dense in ("", " dense")[: 1 + ("update" in CONFIGS[name])]],
)
def test_retired_merged_and_split_labels_are_never_suggested(config: dict[str, Any], dense: bool) -> None:
    live = model_of(**config)
    learn(live, stream(1, 120, dense))
    learn(
        live, [change(LabelChange("retire", "l1"), LabelChange("split", "l2", ["a", "b"])), merge("l3", into="l4")], 200
    )
    before = live.times_learned(live.find("l1"))
    learn(live, stream(2, 60, dense), 300)
    ranked = set(names_of(live, ALL))
    assert ranked & {"l1", "l2", "l3"} == set()
    assert {"l0", "l4", "a", "b"} <= ranked
    assert live.times_learned(live.find("l1")) == before
    n = live.n_learned
    assert learn(live, [record(["w1"], ["l1"])], 400) == [False]
    assert live.n_learned == n
    learn(live, [change(LabelChange("revive", "l1"))], 500)
    assert "l1" in names_of(live, ALL)
    only = live.rank(pack_vector([b"w1"], np.ones(1, np.float32)), 5, include=["l3"]).class_ids.tolist()
    assert [live.label(class_id) for class_id in only] in (["l4"], [])


def weights_of(live: LiveModel) -> dict[tuple[str, str], float]:
    arrays, found, at = live.index.to_arrays(), {}, 0
    for feature, length in enumerate(arrays["lengths"].tolist()):
        for place in range(at, at + length):
            key = live.features.key(feature).decode(), live.label(int(arrays["class_ids"][place]))
            found[key] = float(arrays["counts"][place])
        at += length
    return found


@pytest.mark.parametrize("seed", range(5))
def test_counts_after_a_merge_are_those_of_a_model_that_learned_the_merged_labels(seed: int) -> None:
    """With updates at every instance and nothing dropped, the counts do not depend on the ranks."""
    rng, config = random.Random(seed), {"w_min": 0.0, "margin": 1e9}
    into = {f"l{i}": f"l{rng.randrange(3)}" for i in range(3, 9)}
    rows = [(rng.sample(ALL, 4), [f"l{rng.randrange(9)}"]) for _ in range(200)]
    live, wanted = model_of(**config), model_of(**config)
    learn(live, [record(keys, labels) for keys, labels in rows])
    learn(live, [change(*[LabelChange("merge", name, to) for name, to in into.items()])], 900)
    learn(wanted, [record(keys, [into.get(label, label) for label in labels]) for keys, labels in rows])
    found, expected = weights_of(live), weights_of(wanted)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[key] for key in expected], list(expected.values()), rtol=1e-12)
    for name in ("l0", "l1", "l2"):
        assert live.times_learned(live.find(name)) == wanted.times_learned(wanted.find(name))


def random_changes(rng: random.Random, names: list[str]) -> list[LabelChange]:
    changes = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["rename", "merge", "merge", "retire", "revive", "split"])
        name, other, alias = rng.choice(names), rng.choice(names), rng.random() < 0.7
        if kind == "rename" and rng.random() < 0.7:
            other = f"n{rng.randrange(30)}"
            names.append(other)
        to: Any = {"rename": other, "merge": other, "split": [other, f"n{rng.randrange(30)}"]}.get(kind, "")
        changes.append(LabelChange(kind, name, to, alias if kind in ("rename", "merge") else True))  # type: ignore[arg-type]
    return changes


@every_config
@pytest.mark.parametrize("seed", range(4))
def test_random_changes_keep_every_bound_and_survive_a_snapshot(config: dict[str, Any], seed: int) -> None:
    rng, names = random.Random(seed), [f"l{i}" for i in range(9)]
    live = model_of(**config)
    again = model_of(**config)
    at = 1
    for round_ in range(8):
        records = [*stream(seed * 100 + round_, 25), record(["x"], []), change(*random_changes(rng, names))]
        for model in (live, again):
            learn(model, records, at)
        at += 100
        again = LiveModel.from_arrays(again.meta(), again.to_arrays(), (round_, 7))
        assert live.digest() == again.digest()
        own = live.changes.class_of
        assert np.array_equal(own[own], own)
        arrays = live.index.to_arrays()
        if arrays["class_ids"].size:
            of = live.changes.class_of[arrays["class_ids"][arrays["class_ids"] < len(own)]]
            assert np.array_equal(of, arrays["class_ids"][arrays["class_ids"] < len(own)])  # no alias has a connection
        if "counts" in arrays:
            totals = np.repeat(arrays["totals"], arrays["lengths"])
            assert np.all(arrays["counts"] / totals >= live.config.w_min)
        assert len({live.label(number) for number in range(live.labels.n_ids)}) == live.labels.n_ids


def test_a_merged_label_is_not_confused_with_itself() -> None:
    live = model_of()
    learn(live, [record(["w"], [label]) for label in "abc"])
    assert [label for label, _ in live.prequential.confusions(live.find("c"), 3)] == [live.find("a")]
    learn(live, [merge("a", into="c")], 10)
    assert live.prequential.confusions(live.find("c"), 3) == []


def test_a_plan_refuses_what_is_impossible() -> None:
    live = model_of()
    learn(live, [record(["w"], ["a", "b", "c"]), change(LabelChange("rename", "a", "x"), LabelChange("retire", "c"))])
    for asked, said in (
        (LabelChange("rename", "d", "e"), "does not know the label 'd'"),
        (LabelChange("rename", "b", "x"), "there is a label 'x': merge the two"),
        (LabelChange("rename", "b", "a"), "the label 'x' has the old name 'a': merge the two"),
        (LabelChange("rename", "b"), "rename takes one other label"),
        (LabelChange("merge", "b", "b"), "merged into itself"),
        (LabelChange("merge", "b", "d"), "does not know the label 'd'"),
        (LabelChange("merge", "b", "c"), "'c' is retired: revive it first"),
        (LabelChange("retire", "b", "x"), "retire takes no other label"),
        (LabelChange("split", "b", ["b", "e"]), "split into other labels"),
        (LabelChange("split", "b", ["e", "e"]), "each named once"),
        (LabelChange("split", "b"), "split takes 1 to 100 other labels"),
    ):
        with pytest.raises(AboundError, match=said):
            ChangePlan(live.labels, live.changes).add(asked)
    for asked in (LabelChange("rename", "a", "x"), LabelChange("retire", "c"), LabelChange("revive", "b")):
        assert not ChangePlan(live.labels, live.changes).add(asked)
    before = live.digest()
    assert learn(live, [change(LabelChange("rename", "d", "e")), pack_change(b"[]")], 10) == [False, False]
    assert live.digest() == before  # what has become impossible changes nothing


def test_changes_of_one_request_follow_each_other() -> None:
    live = model_of()
    learn(live, [record(["w"], ["a", "b"])])
    swap = [LabelChange("rename", "a", "t", False), LabelChange("rename", "b", "a", False)]
    learn(live, [change(*swap, LabelChange("rename", "t", "b", False))], 5)
    learn(live, [record(["v"], ["a"])], 9)
    assert [live.times_learned(live.find(name)) for name in "ab"] == [2, 1]
    assert live.n_classes == 2


def test_a_refit_learns_from_the_beginning_by_present_names() -> None:
    rows = [*stream(3, 150), record(["w2"], [])]
    changes = [merge("l1", into="l0"), change(LabelChange("rename", "l2", "two", False)), record(["w1"], ["l2"])]
    log = [*rows, *changes]
    live = model_of()
    learn(live, log)
    fitting = Refitter(model_of(), named=live)
    wanted = model_of()
    for at, one in enumerate(log, start=1):
        fitting.learn(one, [Unit(1)], Offset(at, 0, 0))
    renamed = {"l1": "l0", "l2": "two"}
    for at, one in enumerate(rows, start=1):
        found = unpack(one)
        labels = list(dict.fromkeys(renamed.get(label, label) for label in found.labels))
        wrong = [renamed.get(label, label) for label in found.rejected]
        learn(wanted, [record(found.keys, labels, [one for one in wrong if one not in labels])], at)
    learn(wanted, [record(["w1"], ["l2"])], 500)
    assert fitting.live.index.digest() == wanted.index.digest()
    fitting.next_pass()
    fitting.live.adopt_changes(live)
    assert [one.name for one in fitting.live.changes.listed()] == ["l2", "l1"]
    for state in (fitting.live, LiveModel.from_arrays(fitting.live.meta(), fitting.live.to_arrays(), (5, 6))):
        assert (state.label(state.find("l1")), state.label(state.find("l2"))) == ("l0", "l2")
        assert state.n_classes == live.n_classes
    for at, one in enumerate(log, start=1):  # in a later pass the old name means what it meant then
        fitting.learn(one, [Unit(1)], Offset(at, 0, 0))
    assert (
        fitting.live.digest() == LiveModel.from_arrays(fitting.live.meta(), fitting.live.to_arrays(), (1, 2)).digest()
    )


def test_methods_learn_from_history_by_present_names() -> None:
    got = from_log(
        [
            record(["a"], ["tv", "TV"]),
            record(["b"], ["socks"]),
            add_details(record(["c"], ["hats"]), b"{}"),
            merge("tv", into="TV"),
            change(LabelChange("rename", "socks", "Socks", False), LabelChange("retire", "hats")),
            record(["d"], ["tv"]),
            record(["e"], ["hats"]),
            record(["f"], ["socks"]),  # another label by now
        ]
    )
    expected = from_log(
        [record([key], [to]) for key, to in zip("abcdf", ["TV", "Socks", "hats", "TV", "socks"], strict=True)]
    )
    assert got.labels == expected.labels
    assert np.array_equal(got.Y.toarray(), expected.Y.toarray())
    assert np.array_equal(got.X.toarray(), expected.X.toarray())


def test_versions_are_read_by_present_names() -> None:
    live = model_of()
    learn(live, [record(["w"], ["a", "b", "c", "d"])], 1)
    learn(live, [merge("a", into="b"), change(LabelChange("retire", "c"), LabelChange("rename", "d", "e", False))], 10)
    learn(live, [record(["w"], ["d"])], 20)
    assert live.renamed(Offset(5, 0, 0)).present(["a", "b", "c", "d"]) == (["b", "b", None, "e"], 2)
    assert live.renamed(Offset(25, 0, 0)).present(["b", "d", "e"]) == (["b", "d", "e"], 0)
