"""ExMLDS joint: the skip-gram objective trains the regressor directly, without an embedding in between.

Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), "Joint Embedding and
Regression": with z = V x and K_ij the cosine of z_i and z_j, gradients on V of

    sum over contexts j of log s(g K_ij)  +  negatives / n  sum over others j' of log s(-g K_ij')

where s is the logistic function and g a sharpness. It starts from the regressor of ``exmlds1``.

Differences from the paper: g is 10, where the paper has 1; negatives are the contexts of the other instances of a
batch, where the paper draws them from all instances; steps by AdaGrad, where the paper has plain gradient steps;
clusters and exact neighbors as in ``exmlds1``, where the paper has AnnexML's partition and graph; 100 dimensions, 5
learners and 30 neighbors by default, where the paper has 50, 15 and 10. Not built: K_ij as a dot product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from abound_core.methods.embeddings import cluster_ensemble, exmlds1
from abound_core.methods.embeddings.cluster_ensemble import Model
from abound_core.methods.embeddings.contexts import nearest_by_label
from abound_core.methods.embeddings.ridge import Ridge, product, transposed_product
from abound_core.methods.training import param_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange

__all__ = ["COST", "USE", "Model", "Params", "check", "fit"]

COST = "fit as exmlds1, and O(learners epochs contexts (nnz + n batch) dim); rank as exmlds1"
USE = "As exmlds1, in about twice the time, where the first five labels count: 0.1 to 0.2 points of P@5."

Singles = npt.NDArray[np.float32]

check = cluster_ensemble.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(exmlds1.Params):
    """The parameters of ``exmlds1``, and those of the gradients.

    Attributes
    ----------
    contexts : int
        Contexts of an instance: the nearest ones by the cosine of label vectors.
    negatives : float
        Total weight of all other instances of a batch, relative to a context.
    sharpness : float
        Factor of the cosine in the loss.
    epochs : int
        Passes over all instances.
    batch : int
        Instances per batch, each with one of its contexts; the contexts of the others are the negatives.
    step : float
        Initial step size, relative to the initial length of the regressor. Each coordinate of a gradient is divided
        by the root of the sum of its squares so far (AdaGrad).
    """

    contexts: int = 10
    negatives: float = 20.0
    sharpness: float = 10.0
    epochs: int = 10
    batch: int = 256
    step: float = 0.02

    def __post_init__(self) -> None:
        exmlds1.Params.__post_init__(self)
        param_checks.whole("contexts", self.contexts, 1, 10_000)
        param_checks.number("negatives", self.negatives, 0.0, 1e6)
        param_checks.number("sharpness", self.sharpness, 1e-3, 1e3)
        param_checks.whole("epochs", self.epochs, 0, 10_000)
        param_checks.whole("batch", self.batch, 2, 100_000)
        param_checks.number("step", self.step, 1e-9, 1e3)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    def learn(X: Csr, Y: Csr, rng: np.random.Generator, progress: Progress) -> Singles:
        Z = exmlds1.embed(Y, params, rng, subrange(progress, 0.0, 0.3))
        least = Ridge(X, params.ridge, progress=subrange(progress, 0.3, 0.35))
        V = least.fit(Z, subrange(progress, 0.35, 0.4)).astype(np.float32)
        return follow_gradient(X, Y, V, params, rng, subrange(progress, 0.4, 1.0))

    return cluster_ensemble.fit(data, params, learn, rng, progress)


def follow_gradient(
    X: Csr, Y: Csr, V: Singles, params: Params, rng: np.random.Generator, progress: Progress
) -> Singles:
    """Follow the gradient, starting from the weights V of shape (d + 1, dim)."""
    pairs = nearest_by_label(Y, params.contexts, rng, subrange(progress, 0.0, 0.1))
    n_pairs = np.count_nonzero(pairs >= 0, axis=1)
    able = np.flatnonzero(n_pairs)
    V = V / np.float32(np.sqrt(np.mean(np.square(V))) or 1.0)
    squares = np.full_like(V, 1e-12)
    for epoch in range(params.epochs if len(able) > 1 else 0):
        order = rng.permutation(able)
        for first in range(0, len(order), params.batch):
            progress("gradients", 0.1 + 0.9 * (epoch + first / len(order)) / params.epochs)
            rows = order[first : first + params.batch]
            others = pairs[rows, (rng.random(len(rows)) * n_pairs[rows]).astype(np.int64)]
            slope = gradient(X[np.concatenate((rows, others))], V, params)
            squares += slope * slope
            V += np.float32(params.step) * slope / np.sqrt(squares)
    return V


def gradient(X: Csr, V: Singles, params: Params) -> Singles:
    """Return the derivative of the objective on a batch with respect to V, shape (d + 1, dim).

    X has 2 b rows: b instances, followed by one context of each.
    """
    Z = product(X, V)
    lengths = np.linalg.norm(Z, axis=1, keepdims=True)
    lengths[lengths == 0] = 1.0
    U = Z / lengths
    b = len(U) // 2
    centres, contexts = U[:b], U[b:]
    K = np.float32(params.sharpness) * (centres @ contexts.T)
    pulls = -_logistic(K) * np.float32(params.negatives / max(b - 1, 1))
    np.fill_diagonal(pulls, _logistic(-np.diagonal(K)))
    pulls *= np.float32(params.sharpness)
    by_U = np.concatenate((pulls @ contexts, pulls.T @ centres))
    # The derivative of a cosine by z is the part of the derivative by u that is orthogonal to z, divided by |z|.
    across = (by_U - np.sum(by_U * U, axis=1, keepdims=True) * U) / lengths
    return transposed_product(X, across)


def _logistic(K: Singles) -> Singles:
    return (1.0 / (1.0 + np.exp(-K))).astype(np.float32)
