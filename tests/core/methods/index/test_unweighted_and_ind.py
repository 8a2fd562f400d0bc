"""IND, the unweighted index and FF in batch, against doing it by hand and against the live index."""

import numpy as np
import pytest
from scipy import sparse

from abound_core.index.index import Index
from abound_core.instances.record import pack_vector
from abound_core.methods import registry
from abound_core.methods.index import feature_focus, frequency
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import SECRET, made, queries


def gathered(*rows: tuple[str, str]) -> Matrices:
    """From features and labels in one word each a character: ``("ab", "x")``."""
    gathering = MatrixBuilder(SECRET)
    for features, labels in rows:
        values = np.full(len(features), len(features) ** -0.5, np.float32)
        gathering.add(pack_vector([name.encode() for name in features], values), list(labels))
    return gathering.matrices()


def fit(method: str, data: Matrices, **plain: object) -> registry.Model:
    return registry.fit(method, data, registry.params_of(method, plain), np.random.default_rng(0), no_progress)[0]


def test_ind_counts_what_comes_together():
    data = gathered(("a", "x"), ("a", "x"), ("a", "y"), ("ab", "yz"), ("b", "z"))
    weights = fit("ind", data, p_ind=0.3).to_arrays()
    # a: x 2/4, y 2/4, z 1/4 is too little; b: y 1/2, z 2/2
    assert weights["labels"].tolist() == [0, 1, 1, 2]
    assert weights["weights"].tolist() == [0.5, 0.5, 0.5, 1.0]
    found = fit("ind", data, p_ind=0.0).rank(data.X[3], 3)
    assert found.ids.tolist() == [2, 1, 0]  # z 1/4 + 1, y 2/4 + 1/2, x 2/4, times the values of the query
    np.testing.assert_allclose(found.scores, np.array([1.25, 1.0, 0.5]) * 0.5**0.5, rtol=1e-6)


def test_ind_counts_features_as_boolean_and_ranks_by_their_values():
    """With ``boolean`` it ranks by Boolean features, too (JMLR 2009, sections 4.2 and 6.3.7)."""
    data = gathered(("a", "x"), ("b", "y"))
    query = sparse.csr_matrix(np.array([[0.6, 0.8]], np.float32))
    found = fit("ind", data, p_ind=0.0).rank(query, 2)
    assert found.ids.tolist() == [1, 0]
    np.testing.assert_allclose(found.scores, [0.8, 0.6], rtol=1e-6)
    found = fit("ind", data, p_ind=0.0, boolean=True).rank(query, 2)
    assert found.ids.tolist() == [0, 1]
    np.testing.assert_allclose(found.scores, [1.0, 1.0], rtol=1e-6)


def test_the_unweighted_index_updates_on_a_miss_and_on_too_many_wrong_ones():
    data = gathered(("a", "x"), ("a", "y"), ("a", "x"))
    model = fit("unweighted", data, tolerance=5, passes=1).to_arrays()
    assert model["weights"].tolist() == [1.0, 1.0]  # x is missed once, y once; the third instance misses nothing
    model = fit("unweighted", data, tolerance=0, passes=1).to_arrays()
    # the second instance misses y and retrieves x; the third retrieves y
    assert model["weights"].tolist() == [1.5, 0.5]


def test_classifiers_of_the_unweighted_index_rank_what_it_retrieves():
    """The index is the same with them; a label that it does not retrieve is not ranked (section 6.4.1)."""
    data = made(300, seed=0)
    plain, tandem = (fit("unweighted", data, tolerance=1, classifiers=n) for n in (0, 10))
    arrays = tandem.to_arrays()
    for name, array in plain.to_arrays().items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    X = queries(data, 60, seed=1)[:60]
    edges = sparse.csr_matrix((np.ones(len(arrays["labels"])), arrays["labels"], arrays["starts"]), (X.shape[1], 6))
    weights = sparse.csr_matrix(
        (arrays["classifier_weights"], arrays["classifier_labels"], arrays["classifier_starts"]), (X.shape[1], 6)
    )
    retrieved, scores = ((X > 0) @ edges).toarray() > 0, (X @ weights).toarray()
    assert not retrieved.all()
    found = tandem.rank(X, 6)
    for row in range(60):
        part = slice(*found.starts[row : row + 2])
        expected = np.flatnonzero(retrieved[row])
        assert set(found.ids[part].tolist()) == set(expected.tolist())
        np.testing.assert_allclose(found.scores[part], -np.sort(-scores[row, expected]), rtol=1e-4, atol=1e-5)
    truth = made(60, seed=1).Y.toarray()
    hits = [
        np.mean([truth[row, ranked.ids[ranked.starts[row]]] for row in range(60)])
        for ranked in (plain.rank(X, 6), found)
    ]
    assert hits[1] >= hits[0]


def test_connections_of_at_least_vote_min_vote_in_place_of_the_heaviest():
    """JMLR 2009, section 6.3.2."""
    rows = [("a", "x")] * 6 + [("a", "y")] * 3 + [("a", "z")]
    data = gathered(*rows)
    weights = {"margin": 1e9, "rating": False}
    every = fit("ff", data, **weights).rank(data.X[:1], 3)
    np.testing.assert_allclose(every.scores, [0.6, 0.3, 0.1])
    for vote_min, n in ((0.05, 3), (0.1, 3), (0.2, 2), (0.5, 1), (0.7, 0)):
        model = fit("ff", data, vote_min=vote_min, d_max=1, **weights)
        found = model.rank(data.X[:1], 3)
        assert found.ids.tolist() == every.ids[:n].tolist()
        again = feature_focus.Model.from_arrays(model.to_arrays(), 1, 3)
        assert again.params == model.params  # type: ignore[attr-defined]
        assert again.rank(data.X[:1], 3).ids.tolist() == found.ids.tolist()
    assert fit("ff", data, d_max=1, **weights).rank(data.X[:1], 3).ids.tolist() == [0]


@pytest.mark.parametrize("passes", [1, 3])
def test_ff_is_the_live_index(passes):
    """Learned by ids in column order, the index is the same, connection by connection."""
    data = made(200, seed=0)
    model = fit("ff", data, passes=passes, margin=0.3)
    index = Index(feature_focus.Params(margin=0.3).index)
    for number in range(passes):
        for row in range(200):
            place, labels = slice(*data.X.indptr[row : row + 2]), slice(*data.Y.indptr[row : row + 2])
            index.learn(data.X.indices[place], data.X.data[place], data.Y.indices[labels], number == 0)
    for name, array in index.to_arrays().items():
        np.testing.assert_array_equal(model.to_arrays()[name], array, err_msg=name)


def test_frequency_ranks_by_how_often_a_label_was_seen():
    data = gathered(("a", "x"), ("b", "yx"), ("c", "z"), ("d", "zx"))
    found = frequency.fit(data, frequency.Params(), np.random.default_rng(0), no_progress).rank(data.X[:2], 2)
    assert found.ids.tolist() == [0, 2, 0, 2]
    assert found.scores.tolist() == [0.75, 0.5, 0.75, 0.5]
