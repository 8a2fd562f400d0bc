"""Embeddings of instances by their labels: each part against dense arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from core.methods import clusters, ensemble, exmlds1, sppmi
from core.methods.progress import quietly
from tests.core.methods.toy import made, queries


def dense_sppmi(M, shift):
    sums = M.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log(M * sums.sum() / np.outer(sums, sums)) - np.log(shift)
    return np.where(np.isfinite(pmi), np.maximum(pmi, 0), 0)


@pytest.mark.parametrize("shift", [1.0, 2.5])
def test_mutual_information_is_that_of_the_dense_matrix(shift, monkeypatch):
    monkeypatch.setattr(sppmi, "BLOCK", 500)
    Y = made(120, seed=0).Y[:, 1:]
    assert np.diff(Y.indptr).min() == 0
    M = (Y @ Y.T).toarray().astype(np.float64)
    np.testing.assert_allclose(sppmi.of_labels(Y, shift, quietly).toarray(), dense_sppmi(M, shift), atol=1e-5)
    np.testing.assert_allclose(sppmi.of_counts(sparse.csr_matrix(M), shift).toarray(), dense_sppmi(M, shift), atol=1e-5)


def test_mutual_information_worked_by_hand():
    """Two instances with label 0, one of them with label 1 besides, one with label 1: M = [[1 1 0] [1 2 1] [0 1 1]]."""
    Y = sparse.csr_matrix(np.array([[1, 0], [1, 1], [0, 1]], np.int8))
    P = sppmi.of_labels(Y, 1.0, quietly).toarray()
    np.testing.assert_allclose(P[0], [np.log(8 / 4), 0, 0], atol=1e-6)
    np.testing.assert_allclose(P[1, 1], np.log(2 * 8 / 16), atol=1e-6)


def test_the_embedding_gives_the_matrix_back():
    rng = np.random.default_rng(0)
    A = rng.random((40, 6))
    P = sparse.csr_matrix(A @ A.T, dtype=np.float32)
    Z = sppmi.embedding(P, 6, rng, quietly)
    np.testing.assert_allclose(Z @ Z.T, P.toarray(), atol=1e-3)


def test_no_cluster_is_larger_than_its_bound():
    data = made(300, seed=0)
    skewed = data.X[np.concatenate((np.zeros(200, int), np.arange(100)))]
    for X in (data.X, skewed):
        centres, places = clusters.found(X, 6, np.random.default_rng(0), quietly)
        sizes = np.bincount(places, minlength=len(centres))
        assert len(places) == 300
        assert sizes.min() > 0
        assert sizes.max() <= clusters.largest(6, 300) == 100


def test_narrowing_keeps_the_columns_that_are_asked_for():
    X = made(50, seed=0).X
    features = np.array([0, 3, 4, 10, X.shape[1] - 1], np.int32)
    np.testing.assert_array_equal(ensemble.narrowed(X, features).toarray(), X.toarray()[:, features])


def test_ranks_as_a_brute_force_does():
    """One learner: the cluster of the query, the projections of its instances, the votes of the nearest."""
    data = made(200, seed=0)
    model = exmlds1.fit(data, exmlds1.Params(dim=8, neighbors=7, learners=1), np.random.default_rng(0), quietly)
    X = queries(data, 30, seed=1)[:30]
    learner = model.learners[0]
    ranked = model.rank(X, 6)
    for row in range(30):
        x = X[row].toarray().ravel()
        cluster = learner.clusters[int(np.argmax(learner.centres @ x))]

        def project(x, cluster=cluster):
            z = x[cluster.features].astype(np.float64) @ cluster.weights[:-1] + cluster.weights[-1]
            return z / np.linalg.norm(z)

        own = np.array([project(data.X[i].toarray().ravel()) for i in cluster.rows])
        sims = own @ project(x)
        near = np.argsort(-sims, kind="stable")[:7]
        votes = np.maximum(sims[near], 0) @ data.Y[cluster.rows[near]].toarray()
        part = slice(*ranked.starts[row : row + 2])
        np.testing.assert_allclose(ranked.scores[part], np.sort(votes[votes > 0])[::-1], rtol=1e-4)
        np.testing.assert_allclose(votes[ranked.ids[part]], ranked.scores[part], rtol=1e-4)
