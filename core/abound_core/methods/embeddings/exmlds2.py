"""ExMLDS2: instances embedded like words, by skip-grams with negative sampling; the rest is as in ``exmlds1``.

Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), equation 3: an instance is a
word, and its contexts are its nearest neighbors by the cosine of label vectors.

Differences from the paper: ridge regression in place of ADMM; embeddings are scaled to length 1 before it; one
cluster by default, where the paper has SLEEC's partition; 10 epochs and 15 negative samples on data of any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from abound_core.methods.embeddings import cluster_ensemble
from abound_core.methods.embeddings.cluster_ensemble import Model
from abound_core.methods.embeddings.contexts import nearest_by_label
from abound_core.methods.embeddings.ridge import Ridge
from abound_core.methods.embeddings.skip_grams_kernels import learn_skip_grams
from abound_core.methods.training import clusters, param_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange

__all__ = ["COST", "USE", "Model", "Params", "check", "fit"]

COST = "fit O(learners (sum of squared label counts / clusters + epochs n contexts negatives dim)); rank as exmlds1"
USE = "As exmlds1, with thousands of labels, or where its pairs of instances would not fit in memory."

SMALLEST_STEP = 1e-4

ROWS = 2_000  # instances between two progress reports


check = cluster_ensemble.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(cluster_ensemble.EnsembleParams):
    """The parameters of the ensemble and of the embedding.

    Attributes
    ----------
    contexts : int
        Contexts of each instance.
    negatives : int
        Random contexts for each context.
    epochs : int
        Passes over the contexts of all instances.
    step : float
        Step size at the start; it falls to 0.
    """

    contexts: int = 20
    negatives: int = 15
    epochs: int = 10
    step: float = 0.1

    def __post_init__(self) -> None:
        cluster_ensemble.EnsembleParams.__post_init__(self)
        param_checks.whole("contexts", self.contexts, 1, 10_000)
        param_checks.whole("negatives", self.negatives, 0, 10_000)
        param_checks.whole("epochs", self.epochs, 1, 10_000)
        param_checks.number("step", self.step, 1e-6, 10.0)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    def learn(X: Csr, Y: Csr, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.float64]:
        Z = clusters.unit(embed(Y, params, rng, subrange(progress, 0.0, 0.9)))
        least = Ridge(X, params.ridge, progress=subrange(progress, 0.9, 0.95))
        return least.fit(Z.astype(np.float64), subrange(progress, 0.95, 1.0))

    return cluster_ensemble.fit(data, params, learn, rng, progress)


def embed(Y: Csr, params: Params, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.float32]:
    """Return the centre vectors of the instances, shape (n, dim). Uses one thread, so that a seed gives one result."""
    n = Y.shape[0]
    pairs = nearest_by_label(Y, params.contexts, rng, subrange(progress, 0.0, 0.1))
    centres = ((rng.random((n, params.dim)) - 0.5) / params.dim).astype(np.float32)
    contexts = np.zeros((n, params.dim), np.float32)
    state = rng.integers(1, 2**63, 1, dtype=np.uint64)
    total = params.epochs * n
    for epoch in range(params.epochs):
        order = rng.permutation(n)
        for first in range(0, n, ROWS):
            done = (epoch * n + first) / total
            progress("skip-grams", 0.1 + 0.9 * done)
            rows = order[first : first + ROWS]
            ends = (done, done + len(rows) / total)
            steps = (params.step * (1 - ends[0]) + SMALLEST_STEP, params.step * (1 - ends[1]) + SMALLEST_STEP)
            learn_skip_grams(centres, contexts, pairs, rows, params.negatives, steps, state)
    return centres
