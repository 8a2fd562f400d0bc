"""What a batch method learns from: a data set as two sparse matrices, with the names of their columns.

Columns stand in an order that the data decide and not their rows: shorter names first, then by their bytes, so that
numbers stand in the order of numbers. So the order of the instances changes nothing but the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from core.dataset import Dataset, Instance
from core.errors import InvalidInstance, Malformed
from core.kernels.keys import find_vector, intern_vector
from core.limits import Limits
from core.metrics import Ints, LabelSets
from core.record import pack_labels
from core.vocabulary import Vocabulary

Csr = sparse.csr_matrix
"""Compressed sparse rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a data set is, for the arithmetic of memory before anything starts.

    Attributes
    ----------
    n, d, L : int
        Instances, features, labels.
    nnz : int
        Active features of all instances together.
    assertions : int
        Labels of all instances together.
    """

    n: int
    d: int
    L: int
    nnz: int
    assertions: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Hierarchy:
    """Classes above the labels.

    Attributes
    ----------
    parents : csr_matrix of int8, shape (L + m, L + m)
        1 at (i, j): node j is a parent of node i. The first L nodes are the labels, m more stand only above others.
    """

    parents: Csr

    def __post_init__(self) -> None:
        if self.parents.shape[0] != self.parents.shape[1]:
            raise ValueError("hierarchy must be a square matrix of nodes")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Matrices:
    """A data set as matrices.

    Attributes
    ----------
    X : csr_matrix of float32, shape (n, d)
        Values > 0. Rows have length 1 (l2) or are empty; indices ascend in a row and come once.
    Y : csr_matrix of int8, shape (n, L)
        1 for a label that the instance has; indices ascend in a row and come once.
    features : Vocabulary
        The id of a feature's key is its column.
    labels : list of str
        Of each column of ``Y``.
    text : bool
        Whether some instance came as a text.
    cooccurrence : csr_matrix of float32, shape (L, L), or None
        How often two labels come together, where that is known beyond ``Y``.
    hierarchy : Hierarchy or None

    Raises
    ------
    ValueError
        Shapes do not fit, a column is out of range, indices do not ascend, a value is not finite or not > 0.
    """

    X: Csr
    Y: Csr
    features: Vocabulary
    labels: list[str]
    text: bool = False
    cooccurrence: Csr | None = None
    hierarchy: Hierarchy | None = None

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
    def sizes(self) -> Sizes:
        """Instances, features, labels and how many of them there are."""
        return Sizes(n=self.X.shape[0], d=self.X.shape[1], L=self.Y.shape[1], nnz=self.X.nnz, assertions=self.Y.nnz)

    @property
    def keys(self) -> list[bytes]:
        """The feature key of each column of ``X``."""
        return [self.features.key(column) for column in range(len(self.features))]

    @property
    def learnable(self) -> Ints:
        """Rows that have a label and an active feature, in order."""
        rows: Ints = np.flatnonzero((np.diff(self.X.indptr) > 0) & (np.diff(self.Y.indptr) > 0))
        return rows

    @property
    def label_sets(self) -> LabelSets:
        """The labels of each instance, as columns of ``Y``."""
        return LabelSets(self.Y.indptr.astype(np.int64), self.Y.indices.astype(np.int64))

    @property
    def label_counts(self) -> Ints:
        """Instances that carry each label, shape (L,)."""
        return np.bincount(self.Y.indices, minlength=self.Y.shape[1]).astype(np.int64)

    def rows(self, places: npt.NDArray[np.int64]) -> Matrices:
        """Some of the instances, with all columns."""
        return replace(self, X=self.X[places], Y=self.Y[places])

    def with_values(self, X: Csr) -> Matrices:
        """The same with other values, for the same instances and features."""
        return replace(self, X=X)


def check_csr(name: str, matrix: Csr) -> None:
    """ValueError unless the rows of a matrix are well formed: columns in range, ascending, each once."""
    indptr, indices = matrix.indptr, matrix.indices
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < matrix.shape[1]:
        raise ValueError(f"{name} has a column out of range: it has {matrix.shape[1]}")
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    if len(falls) and not np.isin(falls, indptr, assume_unique=False).all():
        raise ValueError(f"{name} has a row whose columns do not ascend")


class Gathering:
    """Instances on their way to matrices: each is taken as a vector and forgotten.

    Holds 8 bytes an active feature, 4 a label assertion and 12 an instance, besides every name once; ``matrices`` works
    in place and needs 8 bytes an active feature more for a moment. About 2 microseconds and 15 nanoseconds a feature
    for each instance.

    Parameters
    ----------
    secret : (int, int)
        Of the key table; does not change the outcome.
    like : Matrices or None
        Take the columns of these: features that they lack are left out, labels that they lack get columns behind
        theirs. None: columns for everything that comes.
    """

    def __init__(self, secret: tuple[int, int], like: Matrices | None = None) -> None:
        self._secret = secret
        self._like = like
        self._features = Vocabulary(secret) if like is None else like.features
        self._ids = np.empty(2**16, np.int32)
        self._values = np.empty(2**16, np.float32)
        self._labels = np.empty(2**12, np.int32)
        self._ends: list[tuple[int, int]] = [(0, 0)]
        known = [] if like is None else like.labels
        self._label_ids = {label: column for column, label in enumerate(known)}
        self._text = False

    def add(self, vector: bytes, labels: Sequence[str], *, text: bool = False) -> None:
        """Take an instance: its vector (``core/record.py``), its labels, and whether it came as a text."""
        self._text |= text
        at, label_at = self._ends[-1]
        n = int.from_bytes(vector[:4], "little")
        if at + n > len(self._ids):
            size = max(at + n, len(self._ids) + len(self._ids) // 2)
            self._ids.resize(size, refcheck=False)
            self._values.resize(size, refcheck=False)
        ids = self._ids[at : at + n]
        if self._like is None:
            self._features.make_room(n, len(vector) - 4 - 6 * n)
            intern_vector(self._features.arrays, vector, 0, ids)
        else:
            find_vector(self._features.arrays, vector, ids)
        self._values[at : at + n] = np.frombuffer(vector, "<f4", n, 4)
        for label in dict.fromkeys(labels):
            if label_at == len(self._labels):
                self._labels.resize(2 * label_at, refcheck=False)
            self._labels[label_at] = self._label_ids.setdefault(label, len(self._label_ids))
            label_at += 1
        self._ends.append((at + n, label_at))

    def matrices(self) -> Matrices:
        """What was gathered. The gathering is used up."""
        ends = np.array(self._ends, np.int64)
        n_values, n_assertions = ends[-1]
        self._ids.resize(n_values, refcheck=False)
        self._values.resize(n_values, refcheck=False)
        labels = list(self._label_ids)
        known = 0 if self._like is None else len(self._like.labels)
        order = [*range(known), *sorted(range(known, len(labels)), key=lambda i: (len(labels[i].encode()), labels[i]))]
        features, columns = (
            (self._features, None) if self._like is not None else _in_order(self._features, self._secret)
        )
        X = sparse.csr_matrix((self._values, self._ids, ends[:, 0]), shape=(len(ends) - 1, len(features)), copy=False)
        if columns is None:
            X = _without_unknown(X)
        else:
            X.indices = columns[X.indices]
        X.sort_indices()
        l2_normalise(X)
        places = np.empty(len(labels), np.int32)
        places[order] = np.arange(len(labels), dtype=np.int32)
        ones = np.ones(n_assertions, np.int8)
        Y = sparse.csr_matrix(
            (ones, places[self._labels[:n_assertions]], ends[:, 1]), shape=(len(ends) - 1, len(labels))
        )
        Y.sort_indices()
        return Matrices(X=X, Y=Y, features=features, labels=[labels[i] for i in order], text=self._text)


def gather(
    instances: Iterable[Instance],
    vectorize: Callable[[bytes | None, str | None], bytes],
    limits: Limits,
    secret: tuple[int, int],
    like: Matrices | None = None,
) -> Matrices:
    """The matrices of a stream of instances, of which nothing else is held.

    Parameters
    ----------
    instances : iterable of Instance
    vectorize : callable
        ``Vectorizer.vectorize``.
    limits : Limits
        Of the labels.
    secret, like
        See ``Gathering``.

    Raises
    ------
    Malformed
        An instance is not valid; the sentence starts with its place.
    """
    gathering = Gathering(secret, like)
    checked: set[tuple[str, ...]] = {()}
    for instance in instances:
        try:
            if instance.labels not in checked:
                pack_labels(instance.labels, limits)
                checked.add(instance.labels)
            vector = vectorize(instance.features, instance.text)
        except InvalidInstance as error:
            raise Malformed(f"{instance.place}: {error.field}: {error}") from error
        gathering.add(vector, instance.labels, text=instance.text is not None)
    return gathering.matrices()


def of_dataset(dataset: Dataset, secret: tuple[int, int], like: Matrices | None = None) -> Matrices:
    """The matrices of a data set that is held vectorized already."""
    gathering = Gathering(secret, like)
    starts, ids = dataset.labels
    for row, vector in enumerate(dataset.vectors):
        gathering.add(vector, [dataset.names[i] for i in ids[starts[row] : starts[row + 1]]])
    return gathering.matrices()


def vector_rows(vectors: Iterable[bytes], features: Vocabulary) -> Csr:
    """The rows of ``X`` for vectors, in the columns of a vocabulary; unknown features are left out."""
    ids, values, ends = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)], [0]
    for vector in vectors:
        n = int.from_bytes(vector[:4], "little")
        ids.append(np.empty(n, np.int32))
        find_vector(features.arrays, vector, ids[-1])
        values.append(np.frombuffer(vector, "<f4", n, 4))
        ends.append(ends[-1] + n)
    shape = (len(ends) - 1, len(features))
    X = _without_unknown(sparse.csr_matrix((np.concatenate(values), np.concatenate(ids), ends), shape=shape))
    X.sort_indices()
    l2_normalise(X)
    return X


def l2_normalise(X: Csr) -> None:
    """Give every row that is not empty the length 1, in place."""
    sizes = np.diff(X.indptr)
    # reduceat gives something else for an empty row, which is then repeated no times.
    squares = np.add.reduceat(np.append(X.data.astype(np.float64) ** 2, 0.0), X.indptr[:-1]) if X.shape[0] else sizes
    X.data /= np.repeat(np.sqrt(squares), sizes).astype(np.float32)


def hide_labels(data: Matrices, share: float, rng: np.random.Generator) -> Matrices:
    """Forget a share of all label assertions, each with the same chance; labels keep their columns.

    How often two labels come together is still told, from all of them (Wadbude et al., section "Coping with missing
    labels"). Instances may be left without any label.

    Parameters
    ----------
    data : Matrices
    share : float
        0 to 1.
    rng : Generator
    """
    Y = data.Y.astype(np.float32)
    together = sparse.csr_matrix(Y.T @ Y)
    hidden = rng.permutation(data.Y.nnz)[: round(share * data.Y.nnz)]
    kept = data.Y.copy()
    kept.data[hidden] = 0
    kept.eliminate_zeros()
    return replace(data, Y=kept, cooccurrence=together)


def _in_order(features: Vocabulary, secret: tuple[int, int]) -> tuple[Vocabulary, npt.NDArray[np.int32]]:
    """A vocabulary with the same keys in the order of columns, and the column of each old id."""
    parts = features.to_arrays()
    ends = np.cumsum(parts["lengths"], dtype=np.int64)
    data = parts["bytes"].tobytes()
    starts = (ends - parts["lengths"]).tolist()
    keys = [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    order = sorted(range(len(keys)), key=lambda i: (len(keys[i]), keys[i]))
    columns = np.empty(len(keys), np.int32)
    columns[order] = np.arange(len(keys), dtype=np.int32)
    joined = np.frombuffer(b"".join([keys[i] for i in order]), np.uint8)
    arrays = {"lengths": parts["lengths"][order], "bytes": joined, "free": np.zeros(0, np.int32)}
    return Vocabulary.from_arrays(secret, arrays), columns


def _without_unknown(X: Csr) -> Csr:
    """Without the entries of column -1."""
    known = X.indices >= 0
    if known.all():
        return X
    before = np.concatenate(([0], np.cumsum(known)))
    return sparse.csr_matrix((X.data[known], X.indices[known], before[X.indptr]), shape=X.shape)
