"""Rembrandt: label embeddings by randomized linear algebra with a decoder, and the baselines of the paper.

Mineiro and Karampatziakis, "Fast Label Embeddings via Randomized Linear Algebra" (2015). Algorithm 2 finds the k
leading right singular vectors of the predictions of the unconstrained least-squares model without forming its d x L
weights. Algorithm 3 fits the embedded labels from x, and then a decoder from the embedding to the labels.

    x  ->  h = [x 1] W  ->  phi(h): whitened, or random Fourier features  ->  scores = [phi(h) 1] Q

Differences from the paper: ``pca`` centres the features, where algorithm 1 does not; the decoder of instances with
several labels fits squared loss by default, where algorithm 3 has an independent log loss for each label
(``logistic``); there are no Fourier features by default, and Gaussian ones otherwise, where the paper has 4,000
Laplacian ones; the ridge penalty includes the bias. Not built: the spectrum of the label
covariance (section 4.3.2) and a second-order decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse

from abound_core.measures import Rankings
from abound_core.methods.embeddings import fourier
from abound_core.methods.embeddings.decoders import GradientDescent
from abound_core.methods.embeddings.fourier import FourierFeatures
from abound_core.methods.embeddings.ridge import BLOCK_BYTES, Floats, Ridge, product
from abound_core.methods.embeddings.subspace import leading
from abound_core.methods.training import array_checks, param_checks
from abound_core.methods.training.hierarchy import sibling_share
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, monotonic, subrange
from abound_core.methods.training.rankings import dense_top, in_blocks

COST = (
    "fit O((q + 2) (nnz + assertions + (d + L)(k + p)) (k + p)), softmax and logistic 8 n k L an epoch besides; "
    "rank O(l k + k L)"
)
USE = "Dense features, and many labels that k directions tell apart; a small model: k (d + L) numbers."

PRODUCTS = 2**33  # of two inputs of the decoder, or an input and a label, between two progress reports

RANKED = 2**24  # inputs or scores in memory at a time during ranking

DENSE = 4_096  # most features for ``embedding: none``

Embedding = Literal["rembrandt", "pca", "cs", "plst", "none"]
Decoder = Literal["auto", "squared", "softmax", "logistic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the embedding and of the decoder.

    Attributes
    ----------
    k : int
        Dimensions of the embedding.
    p : int
        Oversampling columns of the randomized subspace iteration.
    q : int
        Rounds of the randomized subspace iteration.
    embedding : ``rembrandt`` | ``pca`` | ``cs`` | ``plst`` | ``none``
        Kind of embedding: of the labels by algorithm 2; of the features by principal components; of the labels at
        random (compressed sensing); of the labels by the eigenvectors of Y'Y; none, which with ``softmax`` is plain
        logistic regression and with ``logistic`` one against all.
    ridge : float
        Penalty of the least-squares fits, as a multiple of the mean of the diagonal of X'X.
    decoder : ``auto`` | ``squared`` | ``softmax`` | ``logistic``
        Loss of the decoder; ``auto`` means softmax if no instance has more than one label, else squared.
    epochs : int
        Maximum number of epochs of the decoder; a tenth of the data is held out to choose it.
    fourier : int
        Random Fourier features of the embedding; 0: none.
    kernel : ``gaussian`` | ``laplacian``
        The kernel that they approximate.
    bandwidth : float
        Bandwidth of the kernel, as a multiple of the median distance of two instances.
    """

    k: int = 100
    p: int = 20
    q: int = 1
    embedding: Embedding = "rembrandt"
    ridge: float = 1.0
    decoder: Decoder = "auto"
    epochs: int = 80
    fourier: int = 0
    kernel: Literal["gaussian", "laplacian"] = "gaussian"
    bandwidth: float = 0.7

    def __post_init__(self) -> None:
        param_checks.whole("k", self.k, 1, 10_000)
        param_checks.whole("p", self.p, 0, 1_000)
        param_checks.whole("q", self.q, 0, 20)
        param_checks.choice("embedding", self.embedding, ("rembrandt", "pca", "cs", "plst", "none"))
        param_checks.number("ridge", self.ridge, 1e-12, 1e6)
        param_checks.choice("decoder", self.decoder, ("auto", "squared", "softmax", "logistic"))
        param_checks.whole("epochs", self.epochs, 1, 1_000)
        param_checks.whole("fourier", self.fourier, 0, 100_000)
        param_checks.choice("kernel", self.kernel, ("gaussian", "laplacian"))
        param_checks.number("bandwidth", self.bandwidth, 1e-6, 1e6)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A map into the embedding and a map from there to the labels."""

    W: npt.NDArray[np.float32]  # shape (d + 1, k); the last row is the bias. The embedding is whitened
    waves: FourierFeatures | None  # random Fourier features of the embedding
    Q: npt.NDArray[np.float32]  # shape (m + 1, L); the last row is the bias
    # share of the labels whose nearest label is a sibling, for embedded labels with a hierarchy
    siblings: float | None = None

    def rank(self, X: Csr, k: int) -> Rankings:
        def block(first: int, end: int) -> Rankings:
            return dense_top(self._inputs(X[first:end]) @ self.Q, k)

        return in_blocks(X.shape[0], max(16, RANKED // max(self.Q.shape)), block)

    def _inputs(self, X: Csr) -> npt.NDArray[np.float32]:
        inputs = product(X, self.W)
        return with_ones(inputs if self.waves is None else self.waves.transform(inputs))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        waves = {} if self.waves is None else {"frequencies": self.waves.frequencies, "phases": self.waves.phases}
        siblings = {} if self.siblings is None else {"siblings": np.array(self.siblings)}
        return {"W": self.W, "Q": self.Q} | waves | siblings

    def facts(self) -> dict[str, Any]:
        return {} if self.siblings is None else {"nearest_labels_that_are_siblings": self.siblings}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        W = array_checks.require_array(arrays, "W", np.float32, d + 1, None)
        inputs, waves = W.shape[1], None
        if "phases" in arrays or "frequencies" in arrays:
            frequencies = array_checks.require_array(arrays, "frequencies", np.float32, inputs, None)
            inputs = frequencies.shape[1]
            waves = FourierFeatures(frequencies, array_checks.require_array(arrays, "phases", np.float32, inputs))
        Q = array_checks.require_array(arrays, "Q", np.float32, inputs + 1, n_labels)
        siblings = float(array_checks.require_array(arrays, "siblings", np.float64)) if "siblings" in arrays else None
        return cls(W, waves, Q, siblings)


def check(data: Matrices, params: Params) -> None:
    if params.embedding == "none" and data.X.shape[1] > DENSE:
        raise ValueError(f"embedding none is for at most {DENSE} features, there are {data.X.shape[1]}")


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Embed, then decode. No d x L matrix is formed."""
    progress = monotonic(progress)
    progress("least squares", 0.0)
    W, siblings = _inputs(data, params, rng, subrange(progress, 0.0, 0.3))
    X = data.X
    H = np.empty((X.shape[0], W.shape[1]), np.float32)
    blocks = Ridge.blocks_of(X.shape[0], W.shape[1])
    for rows in blocks:
        H[rows] = product(X[rows], W)
    whitening, mean = _whitening(H)
    W = W @ whitening
    W[-1] -= mean @ whitening
    for rows in blocks:
        H[rows] = product(X[rows], W)
    waves = fourier.draw_features(H, params.fourier, params.kernel, params.bandwidth, rng) if params.fourier else None
    inputs = np.ones((H.shape[0], (params.fourier or H.shape[1]) + 1), np.float32)
    for rows in Ridge.blocks_of(*inputs.shape):
        progress("inputs", 0.3)
        inputs[rows, :-1] = H[rows] if waves is None else waves.transform(H[rows])
    del H  # memory suffices for only one of H and inputs
    Q = _decoder(inputs, data.Y, params, rng, subrange(progress, 0.3, 1.0))
    return Model(W.astype(np.float32), waves, Q, siblings)


def label_embedding(
    data: Matrices, params: Params, least: Ridge, rng: np.random.Generator, progress: Progress
) -> Floats:
    """Return the embedding of the labels, shape (L, k), of the kinds ``rembrandt``, ``cs`` and ``plst``."""
    Y = data.Y
    if params.embedding == "cs":
        return rng.standard_normal((Y.shape[1], params.k))
    of = _covariance(Y) if params.embedding == "plst" else _predictions(least, Y)
    return leading(of, Y.shape[1], params.k, params.p, params.q, rng, progress)[0]


def _predictions(least: Ridge, Y: Csr) -> Callable[[Floats, Progress], Floats]:
    """Return the operator Q -> Y'XZ with Z = argmin |YQ - XZ|: steps 5 to 7 of algorithm 2."""

    def of(Q: Floats, progress: Progress) -> Floats:
        Z = least.fit_product(Y, Q, progress)
        result = np.zeros((Y.shape[1], Q.shape[1]))
        for rows in least.blocks(Q.shape[1]):
            progress("subspace", 1.0)
            result += Y[rows].T.astype(np.float64) @ product(least.X[rows], Z)
        return result

    return of


def _covariance(Y: Csr) -> Callable[[Floats, Progress], Floats]:
    """Return the operator Q -> Y'YQ."""
    plain = Y.astype(np.float64)
    return lambda Q, progress: np.asarray(plain.T @ (plain @ Q), np.float64)


def _principal(X: Csr, params: Params, rng: np.random.Generator, progress: Progress) -> Floats:
    """Return the principal components of the features, as weights of shape (d + 1, k) whose last row is 0."""
    mean = np.asarray(X.mean(axis=0), np.float64).ravel()

    def of(Q: Floats, progress: Progress) -> Floats:
        result = np.zeros((X.shape[1], Q.shape[1]))
        for rows in Ridge.blocks_of(X.shape[0], Q.shape[1]):
            progress("subspace", rows.start / X.shape[0])
            result += X[rows].T.astype(np.float64) @ (X[rows].astype(np.float64) @ Q)
        return result - X.shape[0] * np.outer(mean, mean @ Q)

    vectors, _ = leading(of, X.shape[1], params.k, params.p, params.q, rng, progress)
    return np.vstack([vectors, np.zeros((1, vectors.shape[1]))])


def _inputs(
    data: Matrices, params: Params, rng: np.random.Generator, progress: Progress
) -> tuple[Floats, float | None]:
    """Return the weights W of shape (d + 1, k) that embed an instance, and the quality of the label embedding."""
    if params.embedding == "none":
        return np.vstack([np.eye(data.X.shape[1]), np.zeros((1, data.X.shape[1]))]), None
    if params.embedding == "pca":
        return _principal(data.X, params, rng, progress), None
    least = Ridge(data.X, params.ridge, relative=True, progress=subrange(progress, 0.0, 0.3))
    labels = label_embedding(data, params, least, rng, subrange(progress, 0.3, 0.7))
    siblings = None if data.hierarchy is None else sibling_share(labels, data.hierarchy)
    return least.fit_product(data.Y, labels, subrange(progress, 0.7, 1.0)), siblings


def _whitening(H: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return the map that gives the columns of H - mean unit covariance, and the mean. Degenerate directions are 0."""
    mean = H.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((H.shape[1], H.shape[1]))
    for rows in Ridge.blocks_of(H.shape[0], H.shape[1]):
        centred = H[rows] - mean
        covariance += centred.T @ centred
    squares, vectors = np.linalg.eigh(covariance / max(H.shape[0], 1))
    kept = squares > 1e-7 * max(float(squares[-1]), np.finfo(np.float64).tiny)
    return vectors * np.divide(1.0, np.sqrt(np.maximum(squares, 0.0)), out=np.zeros_like(squares), where=kept), mean


def _decoder(
    H: npt.NDArray[np.float32], Y: Csr, params: Params, rng: np.random.Generator, progress: Progress
) -> npt.NDArray[np.float32]:
    loss = params.decoder
    if loss == "auto":
        loss = "softmax" if np.diff(Y.indptr).max(initial=0) <= 1 else "squared"
    if loss == "squared":
        return _least_squares(H, Y, progress)
    return GradientDescent(loss=loss, epochs=params.epochs).fit(H, Y, rng, progress)


def _least_squares(H: npt.NDArray[np.float32], Y: Csr, progress: Progress) -> npt.NDArray[np.float32]:
    """Return the map Q with the least |Y - HQ|, in blocks of rows and labels of at most a second or two."""
    n, m = H.shape
    size = max(1, min(BLOCK_BYTES // (8 * m), PRODUCTS // m**2))
    gram, right = np.zeros((m, m)), np.zeros((m, Y.shape[1]))
    for first in range(0, n, size):
        progress("decoder", 0.5 * first / n)
        inputs = H[first : first + size].astype(np.float64)
        gram += inputs.T @ inputs
        right += (sparse.csr_matrix(Y[first : first + size].T).astype(np.float64) @ inputs).T
    gram[np.diag_indices(m)] += 1e-6 * np.trace(gram) / m
    factor = linalg.cho_factor(gram, overwrite_a=True, check_finite=False)
    Q = np.empty(right.shape, np.float32)
    size = max(1, PRODUCTS // m**2)
    for first in range(0, Y.shape[1], size):
        progress("decoder", 0.5 + 0.5 * first / Y.shape[1])
        Q[:, first : first + size] = linalg.cho_solve(factor, right[:, first : first + size], check_finite=False)
    return Q


def with_ones(H: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.hstack([H, np.ones((H.shape[0], 1), H.dtype)])
