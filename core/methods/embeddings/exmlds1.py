"""ExMLDS1: instances embedded by the mutual information of their labels, a regressor, and nearest neighbors.

Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), algorithms 1 and 2.

Differences from the paper: the regressor is fitted by ridge regression (``core/methods/embeddings/ridge.py``), where
the paper has ADMM and SLEEC's l1 penalty; the shift of the mutual information is 1, where equation 4 subtracts log k
for k negative samples. ``core/methods/embeddings/cluster_ensemble.py`` describes the parts that all methods of this
family share, with their differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from abound.core.methods.embeddings import cluster_ensemble, sppmi
from abound.core.methods.embeddings.cluster_ensemble import Model
from abound.core.methods.embeddings.ridge import Floats, Ridge
from abound.core.methods.training import clusters, param_checks
from abound.core.methods.training.matrices import Csr, DataSizes, Matrices
from abound.core.methods.training.progress import Progress, subrange

__all__ = ["COST", "USE", "Model", "Params", "check", "fit", "needs"]

COST = "fit O(learners (sum of squared label counts + pairs dim) / clusters); rank O(learners (l + n / clusters) dim)"
USE = "Several labels an instance that come together in groups; the most accurate of the fast multi-label methods."


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the embedding, the regressor and the vote.

    Attributes
    ----------
    dim : int
        Dimensions of the embedding.
    neighbors : int
        Number of neighbors that vote, per learner; all instances if there are fewer than the default.
    clusters : int
        Clusters of instances, each with its own embedding; 0: two, and more for every 5,000 instances.
    learners : int
        Clusterings, whose votes are added.
    shift : float
        Shift of the mutual information: its logarithm is subtracted.
    ridge : float
        Penalty of the regressor.
    """

    dim: int = 100
    neighbors: int = 30
    clusters: int = 0
    learners: int = 5
    shift: float = 1.0
    ridge: float = 1.0

    def __post_init__(self) -> None:
        param_checks.whole("dim", self.dim, 1, 10_000)
        param_checks.whole("neighbors", self.neighbors, 1, 100_000)
        param_checks.whole("clusters", self.clusters, 0, 100_000)
        param_checks.whole("learners", self.learners, 1, 1_000)
        param_checks.number("shift", self.shift, 1e-6, 1e6)
        param_checks.number("ridge", self.ridge, 1e-6, 1e9)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Neighbors, clusters and learners of the ensemble."""
        return self.neighbors, self.clusters, self.learners


def needs(sizes: DataSizes, params: Params) -> dict[str, int]:
    """Return the bytes of memory by purpose."""
    pairs = sizes.pairs_among(clusters.largest(params.clusters, sizes.n))
    own = {f"mutual information of a cluster, 16 B x up to {pairs:,} pairs, and a block": 16 * pairs + 8 * sppmi.BLOCK}
    return cluster_ensemble.needs(sizes, params.shape, params.dim) | own


def check(data: Matrices, params: Params) -> None:
    """Raise ValueError if there are fewer instances than the requested neighbors, or than clusters."""
    cluster_ensemble.check(data, params.shape, Params().neighbors)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Embed each cluster and regress onto the embedding.

    Raises
    ------
    Cancelled
        Raised by ``progress``.
    """

    def learn(X: Csr, Y: Csr, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.float64]:
        Z = embed(Y, params, rng, subrange(progress, 0.0, 0.7))
        return Ridge(X, params.ridge, progress=subrange(progress, 0.7, 0.9)).fit(Z, subrange(progress, 0.9, 1.0))

    return cluster_ensemble.fit(data, params.shape, learn, rng, progress)


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
