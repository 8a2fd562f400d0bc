"""The memory of instances against a plain oracle, bit for bit; that it is state like any other, bounded and short."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound.core.config import ModelConfig
from abound.core.errors import Corrupted, InvalidInstance
from abound.core.instances.record import add_details, pack_labels
from abound.core.kernels.model.instance_memory import MOST_LABELS
from abound.core.limits import Limits
from abound.core.model.entry_application import Unit
from abound.core.model.instance_memory import InstanceMemory
from abound.core.model.live_model import LiveModel
from abound.core.model.refit import Refitter
from abound.core.types import Offset
from tests.core.model.test_reranker import (
    D,
    Instance,
    assert_equal,
    broken,
    by_index,
    check,
    followed,
    learn,
    stream,
    vector_of,
)
from tests.core.oracles.reranker import Oracle
from tests.randomness import examples


def coarse(instances: list[Instance]) -> list[Instance]:
    """The instances with few different vectors, so that many cosines are equal."""
    return [(words, q and [round(number / 60) or 1 for number in q], labels) for words, q, labels in instances]


def model_of(instances: list[Instance], slices: int = 1000, secret: tuple[int, int] = (3, 4), **more: Any) -> LiveModel:
    model = LiveModel(ModelConfig.from_dict({"update": "sls", "memory_instances": 50, **more}), secret)
    learn(model, instances, slices)
    return model


def oracle_of(most: int) -> Oracle:
    oracle = Oracle()
    oracle.remember(most)
    return oracle


def check_memory(model: LiveModel, oracle: Oracle) -> None:
    memory = model.reranker.memory
    assert len(memory) == len(oracle.kept)
    newest = int(memory.arrays.state[0])
    for i, one in enumerate(reversed(oracle.kept), 1):
        place = (newest - i) % memory.most
        assert memory.arrays.vectors[place].tolist() == one.q
        assert memory.class_ids(place) == one.labels
        assert memory.offset(place) == one.offset


@pytest.mark.parametrize(
    ("seed", "most", "n_classes", "n_labels", "more"),
    [
        (1, 1, 6, 1, {}),
        (2, 7, 6, 3, {}),
        (3, 33, 90, 2, {"max_features": 60}),
        (4, 150, 120, 20, {}),
        (5, 1000, 90, 1, {"rows": False}),
    ],
    ids=["one", "wraps", "many classes", "many labels", "not full"],
)
def test_learns_and_answers_as_the_oracle_does_bit_for_bit(
    seed: int, most: int, n_classes: int, n_labels: int, more: dict[str, Any]
) -> None:
    model, oracle = model_of([], memory_instances=most, rerank=True, **more), oracle_of(most)
    instances = stream(260, seed, n_classes, n_labels)
    instances = instances[:60] + coarse(instances[60:])
    followed(model, instances[:240], oracle)
    check(model, oracle)
    check_memory(model, oracle)
    assert len(oracle.weights) == 8
    assert oracle.weights[5:] != [0.0, 0.5, 0.0]
    if n_labels > MOST_LABELS:
        assert max(len(one.labels) for one in oracle.kept) == MOST_LABELS
    names = [model.label(i) for i in range(len(model.labels))]
    most_candidates = 0
    for words, q, _ in instances[240:]:
        if q is None:
            continue
        vector = vector_of(words, q)
        everyone = by_index(model, vector)
        most_candidates = max(most_candidates, len(oracle.candidates(q, everyone, range(len(names)))))
        for asked in ({}, {"include": names[::2]}, {"exclude": names[:3]}):
            allowed = set(range(len(names)))
            allowed &= {names.index(name) for name in asked.get("include", names)}
            allowed -= {names.index(name) for name in asked.get("exclude", [])}
            ranked = by_index(model, vector, allowed)
            expected = oracle.answer(q, ranked, allowed if asked else None, everyone, len(names))
            for k in (1, 1000):
                ranking = model.rank(vector, k, **asked)
                assert list(zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)) == expected[:k]
    if n_labels > MOST_LABELS:
        assert most_candidates > 50 + 16  # the memory has added some


def test_nearest_instances_are_named_with_their_request() -> None:
    model, oracle = model_of([], memory_instances=40), oracle_of(40)
    instances = coarse(stream(90, 6, n_labels=2, p_vector=1.0))
    followed(model, instances, oracle)
    record = vector_of(["w"], [100] * D) + pack_labels(["new", "c1"], Limits())
    plain = vector_of(["w"], [90] * D) + pack_labels(["c2"], Limits())
    units = [Unit(1), Unit(2, emptied=True), Unit(2, "the key", b"body"), Unit(1)]
    model.begin(plain + record + record + plain, 6, units, Offset(5000, 7, 0)).finish()
    [[first, second]] = model.nearest(vector_of([], [1] * D), model.rank(vector_of([], [1] * D), 1, include=["new"]))
    assert (first.offset, first.key, first.labels) == (Offset(5000, 7, 4), "the key", ["new", "c1"])
    assert (second.offset, second.key) == (Offset(5000, 7, 3), "the key")
    assert first.similarity == pytest.approx(1.0)
    for words, q, _ in coarse(stream(10, 7, p_vector=1.0)):
        assert q is not None
        vector = vector_of(words, q)
        ranking = model.rank(vector, 6)
        told = model.nearest(vector, ranking)
        assert [len(near) <= 3 for near in told] == [True] * len(ranking.class_ids)
        for class_id, near in zip(ranking.class_ids.tolist(), told, strict=True):
            assert all(model.label(class_id) in one.labels for one in near)
            assert [one.similarity for one in near] == sorted([one.similarity for one in near], reverse=True)
    assert model.nearest(vector_of(["w"], None), model.rank(vector_of(["w"], None), 2)) == [[], []]
    assert model_of(instances, memory_instances=None).nearest(vector, ranking) == [[]] * len(ranking.class_ids)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([1, 5, 64, 300]),
    st.sampled_from([0.05, 0.9]),
)
def test_slices_secrets_and_snapshots_change_nothing(
    seed: int, slices: int, calibrate: bool, most: int, p_vector: float
) -> None:
    instances = coarse(stream(120, seed, 70, 3, p_vector))
    more = {"calibrate": calibrate, "memory_instances": most}
    at_once = model_of(instances, **more)
    in_slices = model_of(instances, slices, secret=(99, 7), **more)
    assert at_once.digest() == in_slices.digest()
    half = model_of(instances[:60], **more)
    loaded = LiveModel.from_arrays(half.meta(), half.to_arrays(), (5, 6))
    assert loaded.digest() == half.digest()
    for model in (loaded, half):
        learn(model, instances[60:], 7, Offset(3, 3, 0))
    assert loaded.digest() == half.digest()
    assert loaded.stats() == half.stats() | {"memory": loaded.stats()["memory"]}
    turned_on = model_of(instances, slices, rerank=True, **more)
    if at_once.dimension:
        assert_equal(at_once, turned_on)


def test_every_part_of_it_is_in_the_digest() -> None:
    model = model_of(stream(100, 10))
    seen = {model.digest()}
    memory = model.reranker.memory.arrays
    for array in (memory.vectors, memory.class_ids, memory.offsets, memory.state):
        array.flat[0] += 1
        memory.dirty[:] = 1
        seen.add(model.digest())
    assert len(seen) == 5
    model = model_of(stream(300, 10, p_vector=1.0), memory_instances=200)
    seen = {model.digest()}
    for page in range(4):
        model.reranker.memory.arrays.vectors[page * 64] += 1
        model.reranker.memory.arrays.dirty[page] = 1
        seen.add(model.digest())
    assert len(seen) == 5


def test_a_model_without_it_is_as_before() -> None:
    """Neither the setting nor its end leaves a trace in a model that has not learned meanwhile."""
    plain, model = model_of(stream(60, 11), memory_instances=None), model_of([], memory_instances=None)
    assert not any("memory" in name for name in plain.to_arrays())
    assert "memory_instances" not in plain.config.changed_fields()
    model.configure({"memory_instances": 9})
    model.configure({"memory_instances": None})
    learn(model, stream(60, 11))
    assert model.digest() == plain.digest()
    model.configure({"memory_instances": 9})
    assert model.digest() != plain.digest()
    model.configure({"memory_instances": None})
    assert model.digest() == plain.digest()
    assert "instance_memory" not in model.sizes()["memory"]


@pytest.mark.parametrize("sizes", [(9, 4), (4, 9), (300, 70), (None, 20, None, 30), (64, 128, 1)], ids=str)
def test_the_newest_stay_when_the_size_changes(sizes: tuple[int | None, ...]) -> None:
    model, oracle = model_of([], memory_instances=sizes[0], rerank=True), oracle_of(sizes[0] or 0)
    for seed, most in enumerate(sizes):
        model.configure({"memory_instances": most})
        oracle.remember(most or 0)
        check_memory(model, oracle)
        followed(model, coarse(stream(90, 20 + seed, 20)), oracle)
        check(model, oracle)
        check_memory(model, oracle)
        loaded = LiveModel.from_arrays(model.meta(), model.to_arrays(), (5, 6))
        assert loaded.digest() == model.digest()


def test_only_instances_with_a_vector_and_a_label_are_kept() -> None:
    model = model_of(stream(60, 12))
    before = model.reranker.memory.digest_bytes()
    learn(model, [(["k0w0"], None, ["c0"]), (["k0w0"], [1] * D, [])], rejected=["c1"])
    learn(model, [(["k0w0"], [1] * (D + 1), ["c0"])])
    registration = add_details(vector_of([], [1] * D) + pack_labels(["c9"], Limits()), b"{}")
    model.begin(registration, 1, [Unit(1)]).finish()
    assert model.labels.find(b"c9") >= 0
    assert model.reranker.memory.digest_bytes() == before
    learn(model, [(["k0w0"], [1] * D, ["c0"])])
    assert model.reranker.memory.digest_bytes() != before


def test_positions_are_those_in_the_entry() -> None:
    """Registrations, emptied units and repeats count as positions, in the first pass of a refit as well."""
    one = vector_of(["w"], [5] * D) + pack_labels(["a"], Limits())
    plain = vector_of(["w"], None) + pack_labels(["a"], Limits())
    registration = add_details(one, b"{}")
    records = plain + registration + one + one + one + plain + one
    units = [Unit(1), Unit(1), Unit(2, emptied=True), Unit(1, "k", b"1"), Unit(1, "k", b"1"), Unit(1), Unit(2)]
    positions = [4, 6, 8]
    refitter = Refitter(model_of([]))
    refitter.learn(records, units, Offset(8, 1, 0))
    live = model_of([])
    live.begin(records, 9, units, Offset(8, 1, 0)).finish()
    for model in (live, refitter.live):
        memory = model.reranker.memory
        assert [memory.offset(place) for place in range(len(memory))] == [Offset(8, 1, at) for at in positions]
    assert refitter.live.reranker.digest_bytes() == live.reranker.digest_bytes()


def test_later_passes_leave_it_as_it_is() -> None:
    instances = stream(100, 21)
    records = b"".join(vector_of(words, q) + pack_labels(labels, Limits()) for words, q, labels in instances)
    refitter = Refitter(model_of([]))
    for _ in range(2):
        refitter.learn(records, [Unit(100)], Offset(0, 0, 0))
        refitter.next_pass()
    assert refitter.live.reranker.digest_bytes() == model_of(instances).reranker.digest_bytes()


def test_nothing_is_written_behind_the_arrays() -> None:
    model = model_of(stream(40, 13, p_vector=1.0), memory_instances=20)
    reranker, padded = model.reranker, []
    for array in reranker.memory.arrays:
        more = np.full((len(array) + 3, *array.shape[1:]), 77, array.dtype)
        more[: len(array)] = array
        padded.append(more)
    views = [more[:-3] for more in padded]
    reranker.memory.arrays = type(reranker.memory.arrays)(*views)
    reranker.arrays = reranker.arrays._replace(memory=reranker.memory.arrays)
    model._bind()
    for words, q, labels in stream(90, 14, 60, 25, p_vector=1.0):
        learn(model, [(words, q, labels)])
        model.rank(vector_of(words, q), 100, exclude=labels[:1])
    assert reranker.memory.arrays.vectors is views[0]
    assert all(np.all(more[-3:] == 77) for more in padded)


def test_slices_are_short_with_a_large_memory() -> None:
    """One search of 2,048 instances with 2,048 numbers takes as long as updating some 8,000 features."""
    rng = random.Random(5)
    model = model_of([], memory_instances=2048)
    vectors = [[rng.randint(-127, 127) for _ in range(2048)] for _ in range(8)]
    learn(model, [(["w"], vectors[i % 8], ["a"]) for i in range(2048)])
    records = b"".join(vector_of(["w"], q) + pack_labels(["a"], Limits()) for q in vectors)
    _, done = model.apply(records, 0, np.zeros(8, np.int32), np.zeros(8, np.bool_))
    assert 1 <= done <= 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vectors", None),
        ("vectors", np.zeros((50, D), np.int8)),
        ("vectors", np.ones((49, D), np.int8)),
        ("vectors", np.ones((50, D + 1), np.int8)),
        ("vectors", np.ones((50, D), np.int16)),
        ("class_ids", np.full((50, MOST_LABELS), -1, np.int32)),
        ("class_ids", np.zeros((50, MOST_LABELS), np.int64)),
        ("class_ids", np.zeros((50, MOST_LABELS - 1), np.int32)),
        ("class_ids", 6),
        ("class_ids", 0),
        ("class_ids", -2),
        ("offsets", -1),
        ("offsets", np.zeros((50, 2), np.int64)),
        ("written", -1),
        ("written", 49),
        ("written", np.zeros(2, np.int64)),
        ("other", np.zeros(1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state_that_cannot_be_is_refused(name: str, value: object) -> None:
    model = model_of(stream(80, 22))
    assert len(model.reranker.memory) == 50
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta(), broken(model.to_arrays(), f"reranker/memory/{name}", value), (1, 2))


def test_bytes_are_bounded_and_counted() -> None:
    model, plain = model_of([], memory_instances=100), model_of([], memory_instances=None)
    for seed in range(8):
        learn(model, stream(60, seed))
        learn(plain, stream(60, seed))
        assert model.n_bytes - plain.n_bytes == model.sizes()["memory"]["instance_memory"]
        assert model.growth_bytes - plain.growth_bytes == model.reranker.memory.growth_bytes
    assert model.sizes()["memory"]["instance_memory"] == 100 * (D + 8 + 4 * MOST_LABELS + 24)
    assert model.reranker.memory.growth_bytes == 0
    assert InstanceMemory(100).growth_bytes > 0


def test_it_needs_re_ranking() -> None:
    for changes in ({}, {"update": "fsu"}, {"update": "sls", "rerank": False}):
        with pytest.raises(InvalidInstance, match="memory_instances needs update sls, and rerank true or null"):
            ModelConfig.from_dict({"memory_instances": 10, **changes})
    config = ModelConfig(update="sls", memory_instances=10)
    for changes in ({"update": "fsu"}, {"rerank": False}):
        with pytest.raises(InvalidInstance, match="set it to null"):
            config.with_user_changes(changes)
        assert config.with_user_changes({**changes, "memory_instances": None}).memory_instances is None
        assert config.with_changes(changes).memory_instances is None
    for wrong in (0, 65_537, 1.5, True, "8192"):
        with pytest.raises(InvalidInstance, match="memory_instances must be a whole number from 1 to 65536"):
            ModelConfig.from_dict({"update": "sls", "memory_instances": wrong})
    assert ModelConfig.from_stored(config.to_dict()) == config
