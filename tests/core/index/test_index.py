"""The index by hand-worked examples: ranking, learning, forgetting, growing, digests."""

from dataclasses import replace

import numpy as np
import pytest

from abound_core.config import ModelConfig
from abound_core.index.index import Index
from abound_core.index.params import IndexParams
from tests.core.index.test_fsu import connections

PLAIN = replace(IndexParams.of(ModelConfig()), rating=False)
NEVER_ENOUGH = 1e9


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def always(**changes) -> Index:
    return Index(replace(PLAIN, margin=NEVER_ENOUGH, **changes))


def weights(index: Index, feature: int) -> dict[int, float]:
    """class -> weight, in the order of the posting."""
    total = index.to_arrays()["totals"][feature]
    return {class_id: count / total for class_id, count in connections(index).get(feature, {}).items()}


def some_history(index: Index, seed: int = 7, n: int = 300) -> Index:
    rng = np.random.default_rng(seed)
    for _ in range(n):
        ids = rng.choice(600, 12, replace=False).astype(np.int32)
        index.learn(ids, rng.random(12, np.float32) + floats(0.01), ints(rng.integers(0, 40)))
    return index


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
