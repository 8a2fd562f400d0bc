"""ExMLDS3: instances and labels embedded together, with counts of label co-occurrence from outside the data.

Wadbude et al., "Leveraging Distributional Semantics for Multi-Label Learning" (2017), algorithms 3 and 4: the mutual
information of A = [[mu2 M, mu3 Y], [mu3 Y', mu1 C]] with M = Y Y', and C the counts of label co-occurrence. A label's
score is s1 / |s1| + s2 / |s2|, where s1 are the neighbors' votes and s2 the products of the projected query with the
labels' vectors.

Differences from the paper: ridge regression in place of ADMM; a shift of 1. The paper prints no values of mu1, mu2
and mu3, and says only that mu1 is higher where labels are missing. The defaults, with the highest weight on mu3, are
more accurate here than (10, 1, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.errors import Corrupted
from abound_core.measures import Ints, Rankings
from abound_core.methods.embeddings import cluster_ensemble as ensemble
from abound_core.methods.embeddings import sppmi
from abound_core.methods.embeddings.cluster_ensemble import Cluster
from abound_core.methods.embeddings.ridge import Ridge
from abound_core.methods.neighbors import vector_search
from abound_core.methods.training import array_checks, clusters, param_checks
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange
from abound_core.methods.training.rankings import dense_top, in_blocks
from abound_core.methods.training.row_blocks import pieces, stacked

COST = "fit as exmlds1 with L more rows; rank O(learners ((l + n / clusters) dim + L dim))"
USE = "Training data that lack most of their labels, with counts of labels that come together from elsewhere."


check = ensemble.check


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(ensemble.EnsembleParams):
    """The parameters of the ensemble and of the embedding.

    Attributes
    ----------
    shift : float
        Shift of the mutual information: its logarithm is subtracted.
    mu1 : float
        Weight of the counts between labels.
    mu2 : float
        Weight of the counts between instances.
    mu3 : float
        Weight of the counts between instances and labels.
    """

    learners: int = 1
    ridge: float = 3.0
    shift: float = 1.0
    mu1: float = 1.0
    mu2: float = 1.0
    mu3: float = 100.0

    def __post_init__(self) -> None:
        ensemble.EnsembleParams.__post_init__(self)
        param_checks.number("shift", self.shift, 1e-6, 1e6)
        for name in ("mu1", "mu2", "mu3"):
            param_checks.number(name, getattr(self, name), 0.0, 1e9)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Clusters of instances, and the vectors of the labels in the embedding of each."""

    ensemble: ensemble.Model
    labels: npt.NDArray[np.float32]  # shape (clusters of all learners, L, dim)

    def rank(self, X: Csr, k: int) -> Rankings:
        def block(first: int, end: int) -> Rankings:
            return dense_top(self._scores(X[first:end]), k)

        return in_blocks(X.shape[0], max(16, 2**23 // self.labels.shape[1]), block)

    def _scores(self, X: Csr) -> npt.NDArray[np.float64]:
        scores = np.zeros((X.shape[0], self.labels.shape[1]))
        number = 0
        for learner in self.ensemble.learners:
            places = clusters.nearest(X, learner.centres)
            for place, cluster in enumerate(learner.clusters):
                rows = np.flatnonzero(places == place)
                if len(rows):
                    scores[rows] += self._of_cluster(X[rows], cluster, self.labels[number])
                number += 1
        return scores

    def _of_cluster(self, X: Csr, cluster: Cluster, labels: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        Z = cluster.projected(X)
        near = vector_search.search_exact(Z, cluster.vectors, self.ensemble.neighbors)
        near.sims[np.arange(near.sims.shape[1]) >= near.counts[:, None]] = 0.0
        starts = np.arange(len(Z) + 1) * near.ids.shape[1]
        shape = (len(Z), len(cluster.rows))
        votes = sparse.csr_matrix((near.sims.ravel(), near.ids.ravel(), starts), shape=shape)
        of_neighbours = (votes @ self.ensemble.Y[cluster.rows].astype(np.float64)).toarray()
        return _unit(of_neighbours) + _unit((Z @ labels.T).astype(np.float64))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return self.ensemble.to_arrays() | {"label_vectors": self.labels}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        found = ensemble.Model.from_arrays(arrays, d, n_labels)
        clusters = [cluster for learner in found.learners for cluster in learner.clusters]
        vectors = array_checks.require_array(arrays, "label_vectors", np.float32, len(clusters), n_labels, None)
        if any(cluster.weights.shape[1] != vectors.shape[2] for cluster in clusters):
            raise Corrupted("labels and instances are embedded in different dimensions")
        return cls(found, vectors)


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Embed each cluster with the labels, and regress onto the instances' embedding.

    Without ``data.cooccurrence``, the counts of label co-occurrence are those of the data.
    """
    together = data.cooccurrence
    if together is None:
        together = label_cooccurrence(data.Y, subrange(progress, 0.0, 0.05))
    label_vectors: list[npt.NDArray[np.float32]] = []

    def learn(X: Csr, Y: Csr, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.float64]:
        A = joint_counts(Y, together, params, subrange(progress, 0.0, 0.15))
        P = sppmi.of_counts(A, params.shift, subrange(progress, 0.15, 0.3))
        Z = np.zeros((A.shape[0], params.dim))
        del A
        found = sppmi.embedding(P, params.dim, rng, subrange(progress, 0.3, 0.8))
        Z[:, : found.shape[1]] = found
        label_vectors.append(Z[len(Z) - Y.shape[1] :].astype(np.float32))
        least = Ridge(X, params.ridge, progress=subrange(progress, 0.8, 0.9))
        return least.fit(Z[: X.shape[0]], subrange(progress, 0.9, 1.0))

    model = ensemble.fit(data, params, learn, rng, subrange(progress, 0.05, 1.0), travels=False)
    return Model(model, np.stack(label_vectors))


def joint_counts(Y: Csr, together: Csr, params: Params, progress: Progress) -> Csr:
    """Return the joint counts A of instances and labels: shape (n + L, n + L), float64, columns ascending in a row."""
    n = Y.shape[0]
    carriers = sparse.csr_matrix(Y.T, dtype=np.float64)
    parts = []
    for first, end in pieces(_shared(Y), sppmi.BLOCK):
        progress("mutual information", 0.8 * first / n)
        own = Y[first:end].astype(np.float64)
        parts.append(_beside(params.mu2 * (own @ carriers), params.mu3 * own))
    counts = np.diff(carriers.indptr).astype(np.int64) + np.diff(together.indptr)
    for first, end in pieces(counts, sppmi.BLOCK):
        progress("mutual information", 0.8 + 0.1 * first / len(counts))
        own = together[first:end].astype(np.float64)
        parts.append(_beside(params.mu3 * carriers[first:end], params.mu1 * own))
    return stacked(parts, "mutual information", subrange(progress, 0.9, 1.0))


def label_cooccurrence(Y: Csr, progress: Progress) -> Csr:
    """Return the number of instances that have both of two labels, shape (L, L), float64."""
    carriers = sparse.csr_matrix(Y.T, dtype=np.float64)
    whole, parts = Y.astype(np.float64), []
    for first, end in pieces(_shared(carriers), sppmi.BLOCK):
        progress("labels together", 0.9 * first / Y.shape[1])
        parts.append(carriers[first:end] @ whole)
    return stacked(parts, "labels together", subrange(progress, 0.9, 1.0))


def _shared(Y: Csr) -> Ints:
    """Return the number of pairs of each row with rows that share a column, counted once per column; shape (n,)."""
    carried = np.bincount(Y.indices, minlength=Y.shape[1])[Y.indices]
    shared: Ints = np.diff(np.concatenate(([0], np.cumsum(carried)))[Y.indptr])
    return shared


def _beside(left: Csr, right: Csr) -> Csr:
    both = sparse.csr_matrix(sparse.hstack([left, right], format="csr"))
    both.sort_indices()
    return both


def _unit(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    lengths = np.linalg.norm(scores, axis=1, keepdims=True)
    return scores / np.where(lengths > 0, lengths, 1.0)
