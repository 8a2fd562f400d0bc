"""The index by hand-worked examples: ranking, learning, explaining, forgetting, growing, digests and copies."""

from dataclasses import replace

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.index.arrays import ARRAYS
from abound_core.index.index import Index
from abound_core.index.params import IndexParams

PLAIN = replace(IndexParams.of(ModelConfig()), rating=False)
NEVER_ENOUGH = 1e9


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def always(**changes) -> Index:
    """An index that updates at every instance."""
    return Index(replace(PLAIN, margin=NEVER_ENOUGH, **changes))


def weights(index: Index, feature: int) -> dict[int, float]:
    """class -> weight, in the order of the posting."""
    arrays = index.to_arrays()
    first = int(arrays["lengths"][:feature].sum())
    own = slice(first, first + int(arrays["lengths"][feature]))
    return dict(
        zip(
            arrays["class_ids"][own].tolist(), (arrays["counts"][own] / arrays["totals"][feature]).tolist(), strict=True
        )
    )


def some_history(index: Index, seed: int = 7, n: int = 300) -> Index:
    rng = np.random.default_rng(seed)
    for _ in range(n):
        ids = rng.choice(600, 12, replace=False).astype(np.int32)
        index.learn(ids, rng.random(12, np.float32) + floats(0.01), ints(rng.integers(0, 40)))
    return index


def test_empty_index_ranks_nothing():
    ranking = Index(PLAIN).rank(ints(0, 5, -1), floats(1, 1, 1), 10)
    assert ranking.class_ids.tolist() == []
    assert ranking.scores.tolist() == []


def test_weights_are_proportions():
    index = always()
    for class_id in (4, 9, 4, 4):
        index.learn(ints(0), floats(0.5), ints(class_id))
    assert weights(index, 0) == {4: 0.75, 9: 0.25}
    assert index.rank(ints(0), floats(0.5), 5).scores.tolist() == [0.375, 0.125]


def test_first_instance_is_learned_with_margin_zero_and_a_known_one_is_not():
    index = Index(PLAIN)
    assert index.learn(ints(0, 1), floats(0.6, 0.8), ints(3)) == (0, True)
    assert index.learn(ints(0, 1), floats(0.6, 0.8), ints(3)) == (1, False)
    assert index.learn(ints(0, 1), floats(0.6, 0.8), ints(2)) == (0, True)


def test_margin_equal_to_the_threshold_updates():
    learned = []
    for margin in (0.99, 1.0):
        index = Index(replace(PLAIN, margin=margin))
        index.learn(ints(0), floats(1), ints(0))
        learned.append(index.learn(ints(0), floats(1), ints(0)))
    assert learned == [(1, False), (1, True)]


def test_rating_counts_the_present_instance():
    index = Index(replace(PLAIN, rating=True))
    index.learn(ints(0), floats(1), ints(0))
    assert index.rank(ints(0), floats(1), 1).scores.tolist() == [0.1]
    index.learn(ints(0), floats(1), ints(0), count_seen=False)
    assert index.rank(ints(0), floats(1), 1).scores.tolist() == [0.1]
    for _ in range(20):
        index.learn(ints(0), floats(1), ints(0))
    assert index.rank(ints(0), floats(1), 1).scores.tolist() == [1.0]


def test_only_the_heaviest_vote_and_equal_ones_by_id():
    index = always(d_max=2)
    for class_id in (8, 5, 7, 8):
        index.learn(ints(0), floats(1), ints(class_id))
    assert index.rank(ints(0), floats(1), 9).class_ids.tolist() == [8, 5]
    assert index.n_connections == 3


def test_light_connections_are_dropped_and_leak_their_weight():
    for leak, totals in ((True, [3.0]), (False, [2.0])):
        index = always(w_min=0.4, leak=leak)
        for class_id in (0, 0, 1):
            index.learn(ints(0), floats(1), ints(class_id))
        assert index.to_arrays()["totals"].tolist() == totals
        assert index.to_arrays()["class_ids"].tolist() == [0]


def test_memory_keeps_the_total_and_forgets_what_is_past():
    index = always(memory=4.0)
    for class_id in [0] * 8 + [1] * 8:
        index.learn(ints(0), floats(1), ints(class_id))
    assert index.to_arrays()["totals"].tolist() == [4.0]
    # After the horizon is full each step multiplies by 4/5: class 0 has 4 * 0.8^8 left.
    assert weights(index, 0) == pytest.approx({1: 1 - 0.8**8, 0: 0.8**8}, abs=1e-12)


def test_a_true_class_after_the_fiftieth_counts_as_not_scored():
    class_ids = ints(*range(60))
    index = always(w_min=0.0, d_max=100)
    for class_id in range(60):
        for _ in range(60 - class_id):
            index.learn(ints(0), floats(1), ints(class_id))
    # Class c has 60 - c of 1830. The margin of the 50th is 11 - 60, that of the 51st would be 10 - 60 and is 0 - 60.
    index.params = replace(index.params, margin=-55 / 1830)
    assert index.learn(ints(0), floats(1), class_ids[49:50], count_seen=False) == (50, False)
    assert index.learn(ints(0), floats(1), class_ids[50:51], count_seen=False) == (51, True)
    assert index.learn(ints(0), floats(1), ints(55, 45), count_seen=False) == (46, True)
    assert index.to_arrays()["totals"].tolist() == [1832.0]
    assert weights(index, 0)[45] == 15 / 1832


def test_several_true_classes_are_margined_by_one_scoring():
    index = Index(PLAIN)
    index.learn(ints(0), floats(1), ints(2))
    assert index.learn(ints(0), floats(1), ints(5, 2, 7)) == (1, True)
    # Class 2 had 1 against 0 of the others; 5 and 7 had 0 - 0 and were both updated.
    assert weights(index, 0) == {2: 1 / 3, 5: 1 / 3, 7: 1 / 3}


def test_mask_lets_only_some_be_ranked():
    index = always()
    for class_id in (0, 1, 2, 2, 1, 2):
        index.learn(ints(0), floats(1), ints(class_id))
    mask = np.array([1, 1, 0], np.uint8)
    assert index.rank(ints(0), floats(1), 3, mask).class_ids.tolist() == [1, 0]
    assert index.rank(ints(0), floats(1), 3, mask[:1]).class_ids.tolist() == [0]
    assert index.rank(ints(0), floats(1), 3).class_ids.tolist() == [2, 1, 0]


@pytest.mark.parametrize("k", [0, 1, 7, 64, 65, 400, 5000])
def test_the_k_best_are_the_first_of_all(k):
    rng = np.random.default_rng(3)
    index = always(w_min=0.0, d_max=1000)
    ids = ints(*range(30))
    for _ in range(400):
        # Values of three sizes, so that many scores are equal.
        index.learn(ids[: rng.integers(1, 31)], np.full(30, 0.25, np.float32), ints(rng.integers(0, 500)))
    values = np.ones(30, np.float32)
    scores = np.zeros(500)
    for class_id in range(500):
        scores[class_id] = sum(index.explain(ids, values, class_id).tolist())
    order = np.lexsort((np.arange(500), -scores))[:k]
    ranking = index.rank(ids, values, k)
    n = min(k, int((scores > 0).sum()))
    assert ranking.class_ids.tolist() == order[:n].tolist()
    assert ranking.scores.tolist() == scores[order[:n]].tolist()


def test_votes_that_underflow_retrieve_nothing():
    index = always(w_min=0.0, d_max=1000)
    index.learn(ints(0), floats(3e38), ints(0))
    for class_id in range(1, 40):
        index.learn(ints(0), floats(1e-45), ints(class_id))
    tiny = floats(1e-45)
    assert index.rank(ints(0), tiny, 50).class_ids.tolist() == [0, *range(1, 40)]
    index.learn(ints(1), floats(3e38), ints(0))
    index.params = replace(index.params, margin=0.0)
    assert index.arrays.scores.any() == np.False_
    for _ in range(3):
        assert index.rank(ints(0, 1), floats(1e-45, 1), 1).class_ids.tolist() == [0]


def test_explanation_sums_to_the_score():
    index = some_history(Index(replace(PLAIN, rating=True, margin=0.5)))
    rng = np.random.default_rng(1)
    ids = rng.choice(700, 200, replace=False).astype(np.int32)
    ids[10] = -1
    values = rng.random(200, np.float32)
    ranking = index.rank(ids, values, 40)
    assert len(ranking.class_ids) > 20
    for class_id, score in zip(ranking.class_ids, ranking.scores, strict=True):
        contributions = index.explain(ids, values, int(class_id))
        assert contributions[10] == 0
        assert abs(contributions.sum() - score) < 1e-9
    assert not index.explain(ids, values, 10**6).any()


def test_ids_must_not_be_negative():
    with pytest.raises(ValueError, match="negative"):
        Index(PLAIN).learn(ints(3, -1), floats(1, 1), ints(0))
    with pytest.raises(ValueError, match="negative"):
        Index(PLAIN).learn(ints(3), floats(1), ints(-1))


def test_a_forgotten_feature_is_as_never_seen():
    index = some_history(Index(replace(PLAIN, rating=True)))
    other = Index.from_arrays(index.params, index.to_arrays())
    lost = index.to_arrays()["lengths"]
    index.forget_feature(17)
    assert index.n_connections == other.n_connections - int(lost[17])
    assert weights(index, 17) == {}
    assert index.to_arrays()["seen"][17] == 0
    assert index.digest() != other.digest()
    before = index.n_bytes_used
    index.forget_feature(10**6)
    index.learn(ints(17), floats(1), ints(1))
    assert weights(index, 17) == {1: 1.0}
    assert index.n_bytes_used <= before + 64


def test_growing_from_nothing_is_the_same_as_room_made_before():
    grown, roomy = Index(PLAIN), Index(PLAIN)
    roomy.make_room(1000, 100, 5, 100_000)
    assert some_history(grown).digest() == some_history(roomy).digest()
    assert grown.n_bytes < roomy.n_bytes


def test_digest_sees_every_part_of_the_state():
    digests = set()
    for changes in ({}, {"values": 0.5}, {"class_id": 2}, {"count_seen": False}, {"feature": 700}):
        index = some_history(Index(replace(PLAIN, margin=NEVER_ENOUGH)))
        plain = {"feature": 5, "values": 0.25, "class_id": 1, "count_seen": True} | changes
        index.learn(ints(plain["feature"]), floats(plain["values"]), ints(plain["class_id"]), plain["count_seen"])
        digests.add(index.digest())
        assert index.digest() in digests
    assert len(digests) == 5


def test_digest_in_slices_is_the_digest():
    index, other = some_history(Index(PLAIN)), some_history(Index(PLAIN))
    slices = 1
    while not index.digest_pages(1):
        slices += 1
        if slices == 2:
            some_history(index, seed=8, n=5)
    some_history(other, seed=8, n=5)
    assert slices > 2
    assert index.digest() == other.digest()
    assert index.digest_pages(0)


def test_a_copy_has_the_same_digest_and_goes_on_alike():
    index = some_history(Index(replace(PLAIN, margin=0.5, rating=True)))
    copy = Index.from_arrays(index.params, index.to_arrays())
    assert copy.digest() == index.digest()
    assert (copy.n_features, copy.n_connections) == (index.n_features, index.n_connections)
    some_history(index, seed=11)
    some_history(copy, seed=11)
    assert copy.digest() == index.digest()
    for name, array in index.to_arrays().items():
        assert array.tobytes() == copy.to_arrays()[name].tobytes()


def test_a_copy_of_nothing():
    assert Index.from_arrays(PLAIN, Index(PLAIN).to_arrays()).digest() == Index(PLAIN).digest()


def put(name, at, value):
    return lambda arrays: arrays[name].__setitem__(at, value)


DAMAGES = {
    "part missing": lambda arrays: arrays.pop("seen"),
    "other type": lambda arrays: arrays.update(counts=arrays["counts"].astype(np.float32)),
    "shorter": lambda arrays: arrays.update(counts=arrays["counts"][:-1]),
    "totals shorter": lambda arrays: arrays.update(totals=arrays["totals"][:-1]),
    "lengths": put("lengths", 0, 60_000),
    "not finite": put("counts", 0, np.nan),
    "infinite": put("totals", 0, np.inf),
    "negative": put("counts", -1, -1.0),
    "order": put("counts", 0, 0.0),
    "total of nothing": put("totals", 3, 0.0),
    "seen too often": put("seen", 0, 512),
    "class id too large": put("class_ids", 0, 2**32 - 1),
}


@pytest.mark.parametrize("damage", list(DAMAGES.values()), ids=list(DAMAGES))
def test_damaged_arrays_are_refused(damage):
    arrays = some_history(always()).to_arrays()
    Index.from_arrays(PLAIN, arrays)
    damage(arrays)
    with pytest.raises(Corrupted):
        Index.from_arrays(PLAIN, arrays)


def test_parts_are_what_is_written():
    arrays = some_history(Index(PLAIN)).to_arrays()
    assert {name: array.dtype.type for name, array in arrays.items()} == {
        name: spec.dtype for name, spec in ARRAYS.items()
    }
