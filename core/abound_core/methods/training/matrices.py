"""Data sets for batch methods: two sparse matrices, with the names of their columns.

The order of columns depends on the names only: shorter names first, then by bytes, so that numbers are in numeric
order. The order of the instances therefore changes nothing but the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.instances.record import without_dense
from abound_core.instances.vocabulary import Vocabulary
from abound_core.instances.vocabulary_kernels import find_vector
from abound_core.measures import Ints, LabelSets

Csr = sparse.csr_matrix

VALUES_AT_ONCE = 2**16  # values of a matrix processed in a copy at a time


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Hierarchy:
    """Classes above the labels."""

    # int8, shape (L + m, L + m); 1 at (i, j): node j is a parent of node i. The first L nodes are the labels; the other
    # m are only above others
    parents: Csr

    def __post_init__(self) -> None:
        if self.parents.shape[0] != self.parents.shape[1]:
            raise ValueError("hierarchy must be a square matrix of nodes")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Matrices:
    """A data set as matrices.

    Raises
    ------
    ValueError
        Shapes do not match, a column is out of range, indices do not ascend, or a value is not finite or not > 0.
    """

    # float32, shape (n, d); values > 0. Rows have length 1 (l2) or are empty; indices ascend in a row and are unique
    X: Csr
    Y: Csr  # int8, shape (n, L); 1 for a label that the instance has; indices ascend in a row and are unique
    features: Vocabulary  # the id of a feature's key is its column
    labels: list[str]  # the label of each column of ``Y``
    text: bool = False  # whether any instance was a text
    # float32, shape (L, L), or None; counts of label co-occurrence, if known from more than ``Y``
    cooccurrence: Csr | None = None
    hierarchy: Hierarchy | None = None
    # the dense part of each vector (``abound_core/instances/record.py``), or empty; None if they were not kept. No
    # method reads them
    dense: list[bytes] | None = None
    # shape (n,), or None; whether each instance is the name of a label that was registered; None: none is
    names: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        n, n_labels = self.Y.shape
        if self.X.shape[0] != n:
            raise ValueError(f"X has {self.X.shape[0]} rows and Y {n}")
        if self.X.shape[1] != len(self.features) or n_labels != len(self.labels):
            raise ValueError("X and Y must have a column for each feature and each label")
        for name, matrix in (("X", self.X), ("Y", self.Y)):
            check_csr(name, matrix)
        if not np.all(np.isfinite(self.X.data)):
            raise ValueError("X has a value that is not finite")
        if self.X.nnz and self.X.data.min() <= 0:
            raise ValueError("X has a value that is not above 0")
        if self.cooccurrence is not None and self.cooccurrence.shape != (n_labels, n_labels):
            raise ValueError("cooccurrence must have a row and a column for each label")
        if self.hierarchy is not None and self.hierarchy.parents.shape[0] < n_labels:
            raise ValueError("hierarchy must have a node for each label")

    @property
    def keys(self) -> list[bytes]:
        return [self.features.key(column) for column in range(len(self.features))]

    @property
    def learnable(self) -> Ints:
        """Rows that have a label and an active feature, in order."""
        rows: Ints = np.flatnonzero((np.diff(self.X.indptr) > 0) & (np.diff(self.Y.indptr) > 0))
        return rows

    @property
    def label_sets(self) -> LabelSets:
        return LabelSets(self.Y.indptr.astype(np.int64), self.Y.indices.astype(np.int64))

    @property
    def label_counts(self) -> Ints:
        return np.bincount(self.Y.indices, minlength=self.Y.shape[1]).astype(np.int64)

    def rows(self, places: npt.NDArray[np.int64]) -> Matrices:
        dense = self.dense and [self.dense[place] for place in places.tolist()]
        names = None if self.names is None else self.names[places]
        return replace(self, X=self.X[places], Y=self.Y[places], dense=dense, names=names)

    def first(self, n: int) -> Matrices:
        """Return the first ``n`` instances, with all columns, without copying."""
        return self._between(0, n)

    def last(self, n: int) -> Matrices:
        """Return the last ``n`` instances, with all columns, without copying."""
        return self._between(self.X.shape[0] - n, self.X.shape[0])

    def hold_out(self, n: int) -> tuple[Matrices, Matrices]:
        """Return the data without its newest ``n`` instances that are not names, and these.

        Copies only if names are among them.
        """
        if self.names is None or not self.names[self.X.shape[0] - n :].any():
            return self.first(self.X.shape[0] - n), self.last(n)
        held = np.flatnonzero(~self.names)[-n:]
        return self.rows(np.delete(np.arange(self.X.shape[0]), held)), self.rows(held)

    def _between(self, first: int, end: int) -> Matrices:
        dense = self.dense and self.dense[first:end]
        names = None if self.names is None else self.names[first:end]
        return replace(self, X=_span(self.X, first, end), Y=_span(self.Y, first, end), dense=dense, names=names)

    def with_values(self, X: Csr) -> Matrices:
        return replace(self, X=X)


def check_csr(name: str, matrix: Csr) -> None:
    """Raise ValueError unless the rows of a matrix are well formed: columns in range, ascending and unique."""
    indptr, indices = matrix.indptr, matrix.indices
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < matrix.shape[1]:
        raise ValueError(f"{name} has a column out of range: it has {matrix.shape[1]}")
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    if len(falls) and not np.isin(falls, indptr, assume_unique=False).all():
        raise ValueError(f"{name} has a row whose columns do not ascend")


def vector_rows(vectors: Iterable[bytes], features: Vocabulary) -> Csr:
    """Return the rows of ``X`` for vectors in the columns of ``features``, without unknown features and dense parts."""
    ids, values, ends = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)], [0]
    for vector in map(without_dense, vectors):
        n = int.from_bytes(vector[:4], "little")
        ids.append(np.empty(n, np.int32))
        find_vector(features.arrays, vector, ids[-1])
        values.append(np.frombuffer(vector, "<f4", n, 4))
        ends.append(ends[-1] + n)
    shape = (len(ends) - 1, len(features))
    X = without_unknown(sparse.csr_matrix((np.concatenate(values), np.concatenate(ids), ends), shape=shape))
    X.sort_indices()
    l2_normalise(X)
    return X


def l2_normalise(X: Csr) -> None:
    """Scale every row that is not empty to length 1, in place; processes few rows at a time to save memory."""
    first, n = 0, X.shape[0]
    while first < n:
        start = int(X.indptr[first])
        end = max(first + 1, int(np.searchsorted(X.indptr, start + VALUES_AT_ONCE, side="right")) - 1)
        values, sizes = X.data[start : X.indptr[end]], np.diff(X.indptr[first : end + 1])
        # reduceat returns a wrong value for an empty row, which is then repeated zero times.
        squares = np.add.reduceat(np.append(values.astype(np.float64) ** 2, 0.0), X.indptr[first:end] - start)
        values /= np.repeat(np.sqrt(squares), sizes).astype(np.float32)
        first = end


def hide_labels(data: Matrices, share: float, rng: np.random.Generator) -> Matrices:
    """Remove a random share of all label assertions; labels keep their columns.

    The counts of label co-occurrence still cover all assertions (Wadbude et al., section "Coping with missing
    labels"). Instances may be left without any label.
    """
    Y = data.Y.astype(np.float32)
    together = sparse.csr_matrix(Y.T @ Y)
    hidden = rng.permutation(data.Y.nnz)[: round(share * data.Y.nnz)]
    kept = data.Y.copy()
    kept.data[hidden] = 0
    kept.eliminate_zeros()
    return replace(data, Y=kept, cooccurrence=together)


def _span(matrix: Csr, first: int, end: int) -> Csr:
    """Return rows ``first`` to ``end`` over the same arrays."""
    start, stop = int(matrix.indptr[first]), int(matrix.indptr[end])
    return sparse.csr_matrix(
        (matrix.data[start:stop], matrix.indices[start:stop], matrix.indptr[first : end + 1] - start),
        shape=(end - first, matrix.shape[1]),
    )


def without_unknown(X: Csr) -> Csr:
    """Return the matrix without the entries of column -1."""
    known = X.indices >= 0
    if known.all():
        return X
    before = np.concatenate(([0], np.cumsum(known)))
    return sparse.csr_matrix((X.data[known], X.indices[known], before[X.indptr]), shape=X.shape)
