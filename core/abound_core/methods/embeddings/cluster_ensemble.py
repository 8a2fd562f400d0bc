"""An ensemble of clusterings: linear embeddings of the clusters of instances, and votes of the nearest neighbors there.

All ExMLDS methods (Wadbude et al. 2017, algorithm 1) share this framework of SLEEC (Bhatia et al., NIPS 2015). A
query goes to the nearest cluster of each clustering and is projected by the regressor V of that cluster. The k
nearest of the projected training instances V x_i of the cluster vote for their labels with their cosine. Neighbors
are searched among V x_i; a search among the learned embeddings z_i costs one point or more.

Differences from the paper: algorithm 4 searches among z_i; votes are weighted by the cosine, where equation 1 has
their plain mean; the clusters are balanced and found by two rounds of spherical k-means, like those of SLEEC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.errors import Corrupted
from abound_core.measures import Ints, Rankings
from abound_core.methods.embeddings.ridge import product
from abound_core.methods.neighbors import vector_search
from abound_core.methods.neighbors.neighbors_kernels import vote_rows
from abound_core.methods.neighbors.vector_search import Neighbors
from abound_core.methods.training import array_checks, clusters, param_checks
from abound_core.methods.training.clusters import Centres
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.parallel import is_distributed, spread
from abound_core.methods.training.progress import Progress, monotonic, no_progress, subrange
from abound_core.methods.training.rankings import in_blocks, of_padded

Singles = npt.NDArray[np.float32]

Regressor = Callable[[Csr, Csr, np.random.Generator, Progress], npt.NDArray[Any]]
"""``learn(X, Y, rng, progress)`` returns the weights V of shape (f + 1, dim) for the rows of a cluster; the last row
is the bias.
"""

MOST_NEIGHBORS = 100_000

ROWS = 512  # queries of a cluster ranked together, about


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleParams:
    """The parameters of the clusterings, the regressor and the vote.

    Attributes
    ----------
    dim : int
        Dimensions of the embedding.
    neighbors : int
        Number of neighbors that vote, per learner; all instances if there are fewer than the default.
    clusters : int
        Clusters of instances, each with its own embedding; 0: two, and more for every 5,000 instances.
    learners : int
        Clusterings with their embeddings, whose votes are added.
    ridge : float
        Penalty of the regressor.
    """

    dim: int = 100
    neighbors: int = 20
    clusters: int = 1
    learners: int = 5
    ridge: float = 1.0

    def __post_init__(self) -> None:
        param_checks.whole("dim", self.dim, 1, 10_000)
        param_checks.whole("neighbors", self.neighbors, 1, MOST_NEIGHBORS)
        param_checks.whole("clusters", self.clusters, 0, 100_000)
        param_checks.whole("learners", self.learners, 1, 1_000)
        param_checks.number("ridge", self.ridge, 1e-6, 1e9)


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A cluster's regressor and its projected instances."""

    features: npt.NDArray[np.int32]  # shape (f,); columns that occur in the cluster, ascending
    weights: Singles  # shape (f + 1, dim)
    rows: npt.NDArray[np.int32]  # shape (m,); training instances
    vectors: Singles  # shape (m, dim); their projections, of length 1

    def projected(self, X: Csr) -> Singles:
        """Project the rows into the embedding, scaled to length 1 unless they are 0."""
        return clusters.unit(product(narrowed(X, self.features), self.weights))


@dataclass(frozen=True, slots=True, eq=False)
class ClusterLearner:
    """One clustering: centres of shape (c, d), and the cluster of each."""

    centres: Centres
    clusters: tuple[Cluster, ...]

    def search(self, X: Csr, k: int) -> Neighbors:
        """Return the k nearest training instances of each row within its cluster; unused places have similarity 0."""
        found = Neighbors.none(X.shape[0], k)
        places = clusters.nearest(X, self.centres)
        for number in np.unique(places).tolist():
            cluster = self.clusters[number]
            rows = np.flatnonzero(places == number)
            near = vector_search.search_exact(cluster.projected(X[rows]), cluster.vectors, k)
            near.sims[np.arange(near.sims.shape[1]) >= near.counts[:, None]] = 0.0
            found.ids[rows, : near.ids.shape[1]] = cluster.rows[near.ids]
            found.sims[rows, : near.ids.shape[1]] = near.sims
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    neighbors: int
    learners: tuple[ClusterLearner, ...]
    Y: Csr

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels by the votes of all learners; labels that no neighbor has are left out."""
        k = min(k, self.Y.shape[1])

        def block(first: int, end: int) -> Rankings:
            found = [learner.search(X[first:end], self.neighbors) for learner in self.learners]
            ids = np.concatenate([near.ids for near in found], axis=1)
            sims = np.concatenate([near.sims for near in found], axis=1) / len(self.learners)
            best, scores = np.zeros((end - first, k), np.int32), np.zeros((end - first, k))
            all_used = np.full(end - first, ids.shape[1], np.int64)
            labels = (self.Y.indptr, self.Y.indices, np.zeros(self.Y.shape[1]))
            counts = vote_rows(ids, sims, all_used, labels, 1.0, best, scores)
            return of_padded(best, scores, counts)

        return in_blocks(X.shape[0], min(8192, ROWS * len(self.learners[0].clusters)), block)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {
            "sizes": np.array([self.neighbors, self.Y.shape[1]], np.int64),
            "label_starts": self.Y.indptr,
            "labels": self.Y.indices,
        }
        for number, learner in enumerate(self.learners):
            parts = learner.clusters
            arrays[f"centres/{number}"] = learner.centres
            arrays[f"counts/{number}"] = np.array([(len(part.features), len(part.rows)) for part in parts], np.int64)
            for name in ("features", "weights", "rows", "vectors"):
                arrays[f"{name}/{number}"] = np.concatenate([getattr(part, name) for part in parts])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        neighbors, n_stored = array_checks.require_array(arrays, "sizes", np.int64, 2).tolist()
        if n_stored != n_labels or not 1 <= neighbors <= MOST_NEIGHBORS:
            raise Corrupted("the ensemble does not fit its labels, or its number of neighbours is out of range")
        Y = array_checks.require_rows(arrays, "label_starts", "labels", None, (None, n_labels))
        learners: list[ClusterLearner] = []
        while f"centres/{len(learners)}" in arrays:
            number = len(learners)
            centres = array_checks.require_array(arrays, f"centres/{number}", np.float32, None, d)
            n = Y.shape[0]
            counts = array_checks.require_array(
                arrays, f"counts/{number}", np.int64, len(centres), 2, low=0, high=max(d, n)
            )
            totals = counts.sum(axis=0).tolist()
            array_checks.require_array(arrays, f"features/{number}", np.int32, totals[0], low=0, high=d - 1)
            array_checks.require_array(arrays, f"weights/{number}", np.float32, totals[0] + len(counts), None)
            array_checks.require_array(arrays, f"rows/{number}", np.int32, totals[1], low=0, high=n - 1)
            array_checks.require_array(arrays, f"vectors/{number}", np.float32, totals[1], None)
            if arrays[f"weights/{number}"].shape[1] != arrays[f"vectors/{number}"].shape[1]:
                raise Corrupted("the instances and the queries of an ensemble are projected to different dimensions")
            cuts = np.cumsum(counts, axis=0)[:-1]
            pieces = [
                np.split(arrays[f"{name}/{number}"], places)
                for name, places in (
                    ("features", cuts[:, 0]),
                    ("weights", np.cumsum(counts[:, 0] + 1)[:-1]),
                    ("rows", cuts[:, 1]),
                    ("vectors", cuts[:, 1]),
                )
            ]
            for features in pieces[0]:
                array_checks.require_ascending(f"features/{number}", features)
            learners.append(ClusterLearner(centres, tuple(map(Cluster, *pieces))))
        if not learners or not all(learner.clusters for learner in learners):
            raise Corrupted("an ensemble has no learner, or one without clusters")
        return cls(neighbors, tuple(learners), Y)


def check(data: Matrices, params: EnsembleParams) -> None:
    asked = 0 if params.neighbors == type(params)().neighbors else params.neighbors
    for name, wanted in (("neighbors", asked), ("clusters", params.clusters)):
        if wanted > data.X.shape[0]:
            raise ValueError(
                f"{name} must be at most the {data.X.shape[0]} instances that have labels and active features"
            )


def fit(
    data: Matrices,
    params: EnsembleParams,
    learn: Regressor,
    rng: np.random.Generator,
    progress: Progress,
    *,
    travels: bool = True,
) -> Model:
    """Cluster the instances and fit each cluster separately, on a Dask cluster all of them in parallel.

    ``travels`` is False if ``learn`` stores anything in this process besides its result.
    """
    progress = monotonic(progress)
    found: list[tuple[Centres, Ints, list[np.random.Generator]]] = []
    for number, seed in enumerate(rng.spawn(params.learners)):
        tell = subrange(progress, 0.1 * number / params.learners, 0.1 * (number + 1) / params.learners)
        centres, places = clusters.find_clusters(data.X, params.clusters, seed, tell)
        found.append((centres, places, seed.spawn(len(centres))))
    pieces = [(learner, number) for learner, (_, _, seeds) in enumerate(found) for number in range(len(seeds))]

    def one(learner: int, number: int, progress: Progress = no_progress) -> Cluster:
        _, places, seeds = found[learner]
        return _cluster(data, np.flatnonzero(places == number), learn, seeds[number], progress)

    def share(done: int) -> float:
        return 0.1 + 0.9 * done / len(pieces)

    if travels and is_distributed() and len(pieces) > 1:
        fitted = spread(one, pieces, lambda done: progress("clusters", share(done)))
    else:  # in sequence, each on all threads, so that only one is in memory
        fitted = [one(*piece, subrange(progress, share(i), share(i + 1))) for i, piece in enumerate(pieces)]
    ends = np.cumsum([len(seeds) for _, _, seeds in found])[:-1].tolist()
    parts = zip([0, *ends], [*ends, len(pieces)], strict=True)
    learners = [
        ClusterLearner(centres, tuple(fitted[start:end]))
        for (centres, _, _), (start, end) in zip(found, parts, strict=True)
    ]
    return Model(params.neighbors, tuple(learners), data.Y)


def _cluster(data: Matrices, rows: Ints, learn: Regressor, rng: np.random.Generator, progress: Progress) -> Cluster:
    X = data.X[rows]
    features = np.unique(X.indices).astype(np.int32)
    X = narrowed(X, features)
    weights = np.asarray(learn(X, data.Y[rows], rng, progress), np.float32)
    return Cluster(features, weights, rows.astype(np.int32), clusters.unit(product(X, weights)))


def narrowed(X: Csr, features: npt.NDArray[np.int32]) -> Csr:
    """Return the rows restricted to some of the columns (ascending)."""
    columns = np.searchsorted(features, X.indices)
    columns[columns == len(features)] = 0
    known = features[columns] == X.indices if len(features) else np.zeros(X.nnz, np.bool_)
    starts = np.concatenate(([0], np.cumsum(known)))[X.indptr]
    return sparse.csr_matrix(
        (X.data[known], columns[known].astype(np.int32), starts), shape=(X.shape[0], len(features))
    )
