"""Embeddings of instances by their labels: each part against dense arithmetic."""

import numpy as np
import pytest
from scipy import sparse

from abound_core.methods.embeddings import contexts, exmlds1, exmlds3, exmlds_joint, sppmi
from abound_core.methods.training import clusters
from abound_core.methods.training.progress import no_progress
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
    np.testing.assert_allclose(sppmi.of_labels(Y, shift, no_progress).toarray(), dense_sppmi(M, shift), atol=1e-5)
    counted = sppmi.of_counts(sparse.csr_matrix(M), shift, no_progress)
    np.testing.assert_allclose(counted.toarray(), dense_sppmi(M, shift), atol=1e-5)
    Y, D = made(120, seed=0).Y, made(120, seed=0).Y.toarray().astype(np.float64)
    together = exmlds3.label_cooccurrence(Y, no_progress)
    A = exmlds3.joint_counts(Y, together, exmlds3.Params(mu1=0.3, mu2=0.7, mu3=11.0), no_progress)
    np.testing.assert_array_equal(A.toarray(), np.block([[0.7 * (D @ D.T), 11.0 * D], [11.0 * D.T, 0.3 * (D.T @ D)]]))


@pytest.mark.parametrize("products", [2**30, 500])
def test_the_embedding_gives_the_matrix_back_also_in_pieces(products, monkeypatch):
    monkeypatch.setattr(sppmi, "PRODUCTS", products)
    rng = np.random.default_rng(0)
    A = rng.random((40, 6))
    P = sparse.csr_matrix(A @ A.T, dtype=np.float32)
    Z = sppmi.embedding(P, 6, rng, no_progress)
    np.testing.assert_allclose(Z @ Z.T, P.toarray(), atol=1e-3)


def test_no_cluster_is_larger_than_its_bound():
    data = made(300, seed=0)
    skewed = data.X[np.concatenate((np.zeros(200, int), np.arange(100)))]
    for X in (data.X, skewed):
        centres, places = clusters.find_clusters(X, 6, np.random.default_rng(0), no_progress)
        sizes = np.bincount(places, minlength=len(centres))
        assert len(places) == 300
        assert sizes.min() > 0
        assert sizes.max() <= clusters.largest(6, 300) == 100


def test_ranks_as_a_brute_force_does():
    """One learner: the cluster of the query, the projections of its instances, the votes of the nearest."""
    data = made(200, seed=0)
    model = exmlds1.fit(data, exmlds1.Params(dim=8, neighbors=7, learners=1), np.random.default_rng(0), no_progress)
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


def test_contexts_are_the_nearest_by_label_vectors():
    Y = made(150, seed=0).Y[:, 1:]
    found = contexts.nearest_by_label(Y, 40, np.random.default_rng(0), no_progress)
    dense = Y.toarray().astype(np.float64)
    lengths = np.linalg.norm(dense, axis=1)
    with np.errstate(invalid="ignore"):
        cosines = dense @ dense.T / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0)
    for row in range(150):
        near = found[row][found[row] >= 0]
        best = np.sort(np.nan_to_num(cosines[row]))[::-1][:40]
        assert len(set(near.tolist())) == len(near) == np.count_nonzero(best)
        np.testing.assert_allclose(np.sort(cosines[row, near])[::-1], best[best > 0])


def test_labels_are_scored_by_neighbours_and_by_their_own_vectors():
    """Of one cluster, by dense arithmetic: s1 / |s1| + s2 / |s2|."""
    data = made(200, seed=0)
    model = exmlds3.fit(data, exmlds3.Params(dim=6, neighbors=9), np.random.default_rng(0), no_progress)
    (cluster,) = model.ensemble.learners[0].clusters
    X = queries(data, 20, seed=1)[:20]
    Z = cluster.projected(X).astype(np.float64)
    sims = Z @ cluster.vectors.T
    near = np.argsort(-sims, axis=1, kind="stable")[:, :9]
    votes = np.zeros_like(sims)
    np.put_along_axis(votes, near, np.maximum(np.take_along_axis(sims, near, 1), 0), 1)
    first, second = votes @ data.Y[cluster.rows].toarray(), Z @ model.labels[0].T
    expected = first / np.linalg.norm(first, axis=1)[:, None] + second / np.linalg.norm(second, axis=1)[:, None]
    ranked = model.rank(X, 6)
    np.testing.assert_allclose(ranked.scores.reshape(20, 6), -np.sort(-expected, axis=1), rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_the_objective():
    data = made(40, seed=0)
    params = exmlds_joint.Params(negatives=3.0, sharpness=2.0)
    rng = np.random.default_rng(0)
    V = rng.standard_normal((data.X.shape[1] + 1, 4)).astype(np.float32)

    def objective(V):
        Z = np.hstack([data.X.toarray(), np.ones((40, 1))]) @ V
        U = Z / np.linalg.norm(Z, axis=1, keepdims=True)
        K = 2.0 * U[:20] @ U[20:].T
        off = np.log(1 / (1 + np.exp(K)))
        np.fill_diagonal(off, 0)
        return np.log(1 / (1 + np.exp(-np.diagonal(K)))).sum() + 3.0 / 19 * off.sum()

    slope = exmlds_joint.gradient(data.X, V, params)
    for row, column in [(0, 0), (7, 3), (-1, 2)]:
        step = np.zeros(V.shape)
        step[row, column] = 1e-5
        numeric = (objective(V + step) - objective(V - step)) / 2e-5
        np.testing.assert_allclose(slope[row, column], numeric, rtol=1e-3, atol=1e-4)
