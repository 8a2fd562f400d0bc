"""OGEEC: on-the-fly global embeddings by random projections, with votes of the nearest neighbors' labels (2021).

z = R'x of length 1, R of independent N(0, 1). The score of a label is the sum of the cosines of those of the k
nearest training instances that have it, averaged over an ensemble of projections. Nothing is learned. The model
stores seeds, projected training data and labels, but never R.

Differences from the paper: on text, values are weighted by idf unless ``idf`` is false; neighbors without a cosine
above 0 do not vote. ``lsh`` exists to compare accuracy. It collects the candidates of each query in Python, which is
slower than the exact search on the data at hand, so the paper's comparison of times does not apply to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted
from abound_core.measures import Rankings
from abound_core.methods.neighbors import vector_search
from abound_core.methods.neighbors.neighbors_kernels import vote_rows
from abound_core.methods.neighbors.projection import Vectors, project
from abound_core.methods.neighbors.vector_search import Graph, Neighbors
from abound_core.methods.training import array_checks, param_checks
from abound_core.methods.training.holdout import best, held_out
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.parallel import spread
from abound_core.methods.training.progress import Progress, no_progress, subrange
from abound_core.methods.training.rankings import in_blocks, of_padded

COST = "fit O(learners nnz dim); rank O(learners n dim), less by a graph; memory 4 learners n dim bytes"
USE = "Short texts, where memory is plentiful; a graph where n is beyond some hundred thousand."

ROWS = 256  # queries that are ranked together by one thread

BLOCK = 2**16  # training rows projected at a time

SAMPLE = 200  # training rows on which the recall of an approximate search is measured

NEIGHBORS_CANDIDATES = (5, 10, 20, 50, 100)  # that ``search`` tries


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the embedding and the vote.

    Attributes
    ----------
    dim : int
        Dimensions of the embedding.
    neighbors : int
        Number of neighbors, at most the number of instances; all instances if there are fewer than the default.
    learners : int
        Number of projections, each with its own seed.
    index : ``exact`` | ``graph`` | ``lsh``
        How neighbors are found: all products; a graph (usearch); hashing by signs, for comparison.
    """

    dim: int = 200
    neighbors: int = 20
    learners: int = 5
    index: Literal["exact", "graph", "lsh"] = "exact"

    def __post_init__(self) -> None:
        param_checks.whole("dim", self.dim, 1, 100_000)
        param_checks.whole("neighbors", self.neighbors, 1, 100_000)
        param_checks.whole("learners", self.learners, 1, 1000)
        param_checks.choice("index", self.index, ("exact", "graph", "lsh"))


@dataclass(frozen=True, slots=True, eq=False)
class ProjectionLearner:
    """One projection: its seed, the projected training data, and the search structure over them.

    ``order`` has the instance of each vector. Of equally near instances the first ones count. All learners use one
    shuffled order, each from another start, so that they choose different instances where many are equally near.
    """

    seed: np.uint64
    order: npt.NDArray[np.int32]
    vectors: Vectors
    graph: Graph | None
    keys: npt.NDArray[np.int32] | None

    def search(self, queries: Vectors, k: int, progress: Progress = no_progress) -> Neighbors:
        """Return the neighbors of projected queries that this learner finds, as indices into ``vectors``."""
        if self.graph is not None:
            return self.graph.search(queries, k)
        if self.keys is not None:
            return vector_search.search_hashed(queries, self.vectors, self.keys, k, progress)
        return vector_search.search_exact(queries, self.vectors, k, progress)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The ensemble, and the labels of the training data."""

    params: Params
    learners: tuple[ProjectionLearner, ...]
    Y: Csr
    # share of the true neighbors that the learners' searches find, on training rows; 1 for an exact search
    recall: float

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels of the neighbors; labels that no neighbor has are left out."""
        k = min(k, self.Y.shape[1])

        def rank(first: int, end: int) -> Rankings:
            found = self.neighbors(X[first:end])
            ids, scores = np.zeros((end - first, k), np.int32), np.zeros((end - first, k))
            room = np.zeros(self.Y.shape[1])
            counts = vote_rows(*found, (self.Y.indptr, self.Y.indices, room), 1.0, ids, scores)
            scores /= len(self.learners)
            return of_padded(ids, scores, counts)

        return in_blocks(X.shape[0], ROWS, rank)

    def neighbors(self, X: Csr) -> Neighbors:
        """Return the neighbors that all learners find, one learner after the other."""
        parts = [self._of(learner, X) for learner in self.learners]
        sims = np.concatenate([part.sims for part in parts], axis=1)
        ids = np.concatenate([part.ids for part in parts], axis=1)
        # Unused entries of a learner have similarity 0 and add nothing to a vote.
        return Neighbors(ids, sims, np.full(X.shape[0], ids.shape[1], np.int64))

    def _of(self, learner: ProjectionLearner, X: Csr) -> Neighbors:
        found = learner.search(project(X, learner.seed, self.params.dim), self.params.neighbors)
        found.sims[np.arange(found.sims.shape[1]) >= found.counts[:, None]] = 0.0
        return found._replace(ids=learner.order[found.ids])

    def facts(self) -> dict[str, Any]:
        return {"recall_of_neighbors": self.recall}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        sizes = [self.params.dim, self.params.neighbors, self.params.learners, self.Y.shape[1]]
        arrays: dict[str, npt.NDArray[Any]] = {
            "sizes": np.array(sizes, np.int64),
            "index": np.array(self.params.index),
            "recall": np.array(self.recall),
            "label_starts": self.Y.indptr,
            "labels": self.Y.indices,
            "seeds": np.array([learner.seed for learner in self.learners], np.uint64),
        }
        for number, learner in enumerate(self.learners):
            arrays[f"vectors/{number}"] = learner.vectors
            arrays[f"order/{number}"] = learner.order
            if learner.graph is not None:
                arrays[f"graph/{number}"] = learner.graph.to_bytes()
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        dim, neighbors, n_learners, n_stored = array_checks.require_array(arrays, "sizes", np.int64, 4).tolist()
        index = str(array_checks.require_array(arrays, "index", tuple(f"<U{n}" for n in range(1, 9))))
        params = Params(dim=dim, neighbors=neighbors, learners=n_learners, index=index)  # type: ignore[arg-type]
        Y = array_checks.require_rows(arrays, "label_starts", "labels", None, (None, n_labels))
        n = Y.shape[0]
        if n_stored != n_labels or not n:
            raise Corrupted("the ensemble does not fit its labels, or has no instances")
        learners = []
        for number, seed in enumerate(array_checks.require_array(arrays, "seeds", np.uint64, n_learners)):
            vectors = array_checks.require_array(arrays, f"vectors/{number}", np.float32, n, dim)
            order = array_checks.require_array(arrays, f"order/{number}", np.int32, n, low=0, high=n - 1)
            graph = (
                Graph(vectors, array_checks.require_array(arrays, f"graph/{number}", np.uint8, None))
                if index == "graph"
                else None
            )
            keys = vector_search.hash_keys(vectors, len(vectors)) if index == "lsh" else None
            learners.append(ProjectionLearner(seed, order, vectors, graph, keys))
        return cls(params, tuple(learners), Y, float(array_checks.require_array(arrays, "recall", np.float64)))


def check(data: Matrices, params: Params) -> None:
    if data.X.shape[0] < params.neighbors != Params().neighbors:
        raise ValueError(
            f"neighbors must be at most the {data.X.shape[0]} instances that have labels and active features"
        )


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    seeds = rng.integers(0, 2**63, params.learners, dtype=np.uint64)
    n, learners = data.X.shape[0], []
    order = rng.permutation(n).astype(np.int32)
    projecting = subrange(progress, 0.0, 1.0 if params.index == "exact" else 0.9)
    for number, seed in enumerate(seeds):
        whole = subrange(projecting, number / len(seeds), (number + 1) / len(seeds))
        learners.append(_learner(data.X, seed, np.roll(order, -(number * n // len(seeds))), params, whole))
    recall = 1.0
    if params.index != "exact":
        places = rng.choice(n, min(SAMPLE, n), replace=False)
        starts = 0.9 + 0.1 * np.arange(len(learners) + 1) / len(learners)
        parts = [subrange(progress, start, end) for start, end in pairwise(starts.tolist())]
        shares = [
            _recall(learner, places, params.neighbors, tell) for learner, tell in zip(learners, parts, strict=True)
        ]
        recall = float(np.mean(shares))
    return Model(params, tuple(learners), data.Y, recall)


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """Choose ``neighbors`` by P@1 on held-out rows; the other parameters keep their defaults."""
    train, test = held_out(data, rng)
    most = min(max(NEIGHBORS_CANDIDATES), train.X.shape[0])
    model = fit(train, Params(neighbors=most), rng, subrange(progress, 0.0, 0.3))

    def rankings(params: Params) -> Rankings:
        return replace(model, params=params).rank(test.X, 5)

    sizes = sorted({min(size, most) for size in NEIGHBORS_CANDIDATES})
    return best([Params(neighbors=size) for size in sizes], rankings, test, subrange(progress, 0.3, 1.0))


def _learner(
    X: Csr, seed: np.uint64, order: npt.NDArray[np.int32], params: Params, progress: Progress
) -> ProjectionLearner:
    n = X.shape[0]
    firsts = range(0, n, BLOCK)

    def projected(first: int) -> Vectors:
        return project(X[order[first : first + BLOCK]], seed, params.dim)

    blocks = spread(projected, [(first,) for first in firsts], lambda done: progress("projecting", done / len(firsts)))
    vectors = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    graph = Graph.build(vectors, progress) if params.index == "graph" else None
    keys = vector_search.hash_keys(vectors, len(vectors)) if params.index == "lsh" else None
    return ProjectionLearner(seed, order, vectors, graph, keys)


def _recall(learner: ProjectionLearner, places: npt.NDArray[np.int64], k: int, progress: Progress) -> float:
    """Return the share of the k nearest neighbors of some training rows that the learner finds."""
    queries = learner.vectors[places]
    true = vector_search.search_exact(queries, learner.vectors, k, subrange(progress, 0.0, 0.5))
    found = learner.search(queries, k, subrange(progress, 0.5, 1.0))
    hits = sum(
        len(np.intersect1d(true.ids[row, : true.counts[row]], found.ids[row, : found.counts[row]]))
        for row in range(len(places))
    )
    return hits / max(1, int(true.counts.sum()))
