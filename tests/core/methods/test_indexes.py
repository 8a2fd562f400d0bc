"""IND, the unweighted index and FF in batch, against doing it by hand and against the live index."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from core.config import ModelConfig
from core.methods import ff, frequency, ind, registry, unweighted
from core.methods.data import Matrices
from core.methods.gathering import Gathering
from core.methods.progress import quietly
from core.record import pack_vector
from tests.core.methods.toy import SECRET, made, queries


def gathered(*rows: tuple[str, str]) -> Matrices:
    """From features and labels in one word each a character: ``("ab", "x")``."""
    gathering = Gathering(SECRET)
    for features, labels in rows:
        values = np.full(len(features), len(features) ** -0.5, np.float32)
        gathering.add(pack_vector([name.encode() for name in features], values), list(labels))
    return gathering.matrices()


def fit(method: str, data: Matrices, **plain: object) -> registry.Model:
    return registry.fit(method, data, registry.params_of(method, plain), np.random.default_rng(0), quietly)[0]


def test_ind_counts_what_comes_together() -> None:
    data = gathered(("a", "x"), ("a", "x"), ("a", "y"), ("ab", "yz"), ("b", "z"))
    weights = fit("ind", data, p_ind=0.3).to_arrays()
    # a: x 2/4, y 2/4, z 1/4 is too little; b: y 1/2, z 2/2
    assert weights["labels"].tolist() == [0, 1, 1, 2]
    assert weights["weights"].tolist() == [0.5, 0.5, 0.5, 1.0]
    found = fit("ind", data, p_ind=0.0).rank(data.X[3], 3)
    assert found.ids.tolist() == [2, 1, 0]  # z 1/4 + 1, y 2/4 + 1/2, x 2/4, times the values of the query
    np.testing.assert_allclose(found.scores, np.array([1.25, 1.0, 0.5]) * 0.5**0.5, rtol=1e-6)


def test_ind_counts_features_as_boolean_and_ranks_by_their_values() -> None:
    """As the live index does with the same weights (JMLR 2009, sections 3.2 and 4.2)."""
    data = gathered(("a", "x"), ("b", "y"))
    query = sparse.csr_matrix(np.array([[0.6, 0.8]], np.float32))
    found = fit("ind", data, p_ind=0.0).rank(query, 2)
    assert found.ids.tolist() == [1, 0]
    np.testing.assert_allclose(found.scores, [0.8, 0.6], rtol=1e-6)


def test_the_threshold_of_ind_is_chosen_on_held_out_instances() -> None:
    data = made(200, seed=0)
    chosen = fit("ind", data).to_arrays()["weights"].min()
    assert any(chosen >= np.float32(p) for p in ind.TRIED)
    assert chosen >= np.float32(ind.TRIED[0])


def test_ind_starts_a_live_index() -> None:
    """The same weights, and it goes on learning."""
    data = made(200, seed=0)
    model = fit("ind", data, p_ind=0.1)
    config = ModelConfig(rating=False, d_max=65_535)
    live = ind.seed_live(data, model.matrix, config, SECRET)  # type: ignore[attr-defined]
    assert [live.label(i) for i in range(len(data.labels))] == data.labels
    X = queries(data, 20, seed=1)
    unit = ind.Weights(model.matrix, False)  # type: ignore[attr-defined]
    for row in range(20):
        features, values = X.indices[X.indptr[row] : X.indptr[row + 1]], X.data[X.indptr[row] : X.indptr[row + 1]]
        ranking, expected = live.index.rank(features, values, 10), unit.rank(X[row], 10)
        assert ranking.class_ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-5)
    assert type(live).from_arrays(live.meta(), live.to_arrays(), SECRET).digest() == live.digest()
    before = live.index.n_connections
    live.index.learn(np.array([0], np.int32), np.ones(1, np.float32), np.array([6], np.int32))
    assert live.index.n_connections == before + 1


def test_the_unweighted_index_updates_on_a_miss_and_on_too_many_wrong_ones() -> None:
    data = gathered(("a", "x"), ("a", "y"), ("a", "x"))
    model = fit("unweighted", data, tolerance=5, passes=1).to_arrays()
    assert model["weights"].tolist() == [1.0, 1.0]  # x is missed once, y once; the third instance misses nothing
    model = fit("unweighted", data, tolerance=0, passes=1).to_arrays()
    # the second instance misses y and retrieves x; the third retrieves y
    assert model["weights"].tolist() == [1.5, 0.5]


def test_the_tolerance_is_searched_for() -> None:
    _, params = registry.fit("unweighted", made(100, seed=0), "auto", np.random.default_rng(0), quietly)
    assert params.tolerance in unweighted.TOLERANCES


@pytest.mark.parametrize("passes", [1, 3])
def test_ff_is_the_live_index(passes: int) -> None:
    """Learned by ids in column order, the index is the same, connection by connection."""
    from core.index import Index

    data = made(200, seed=0)
    model = fit("ff", data, passes=passes, margin=0.3)
    index = Index(ff.Params(margin=0.3).index)
    for number in range(passes):
        for row in range(200):
            place, labels = slice(*data.X.indptr[row : row + 2]), slice(*data.Y.indptr[row : row + 2])
            index.learn(data.X.indices[place], data.X.data[place], data.Y.indices[labels], number == 0)
    for name, array in index.to_arrays().items():
        np.testing.assert_array_equal(model.to_arrays()[name], array, err_msg=name)


def test_passes_and_margin_of_ff_are_searched_for() -> None:
    _, params = registry.fit("ff", made(200, seed=0), "auto", np.random.default_rng(0), quietly)
    assert params.margin in ff.MARGINS
    assert 1 <= params.passes <= ff.PASSES


def test_frequency_ranks_by_how_often_a_label_was_seen() -> None:
    data = gathered(("a", "x"), ("b", "yx"), ("c", "z"), ("d", "zx"))
    found = frequency.fit(data, frequency.Params(), np.random.default_rng(0), quietly).rank(data.X[:2], 2)
    assert found.ids.tolist() == [0, 2, 0, 2]
    assert found.scores.tolist() == [0.75, 0.5, 0.75, 0.5]
