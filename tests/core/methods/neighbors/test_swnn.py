"""Exact neighbours: against dense sums, and without the long lists against all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from abound_core.methods.neighbors import neighbors_kernels as neighbors
from abound_core.methods.neighbors import swnn
from abound_core.methods.training.matrices import l2_normalise
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made, queries
from tests.randomness import examples


def random_rows(n: int, d: int, rng: np.random.Generator, distinct: int) -> sparse.csr_matrix:
    """Rows of length 1 (some are empty): frequent and rare features, few distinct values, so that there are ties."""
    often = rng.random(d) ** 3
    dense = (rng.random((n, d)) < often) * rng.integers(1, distinct + 1, (n, d))
    rows = sparse.csr_matrix(dense.astype(np.float32))
    l2_normalise(rows)
    return rows


def dense_scores(model: swnn.Model, X: sparse.csr_matrix) -> np.ndarray:
    """f(x) by the formula of the paper, over all instances."""
    A, B, p = model.X.toarray().astype(np.float64), X.toarray().astype(np.float64), model.params
    overlap = (B > 0).astype(float) @ (A > 0).T
    union = (B > 0).sum(axis=1)[:, None] + (A > 0).sum(axis=1)[None, :] - overlap
    sims = (overlap / np.maximum(union, 1)) ** p.beta * (B @ A.T)
    scores = np.zeros((len(B), model.Y.shape[1]))
    for row, sim in enumerate(sims):
        # Values are rounded to 2^-31 in the lists: what is equal up to that is a tie.
        near = np.lexsort((np.arange(len(sim)), -sim.round(7)))[: p.S]
        near = near[sim[near] > 0]
        scores[row] = (sim[near] ** p.alpha) @ model.Y.toarray()[near]
    return scores


@pytest.mark.parametrize(
    ("S", "alpha", "beta"), [(1, 1.0, 1.0), (5, 2.0, 1.0), (20, 0.5, 0.0), (7, 0.0, 0.0), (9, 1.5, 0.5)]
)
def test_scores_are_those_of_the_formula(S, alpha, beta):
    data = made(200, seed=0)
    X = queries(data, 60, seed=1)
    model = swnn.fit(data, swnn.Params(S=S, alpha=alpha, beta=beta), np.random.default_rng(0), no_progress)
    found, expected = model.rank(X, 100), dense_scores(model, X)
    for row in range(X.shape[0]):
        part = slice(*found.starts[row : row + 2])
        assert set(found.ids[part]) == set(np.flatnonzero(expected[row] > 0))
        np.testing.assert_allclose(found.scores[part], expected[row][found.ids[part]], rtol=1e-5)


@settings(max_examples=examples(60), deadline=None)
@given(
    n=st.integers(1, 400),
    d=st.integers(1, 40),
    S=st.integers(1, 30),
    beta=st.sampled_from([0.0, 1.0]),
    distinct=st.integers(1, 4),
    few=st.sampled_from([0.05, 0.3, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_pruning_changes_nothing(n, d, S, beta, distinct, few, seed):
    """Bit for bit: also with ties, empty rows, fewer instances than neighbours, and lists that are all frequent."""
    rng = np.random.default_rng(seed)
    X, Q = random_rows(n, d, rng, distinct), random_rows(30, d, rng, distinct)
    Y = sparse.csr_matrix((rng.random((n, 7)) < 0.3).astype(np.int8))
    plain = swnn.Model.build(swnn.Params(S=S, alpha=1.0, beta=beta, prune=False), X, Y)
    pruned = swnn.Model.build(swnn.Params(S=S, alpha=1.0, beta=beta, prune=True), X, Y)
    pruning_of_all(pruned, Q, few)
    left, right = plain.rank(Q, 7), pruned.rank(Q, 7)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def pruning_of_all(model: swnn.Model, Q: sparse.csr_matrix, few: float) -> None:
    """The kernel itself, which goes another way for small data unless told: neighbours are those of the full scan."""
    search, other = model.search_buffers(Q.shape[1]), model.search_buffers(Q.shape[1])
    for row in range(Q.shape[0]):
        features = Q.indices[Q.indptr[row] : Q.indptr[row + 1]]
        values = Q.data[Q.indptr[row] : Q.indptr[row + 1]]
        factors = (values.astype(np.float64) * 2.0**31 + 0.5).astype(np.uint64)
        effort = neighbors.Effort(small=0, first=4, few=few)
        n = neighbors.search_pruned(model.lists, search, features, factors, model.params.beta, effort)
        expected = neighbors.scan(model.lists, other, features, factors, model.params.beta)
        assert n == expected
        found = sorted(zip(search.sims[:n].tolist(), search.ids[:n].tolist(), strict=True))
        assert found == sorted(zip(other.sims[:n].tolist(), other.ids[:n].tolist(), strict=True))
        assert not search.sums.any()
        assert not search.left.any()


def test_of_equally_near_instances_the_later_ones_count():
    data = made(40, seed=0)
    same = data.with_values(sparse.csr_matrix(np.tile(data.X[0].toarray(), (40, 1))))
    model = swnn.fit(same, swnn.Params(S=3, alpha=1.0, beta=0.0), np.random.default_rng(0), no_progress)
    found = model.rank(same.X[:1], 10)
    votes = np.asarray(data.Y[37:].sum(axis=0)).ravel()
    assert {int(i): round(s) for i, s in zip(found.ids, found.scores, strict=True)} == {
        int(i): int(votes[i]) for i in np.flatnonzero(votes)
    }
