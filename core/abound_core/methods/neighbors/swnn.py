"""The Sparse Weighted Nearest-Neighbor Method (Aoshima, Kobayashi and Minami, 2018).

f(x) = sum over the S nearest training instances of max(Sim(x, x_i), 0)^alpha y_i, with Sim = J^beta cos and J the
Jaccard similarity of the active features (section 3.3). The neighbors are exact: the search reads every list of the
query's features, or skips it only where no neighbor can be missed. This pruning, and the order of equal similarities
(later instances first), are not from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.errors import Corrupted
from abound_core.measures import Rankings
from abound_core.methods.neighbors import neighbors_kernels as neighbors
from abound_core.methods.neighbors.neighbors_kernels import Lists, Search, rank_rows
from abound_core.methods.training import array_checks, param_checks
from abound_core.methods.training.holdout import best, held_out
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange
from abound_core.methods.training.rankings import in_blocks, of_padded

COST = "fit O(nnz); rank O(postings of the query's features + n), less with prune; memory 24 nnz + 16 n bytes"
USE = "Sparse data with thousands of labels and few instances of each; fits within seconds."

ROWS = 256  # rows ranked at a time by one thread

MAX_SQUARED_LENGTH = 1.001  # of a row of length 1, with a tolerance for rounding

GRID = ((0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (2.0, 0.0), (2.0, 1.0))
"""Values of (alpha, beta) that the paper tries, followed by those of S (section 4)."""
NEIGHBORS = (25, 50, 75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameters of the neighbors and of their votes.

    Attributes
    ----------
    S : int
        Number of neighbors, at most the number of instances; all instances if there are fewer than the default.
    alpha : float >= 0
        A vote is the similarity to this power.
    beta : float >= 0
        Exponent of the Jaccard similarity in the similarity.
    prune : bool
        Skip long lists where that does not change the result. Pays with idf weights from about 100,000 instances on.
    """

    S: int = 75
    alpha: float = 2.0
    beta: float = 1.0
    prune: bool = True

    def __post_init__(self) -> None:
        param_checks.whole("S", self.S, 1, 100_000)
        param_checks.number("alpha", self.alpha, 0.0, 100.0)
        param_checks.number("beta", self.beta, 0.0, 100.0)
        param_checks.flag("prune", self.prune)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The training data as inverted lists, and their labels."""

    params: Params
    X: Csr
    Y: Csr
    lists: Lists

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels of the neighbors; labels that no neighbor has are left out."""
        k = min(k, self.Y.shape[1])
        labels = (self.Y.indptr, self.Y.indices)
        alpha_beta = (float(self.params.alpha), float(self.params.beta))

        def rank(first: int, end: int) -> Rankings:
            rows = X[first:end]
            search = self.search_buffers(int(np.diff(rows.indptr).max(initial=0)))
            ids, scores = np.zeros((end - first, k), np.int32), np.zeros((end - first, k))
            counts = rank_rows(
                self.lists,
                search,
                (rows.indptr, rows.indices, rows.data),
                (*labels, np.zeros(self.Y.shape[1])),
                alpha_beta,
                self.params.prune,
                ids,
                scores,
            )
            return of_padded(ids, scores, counts)

        return in_blocks(X.shape[0], ROWS, rank)

    def search_buffers(self, longest: int) -> Search:
        n, d = self.X.shape
        size = min(self.params.S, n)
        return Search(
            sums=np.zeros(n, np.uint64),
            touched=np.zeros(n + 1, np.uint32),
            block=np.zeros(neighbors.BLOCK),
            order=np.zeros(longest, np.int64),
            rest=np.zeros((2, longest + 1)),
            left=np.zeros(d, np.uint64),
            ids=np.zeros(size, np.int32),
            sims=np.zeros(size),
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the model as named arrays: the data and the parameters. Loading builds the lists again."""
        return {
            "params": np.array([self.params.S, self.params.alpha, self.params.beta, self.params.prune]),
            "shape": np.array([self.X.shape[1], self.Y.shape[1]], np.int64),
            "starts": self.X.indptr,
            "features": self.X.indices,
            "values": self.X.data,
            "label_starts": self.Y.indptr,
            "labels": self.Y.indices,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], d: int, n_labels: int) -> Model:
        if array_checks.require_array(arrays, "shape", np.int64, 2).tolist() != [d, n_labels]:
            raise Corrupted("the instances do not match the numbers of features and labels")
        # A posting has 32 bits for a value and a sum has 40 for a dot product; a repeated feature would count twice.
        array_checks.require_array(arrays, "values", np.float32, None, low=0.0, high=MAX_SQUARED_LENGTH)
        X = array_checks.require_rows(arrays, "starts", "features", "values", (None, d))
        Y = array_checks.require_rows(arrays, "label_starts", "labels", None, (X.shape[0], n_labels))
        if not X.has_canonical_format or (X.multiply(X).sum(axis=1) > MAX_SQUARED_LENGTH).any():
            raise Corrupted("the instances are not rows of length 1")
        size, alpha, beta, prune = array_checks.require_array(arrays, "params", np.float64, 4).tolist()
        return cls.build(Params(S=int(size), alpha=alpha, beta=beta, prune=bool(prune)), X, Y)

    @classmethod
    def build(cls, params: Params, X: Csr, Y: Csr) -> Model:
        """Build the inverted lists: O(nnz)."""
        exact = X.data.astype(np.float64)
        exact *= neighbors.SCALE
        values = np.rint(exact, out=exact).astype(np.uint64)
        del exact
        columns = sparse.csc_matrix(sparse.csr_matrix((values, X.indices, X.indptr), shape=X.shape))
        greatest = np.zeros(X.shape[1], np.uint64)
        filled = np.flatnonzero(np.diff(columns.indptr))
        if len(filled):
            greatest[filled] = np.maximum.reduceat(columns.data, columns.indptr[:-1][filled])
        starts, postings = columns.indptr.astype(np.int64), _packed(columns.indices, columns.data)
        del columns
        lists = Lists(
            starts=starts,
            postings=postings,
            greatest=greatest,
            sizes=np.diff(X.indptr).astype(np.int32),
            row_starts=X.indptr.astype(np.int64),
            rows=_packed(X.indices, values),
        )
        return cls(params, X, Y, lists)


def _packed(numbers: npt.NDArray[Any], values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    packed = numbers.astype(np.uint64)
    packed <<= neighbors.HALF
    packed |= values
    return packed


def check(data: Matrices, params: Params) -> None:
    if data.X.shape[0] < params.S != Params().S:
        raise ValueError(f"S must be at most the {data.X.shape[0]} instances that have labels and active features")


def fit(data: Matrices, params: Params, rng: np.random.Generator, progress: Progress) -> Model:
    """Build inverted lists of the training data; nothing is learned. Of equally near instances the later ones count."""
    progress("inverting", 0.0)
    return Model.build(params, data.X[::-1], data.Y[::-1])


def search(data: Matrices, rng: np.random.Generator, progress: Progress) -> Params:
    """Run the paper's search by P@1 on held-out rows: (alpha, beta) with S = mean labels of an instance, then S."""
    train, test = held_out(data, rng)
    model = fit(train, Params(S=1), rng, subrange(progress, 0.0, 0.1))
    n = train.X.shape[0]

    def rankings(params: Params) -> Rankings:
        return replace(model, params=params).rank(test.X, 5)

    mean = min(n, max(1, math.ceil(data.Y.nnz / data.X.shape[0])))
    first = [Params(S=mean, alpha=alpha, beta=beta) for alpha, beta in GRID]
    chosen = best(first, rankings, test, subrange(progress, 0.1, 0.6))
    second = [chosen, *(replace(chosen, S=min(size, n)) for size in NEIGHBORS)]
    return best(second, rankings, test, subrange(progress, 0.6, 1.0))
