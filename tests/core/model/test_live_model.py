"""The live model: eviction against a plain oracle, what is answered, digests in steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
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


@settings(max_examples=examples(200), deadline=None)
@given(instances, instances, st.integers(3, 20), st.integers(3, 20), st.integers(1, 7))
def test_evicts_as_the_plain_clock_does(before, after, first, second, slices):
    """Also once the bound was changed."""
    clock, model = Clock(first), LiveModel(ModelConfig(), (1, 2))
    for bound, stream in ((first, before), (second, after)):
        model.configure({"max_features": bound})
        clock.most = bound
        for keys, labels in stream:
            clock.see(keys)
            learn(model, [(keys, labels)], slices)
            assert live_features(model) == {key for key in clock.keys if key is not None}
            assert len(model.features) <= bound


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


def test_a_vector_larger_than_any_before_is_answered():
    model = learned([(["a"], ["x"])])
    keys = [f"k{i}" for i in range(3000)] + ["a"]
    ranking = model.rank_estimated(vector_of(keys), 3)
    assert model.label(int(ranking.class_ids[0])) == "x"
    assert model.explain(vector_of(keys), ranking)[0][0][0] == "a"


@pytest.mark.parametrize("config", [{}, {"update": "sls"}], ids=["fsu", "sls"])
def test_a_digest_that_is_made_in_steps_while_the_model_learns_is_the_digest(config):
    stream = [([f"k{i}" for i in range(at, at + 50)], [f"c{at % 70}"]) for at in range(0, 20_000, 50)]
    model, other = learned(stream, **config), learned(stream, secret=(9, 9), **config)
    steps = model.digest_steps()
    next(steps)
    for one in (model, other):
        learn(one, [(["k0", "new"], ["c0", "more"])])
    assert len(list(steps)) > 5
    assert model.digest() == other.digest()
