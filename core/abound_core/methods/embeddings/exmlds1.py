"""ExMLDS1: instances embedded by the mutual information of their labels, a regressor, and nearest neighbors.

Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), algorithms 1 and 2.

Differences from the paper: the regressor is fitted by ridge regression (``abound_core/methods/embeddings/ridge.py``),
where the paper has ADMM and SLEEC's l1 penalty; the shift of the mutual information is 1, where equation 4 subtracts
log k for k negative samples. ``abound_core/methods/embeddings/cluster_ensemble.py`` describes the parts that all
methods of this family share, with their differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from abound_core.methods.embeddings import cluster_ensemble, sppmi
from abound_core.methods.embeddings.cluster_ensemble import Model
from abound_core.methods.embeddings.ridge import Floats, Ridge
from abound_core.methods.training import param_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange

__all__ = ["COST", "USE", "Model", "Params", "check", "fit"]

COST = "fit O(learners (sum of squared label counts + pairs dim) / clusters); rank O(learners (l + n / clusters) dim)"
USE = "Several labels an instance, which occur in groups; the most accurate of the fast multi-label methods."


check = cluster_ensemble.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(cluster_ensemble.EnsembleParams):
    """The parameters of the ensemble and of the embedding.

    Attributes
    ----------
    shift : float
        Shift of the mutual information: its logarithm is subtracted.
    """

    neighbors: int = 30
    clusters: int = 0
    shift: float = 1.0

    def __post_init__(self) -> None:
        cluster_ensemble.EnsembleParams.__post_init__(self)
        param_checks.number("shift", self.shift, 1e-6, 1e6)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    def learn(X: Csr, Y: Csr, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.float64]:
        Z = embed(Y, params, rng, subrange(progress, 0.0, 0.7))
        return Ridge(X, params.ridge, progress=subrange(progress, 0.7, 0.9)).fit(Z, subrange(progress, 0.9, 1.0))

    return cluster_ensemble.fit(data, params, learn, rng, progress)


def embed(Y: Csr, params: Params, rng: np.random.Generator, progress: Progress) -> Floats:
    """Return the embedding Z of instances, shape (n, dim), computed from their labels; missing columns are 0.

    If the labels do not distinguish the instances, such as when all have the same label, all get the same point.
    """
    P = sppmi.of_labels(Y, params.shift, subrange(progress, 0.0, 0.5))
    Z = np.zeros((Y.shape[0], params.dim))
    if not P.nnz:
        Z[:, 0] = 1.0
        return Z
    found = sppmi.embedding(P, params.dim, rng, subrange(progress, 0.5, 1.0))
    Z[:, : found.shape[1]] = found
    return Z
