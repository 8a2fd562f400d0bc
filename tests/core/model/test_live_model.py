"""The live model: eviction against a plain oracle, slices, receipts, digests, snapshots, growth from nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.errors import Conflict, Corrupted, InvalidInstance
from abound_core.instances.record import pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.receipts import BodyMismatch, Receipt
from abound_core.types import Offset
from tests.randomness import examples

Instance = tuple[list[str], list[str]]

instances = st.lists(
    st.tuples(
        st.lists(st.sampled_from([f"f{i}" for i in range(30)]), min_size=1, max_size=8, unique=True),
        st.lists(st.sampled_from([f"c{i}" for i in range(12)]), min_size=1, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=60,
)


def vector_of(keys: list[str]) -> bytes:
    value = np.float32(1 / np.sqrt(len(keys)))
    return pack_vector([key.encode() for key in keys], np.full(len(keys), value, np.float32))


def records_of(stream: list[Instance]) -> bytes:
    return b"".join(vector_of(keys) + pack_labels(labels, Limits()) for keys, labels in stream)


def learned(
    stream: list[Instance], slices: int = 1000, secret: tuple[int, int] = (3, 4), **config: object
) -> LiveModel:
    model = LiveModel(ModelConfig.from_dict(dict(config)), secret)
    learn(model, stream, slices)
    return model


def learn(model: LiveModel, stream: list[Instance], slices: int = 1000) -> None:
    applying = model.begin(records_of(stream), len(stream), [Unit(len(stream))])
    while not applying.done:
        applying.step(slices)


def live_features(model: LiveModel) -> set[str]:
    lengths = model.features.to_arrays()["lengths"]
    return {model.features.key(i).decode() for i in range(len(lengths)) if lengths[i]}


class Clock:
    """The eviction rule in plain Python: ids in a list, credits beside them, a hand."""

    def __init__(self, most: int) -> None:
        self.most, self.hand = most, 0
        self.keys: list[str | None] = []
        self.credits: list[int] = []
        self.free: list[int] = []

    def see(self, keys: list[str]) -> list[str]:
        held = [key for key in keys if key in self.keys]
        known = held[: self.most]
        for key in held[self.most :]:
            at = self.keys.index(key)
            self.keys[at] = None
            self.free.append(at)
        for key in known:
            self.credits[self.keys.index(key)] = min(3, self.credits[self.keys.index(key)] + 1)
        pinned = set(known)
        n_live = sum(key is not None for key in self.keys)
        for _ in range(min(n_live + len(keys) - len(known) - self.most, n_live - len(pinned))):
            self._evict(pinned)
        kept = []
        for key in keys:
            if key in pinned:
                kept.append(key)
            elif sum(key is not None for key in self.keys) < self.most:
                at = self.free.pop() if self.free else len(self.keys)
                if at == len(self.keys):
                    self.keys.append(key)
                    self.credits.append(0)
                self.keys[at], self.credits[at] = key, 0
                kept.append(key)
        return kept

    def _evict(self, pinned: set[str]) -> None:
        while True:
            self.hand = self.hand if self.hand < len(self.keys) else 0
            at, self.hand = self.hand, self.hand + 1
            key = self.keys[at]
            if key is None or key in pinned:
                continue
            if self.credits[at]:
                self.credits[at] -= 1
                continue
            self.keys[at] = None
            self.free.append(at)
            return


@settings(max_examples=examples(150), deadline=None)
@given(instances, st.integers(3, 20), st.integers(1, 7))
def test_evicts_as_the_plain_clock_does(stream, most, slices):
    clock = Clock(most)
    model = LiveModel(ModelConfig(max_features=most), (1, 2))
    for keys, labels in stream:
        clock.see(keys)
        learn(model, [(keys, labels)], slices)
        assert live_features(model) == {key for key in clock.keys if key is not None}
        assert len(model.features) <= most


@settings(max_examples=examples(100), deadline=None)
@given(instances, instances, st.integers(8, 20), st.integers(1, 7))
def test_a_lowered_bound_is_met(before, after, high, low):
    clock = Clock(high)
    model = LiveModel(ModelConfig(max_features=high), (1, 2))
    for bound, stream in ((high, before), (low, after)):
        model.configure({"max_features": bound})
        clock.most = bound
        for keys, labels in stream:
            clock.see(keys)
            learn(model, [(keys, labels)])
            assert live_features(model) == {key for key in clock.keys if key is not None}
            assert len(model.features) <= bound


def test_a_bound_that_is_far_below_is_met_step_by_step():
    model = LiveModel(ModelConfig(), (1, 2))
    learn(model, [([f"k{i}" for i in range(at, at + 9_000)], ["x"]) for at in range(0, 36_000, 9_000)])
    model.configure({"max_features": 10})
    held = []
    for _ in range(4):
        learn(model, [(["k1", "fresh"], ["x"])])
        held.append(len(model.features))
    assert held == [36_000 - 16_384, 36_000 - 2 * 16_384, 10, 10]
    assert "fresh" in live_features(model)


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_a_bound_far_below_is_met_in_the_same_way_whatever_room_the_arrays_have(update):
    """A model that was just loaded must grow for its first record, after features were evicted for it."""
    model = learned([], update=update)
    learn(model, [([f"k{i}" for i in range(at, at + 9_000)], ["x"]) for at in range(0, 36_000, 9_000)])
    model.index.make_room(0, 0, n_units=1_000_000)
    model.configure({"max_features": 10})
    loaded = LiveModel.from_arrays(model.meta(), model.to_arrays(), (5, 6))
    after: list[Instance] = [([f"k{i}" for i in range(first, first + 8)], ["x", "y"]) for first in (0, 8)]
    for one in (model, loaded):
        learn(one, after)
        assert len(one.features) == 36_000 - 2 * 16_384
    assert loaded.digest() == model.digest()


@settings(max_examples=examples(60), deadline=None)
@given(instances, st.integers(1, 9), st.sampled_from([None, 5, 12]))
def test_slices_and_secrets_change_nothing(stream, slices, most):
    at_once = learned(stream, max_features=most)
    in_slices = learned(stream, slices, secret=(99, 7), max_features=most)
    assert at_once.digest() == in_slices.digest()


@settings(max_examples=examples(60), deadline=None)
@given(instances, instances, st.sampled_from([None, 5, 12]))
def test_a_loaded_model_goes_on_as_one_that_never_stopped(before, after, most):
    never_stopped = learned(before, max_features=most, margin=0.3)
    loaded = LiveModel.from_arrays(never_stopped.meta(), never_stopped.to_arrays(), (8, 9))
    assert loaded.digest() == never_stopped.digest()
    learn(never_stopped, after)
    learn(loaded, after, 2)
    assert loaded.digest() == never_stopped.digest()
    for keys, _ in after:
        ours, theirs = never_stopped.rank(vector_of(keys), 20), loaded.rank(vector_of(keys), 20)
        assert ours.class_ids.tolist() == theirs.class_ids.tolist()
        assert ours.scores.tobytes() == theirs.scores.tobytes()


def test_every_part_of_the_state_is_in_the_digest():
    stream: list[Instance] = [(["a", "b"], ["x"]), (["b", "c"], ["y"])]
    digest = learned(stream).digest()
    assert digest == learned(stream).digest()
    assert digest != learned(stream, margin=0.5).digest(), "configuration"
    assert digest != learned([*stream, (["a"], ["x"])]).digest(), "one event more"
    assert digest != learned([(["a", "b"], ["x"]), (["b", "c"], ["z"])]).digest(), "a label's name"
    assert digest != learned([(["a", "b"], ["x"]), (["b", "d"], ["y"])]).digest(), "a feature's name"
    receipted = learned(stream)
    receipted.receipts.put([("key", b"", (1, 1, 0), [1], [True])])
    assert digest != receipted.digest(), "receipts"


@pytest.mark.parametrize("update", ["fsu", "sls"])
@pytest.mark.parametrize("most", [None, 1, 2, 5])
def test_a_record_that_has_a_feature_twice_leaves_a_whole_model(update, most):
    """No such record is written any more; one that a log has from before must not harm the model that it reaches."""
    rng = np.random.default_rng(3)
    stream: list[Instance] = []
    for _ in range(300):
        keys = [f"f{i}" for i in rng.integers(0, 8, rng.integers(2, 7))]
        stream.append(([*keys, keys[0]], [f"c{rng.integers(5)}"]))
    model = learned(stream, update=update, max_features=most)
    assert model.n_learned == 300
    assert len(model.features) <= min(8, most or 8)
    again = LiveModel.from_arrays(model.meta(), model.to_arrays(), (5, 6))
    assert again.digest() == model.digest()
    for one in (model, again):
        learn(one, stream)
    assert again.digest() == model.digest()


def test_a_key_that_comes_twice_is_learned_once():
    stream: list[Instance] = [(["a"], ["x"]), (["a"], ["x"]), (["a"], ["y"]), (["b"], ["z"])]
    model = LiveModel(ModelConfig(), (1, 2))
    units = [Unit(1, "k", b"body"), Unit(1, "k", b"body"), Unit(1, "k", b"other"), Unit(1)]
    applying = model.begin(records_of(stream), 4, units, Offset(5, 0, 0))
    while not applying.done:
        applying.step(1)
    assert applying.outcomes == [None, Receipt(b"body", Offset(5, 0, 0), [0], [True]), BodyMismatch("k"), None]
    assert model.n_learned == 2
    assert [model.labels.find(label) >= 0 for label in (b"x", b"y", b"z")] == [True, False, True]


def test_a_batch_under_one_key_is_passed_over_whole():
    batch: list[Instance] = [(["a"], ["x"]), (["b"], ["y"]), (["a"], ["x"])]
    model = LiveModel(ModelConfig(), (1, 2))
    for turn in range(2):
        applying = model.begin(records_of(batch), 3, [Unit(3, "batch", b"body")], Offset(turn, 0, 0))
        while not applying.done:
            applying.step(2)
    assert model.n_learned == 3
    assert applying.outcomes == [Receipt(b"body", Offset(0, 0, 0), [0, 0, 1], [True, True, False])]


def test_a_batch_with_a_key_of_another_body_is_not_learned_at_all():
    stream: list[Instance] = [(["a"], ["x"]), (["b"], ["y"]), (["c"], ["z"]), (["d"], ["w"])]
    model = LiveModel(ModelConfig(), (1, 2))
    units = [Unit(1, "k", b"first"), Unit(1, batch=2), Unit(1, "k", b"other"), Unit(1)]
    applying = model.begin(records_of(stream), 4, units)
    while not applying.done:
        applying.step(1)
    assert applying.outcomes == [None, BodyMismatch("k"), BodyMismatch("k"), None]
    assert [model.labels.find(label) >= 0 for label in (b"x", b"y", b"z", b"w")] == [True, False, False, True]


def test_a_batch_with_a_repeated_key_learns_the_rest():
    stream: list[Instance] = [(["a"], ["x"]), (["b"], ["y"]), (["a"], ["x"]), (["c"], ["z"]), (["c"], ["z"])]
    model = LiveModel(ModelConfig(), (1, 2))
    units = [Unit(1, "k", b"first"), Unit(1, batch=4), Unit(1, "k", b"first"), Unit(1, "l", b"l"), Unit(1, "l", b"l")]
    applying = model.begin(records_of(stream), 5, units)
    while not applying.done:
        applying.step(2)
    assert [type(outcome) for outcome in applying.outcomes] == [type(None), type(None), Receipt, type(None), Receipt]
    assert model.n_learned == 3


def test_keys_of_one_batch_that_disagree_refuse_it():
    stream: list[Instance] = [(["a"], ["x"]), (["b"], ["y"])]
    model = LiveModel(ModelConfig(), (1, 2))
    applying = model.begin(records_of(stream), 2, [Unit(1, "k", b"one", batch=2), Unit(1, "k", b"two")])
    while not applying.done:
        applying.step(1)
    assert applying.outcomes == [BodyMismatch("k"), BodyMismatch("k")]
    assert model.n_learned == 0


def test_answers_only_what_is_asked_for():
    model = learned([(["a", "b"], ["x"]), (["a", "c"], ["y"]), (["a", "d"], ["z"])], margin=1.0)
    vector = vector_of(["a", "b", "unheard"])
    names = [model.label(i) for i in model.rank(vector, 10).class_ids.tolist()]
    assert names[0] == "x"
    assert sorted(names) == ["x", "y", "z"]
    only = [model.label(i) for i in model.rank(vector, 10, include=["y", "z", "never"]).class_ids.tolist()]
    assert only == ["y", "z"], "equal scores: the one seen first comes first"
    without = [model.label(i) for i in model.rank(vector, 10, exclude=["x"]).class_ids.tolist()]
    assert without == ["y", "z"]
    scores = model.rank(vector, 10).scores
    assert len(model.rank(vector, 10, threshold=float(scores[0])).scores) == 1
    assert len(model.rank(vector, 2).scores) == 2


def test_contributions_sum_to_the_score():
    model = learned([(["a", "b"], ["x"]), (["a", "c"], ["y"]), (["b", "c"], ["x"])] * 8, margin=1.0)
    vector = vector_of(["c", "a", "unheard", "b"])
    ranking = model.rank(vector, 5)
    because = model.explain(vector, ranking)
    assert len(because) == 2
    for score, reasons in zip(ranking.scores, because, strict=True):
        assert abs(sum(part for _, part in reasons) - score) < 1e-12
        assert [part for _, part in reasons] == sorted((part for _, part in reasons), reverse=True)
        assert "unheard" not in dict(reasons)


def test_an_empty_model_and_an_empty_vector_give_nothing():
    model = LiveModel(ModelConfig(), (1, 2))
    assert len(model.rank(vector_of(["a"]), 10).class_ids) == 0
    learn(model, [(["a"], ["x"])])
    assert len(model.rank(bytes(4), 10).class_ids) == 0


def test_a_vector_larger_than_any_before_is_answered():
    model = learned([(["a"], ["x"])])
    keys = [f"k{i}" for i in range(3000)] + ["a"]
    ranking = model.rank(vector_of(keys), 3)
    assert model.label(int(ranking.class_ids[0])) == "x"
    assert model.explain(vector_of(keys), ranking)[0][0][0] == "a"


def test_what_a_learned_model_refuses_to_change():
    model = LiveModel(ModelConfig(), (1, 2))
    model.configure({"boolean": True})
    assert model.config.boolean
    learn(model, [(["a"], ["x"])])
    with pytest.raises(Conflict, match="boolean"):
        model.check_change({"boolean": False})
    model.configure({"boolean": False, "margin": 0.5})
    assert model.config.boolean, "applied too late: keeps its value"
    assert model.config.margin == 0.5
    with pytest.raises(InvalidInstance, match="w_min"):
        model.check_change({"w_min": 2})


@pytest.mark.parametrize(
    "name", ["tallies/label_counts", "index/counts", "features/bytes", "prequential/window", "receipts/receipts"]
)
def test_arrays_that_do_not_fit_are_refused(name):
    model = learned([(["a", "b"], ["x"]), (["b", "c"], ["y"])], max_features=10)
    arrays = model.to_arrays()
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta(), {**arrays, name: arrays[name][:-1]}, (1, 2))
    del arrays[name]
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta(), arrays, (1, 2))


@pytest.mark.parametrize("hand", [-1, 3000])
def test_a_hand_that_points_nowhere_is_refused(hand):
    model = learned([(["a", "b"], ["x"])], max_features=10)
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta(), {**model.to_arrays(), "tallies/hand": np.array([hand])}, (1, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("tallies/credits", 255), ("tallies/label_counts", -1), ("prequential/reciprocal", np.nan), ("labels/bytes", 255)],
)
def test_numbers_that_cannot_be_are_refused(name, value):
    model = learned([(["a", "b"], ["x"])], max_features=10)
    arrays = model.to_arrays()
    arrays[name] = arrays[name].copy()
    arrays[name][0] = value
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta(), arrays, (1, 2))
