"""Label embeddings: against dense linear algebra, and what is never formed."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from abound_core.methods import registry
from abound_core.methods.embeddings import rembrandt
from abound_core.methods.embeddings.fourier import draw_features
from abound_core.methods.embeddings.ridge import Ridge
from abound_core.methods.embeddings.subspace import leading
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made, queries


def dense(X):
    return np.hstack([X.toarray().astype(np.float64), np.ones((X.shape[0], 1))])


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
@pytest.mark.parametrize("density", [0.1, 0.9])
@pytest.mark.parametrize("bounds", [{}, {"PRODUCTS": 200}, {"BLOCK_BYTES": 640}], ids=["whole", "products", "blocks"])
def test_ridge_is_the_dense_solution_also_in_pieces(shape, density, bounds, monkeypatch):
    for name, bound in bounds.items():
        monkeypatch.setattr(f"abound_core.methods.embeddings.ridge.{name}", bound)
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(sparse.random(*shape, density, random_state=rng, dtype=np.float32))
    X.sort_indices()
    T = rng.standard_normal((shape[0], 3))
    A = dense(X)
    expected = np.linalg.solve(A.T @ A + 0.7 * np.eye(shape[1] + 1), A.T @ T)
    np.testing.assert_allclose(Ridge(X, 0.7).fit(T, no_progress), expected, rtol=1e-6, atol=1e-9)
    Y = sparse.csr_matrix((rng.random((shape[0], 5)) < 0.3).astype(np.int8))
    Q = rng.standard_normal((5, 2))
    expected = np.linalg.solve(A.T @ A + 0.7 * np.eye(shape[1] + 1), A.T @ (Y.toarray() @ Q))
    np.testing.assert_allclose(Ridge(X, 0.7).fit_product(Y, Q, no_progress), expected, rtol=1e-6, atol=1e-9)


def test_ridge_by_conjugate_gradients_is_the_dense_solution(monkeypatch):
    monkeypatch.setattr("abound_core.methods.embeddings.ridge.LARGEST", 5)
    data = made(300, seed=0)
    T = np.random.default_rng(1).standard_normal((300, 4))
    A = dense(data.X)
    expected = np.linalg.solve(A.T @ A + 0.5 * np.eye(A.shape[1]), A.T @ T)
    np.testing.assert_allclose(Ridge(data.X, 0.5).fit(T, no_progress), expected, atol=2e-3)


def test_the_embedding_spans_the_predictions_of_the_unconstrained_model():
    """V of algorithm 2 against the right singular vectors of X Z*, which only this test forms."""
    data = made(400, seed=0)
    params = rembrandt.Params(k=3, p=3, q=6, ridge=0.1)
    least = Ridge(data.X, params.ridge, relative=True)
    V = rembrandt.label_embedding(data, params, least, np.random.default_rng(0), no_progress)
    A = dense(data.X)
    penalty = 0.1 * float((data.X.data.astype(np.float64) ** 2).sum()) / data.X.shape[1]
    predicted = data.Y.toarray().T @ A @ np.linalg.solve(A.T @ A + penalty * np.eye(A.shape[1]), A.T @ data.Y.toarray())
    expected = np.linalg.eigh(predicted)[1][:, ::-1][:, :3]
    np.testing.assert_allclose(V @ V.T, expected @ expected.T, atol=1e-4)


def test_nothing_of_features_times_labels_is_formed():
    n, d, labels = 3_000, 4_000, 20_000
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(sparse.random(n, d, 0.001, random_state=rng, dtype=np.float32))
    Y = sparse.csr_matrix((np.ones(n, np.int8), rng.integers(0, labels, n), np.arange(n + 1)), (n, labels))
    least = Ridge(X, 1.0)
    tracemalloc.start()
    widths = []

    def of(Q, progress):
        widths.append(Q.shape)
        return rembrandt._predictions(least, Y)(Q, progress)

    leading(of, labels, 10, 5, 1, rng, no_progress)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(widths) == {(labels, 15)}
    assert peak < 8 * d * labels / 10


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_fourier_features_give_the_kernel(kernel):
    rng = np.random.default_rng(0)
    H = rng.standard_normal((40, 4)).astype(np.float32)
    waves = draw_features(H, 60_000, kernel, 1.0, rng)
    z = waves.transform(H).astype(np.float64)
    gaps = H[:, None].astype(np.float64) - H[None]
    lengths = np.sqrt((gaps**2).sum(-1)) if kernel == "gaussian" else np.abs(gaps).sum(-1)
    kernels = z @ z.T / z.shape[1]
    near = lengths / np.median(lengths[np.triu_indices(40, 1)])
    expected = np.exp(-(near**2) / 2) if kernel == "gaussian" else np.exp(-near)
    assert np.abs(kernels - expected).max() < 0.1


@pytest.mark.parametrize(
    "changes",
    [
        *({"embedding": embedding} for embedding in ("pca", "cs", "plst")),
        *({"embedding": "none", "decoder": decoder} for decoder in ("softmax", "logistic")),
        {"fourier": 300, "kernel": "laplacian", "bandwidth": 3.0},
    ],
    ids=str,
)
def test_every_embedding_and_decoder_learns(changes):
    data = made(400, seed=0)
    params = registry.params_of("rembrandt", {"k": 20} | changes)
    model, _ = registry.fit("rembrandt", data, params, np.random.default_rng(0), no_progress)
    fresh = made(100, seed=1)
    ranked = model.rank(queries(data, 100, seed=1)[:100], 1)
    truth = fresh.Y.toarray()[np.arange(100), ranked.ids]
    assert fresh.labels == data.labels
    assert truth.mean() > 0.85


@pytest.mark.parametrize("changes", [{}, {"embedding": "cs", "decoder": "logistic"}, {"fourier": 50}])
def test_ranks_as_dense_arithmetic_does(changes):
    """[phi([x, 1] W), 1] Q, in double precision, all labels of it by their scores."""
    data = made(200, seed=0)
    params = registry.params_of("rembrandt", {"k": 6, "epochs": 3} | changes)
    model = rembrandt.fit(data, params, np.random.default_rng(0), no_progress)
    X = queries(data, 40, seed=1)
    arrays = {name: array.astype(np.float64) for name, array in model.to_arrays().items()}
    inputs = dense(X) @ arrays["W"]
    if "phases" in arrays:
        inputs = np.sqrt(2) * np.cos(inputs @ arrays["frequencies"] + arrays["phases"])
    scores = np.hstack([inputs, np.ones((len(inputs), 1))]) @ arrays["Q"]
    found = model.rank(X, data.Y.shape[1])
    ids, ranked = found.ids.reshape(scores.shape), found.scores.reshape(scores.shape)
    np.testing.assert_array_equal(np.sort(ids, axis=1), np.tile(np.arange(data.Y.shape[1]), (len(ids), 1)))
    np.testing.assert_allclose(ranked, np.take_along_axis(scores, ids, axis=1), atol=1e-4)
    np.testing.assert_allclose(ranked, -np.sort(-scores, axis=1), atol=1e-4)
