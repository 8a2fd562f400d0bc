"""Collection of instances into matrices, one at a time: from files, from log records, or from a data set in memory."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.errors import InvalidInstance, Malformed
from abound_core.instances.codes_kernels import WINNERS
from abound_core.instances.data_formats import Dataset, DatasetInstance
from abound_core.instances.record import (
    add_dense,
    details_of,
    pack_labels,
    pack_vector,
    record_shape,
    unpack_labels,
    without_dense,
)
from abound_core.instances.vectorizer import Vectorizer
from abound_core.instances.vocabulary import Vocabulary
from abound_core.instances.vocabulary_kernels import find_vector, intern_vector
from abound_core.limits import DATASET_LIMITS, Limits
from abound_core.methods.training.matrices import Matrices, l2_normalise, without_unknown
from abound_core.model.label_changes import LabelChanges, decode_request, planned
from abound_core.model.label_details import DetailsTable
from abound_core.types import START


class MatrixBuilder:
    """A builder of matrices: each instance is added as a vector and then discarded.

    Holds 8 bytes per active feature, 4 per label assertion and 16 per instance, and every name once. ``matrices``
    works in place and briefly needs 8 more bytes per active feature. Takes about 2 microseconds per
    instance and 15 nanoseconds per feature.

    With ``like``, its columns are used: unknown features are left out, and new labels get columns after the known ones.
    Dense parts are kept if they have at most ``dense_bytes`` together.
    """

    def __init__(self, secret: tuple[int, int], like: Matrices | None = None, dense_bytes: int = 0) -> None:
        self._secret = secret
        self._like = like
        self._features = Vocabulary(secret) if like is None else like.features
        self._ids = np.empty(2**16, np.int32)
        self._values = np.empty(2**16, np.float32)
        self._labels = np.empty(2**12, np.int32)
        self._ends = np.zeros((2**12, 2), np.int64)
        self._n = 0
        self._label_ids: dict[str, int] = {}  # found since the last change of labels; -1: retired
        self.follow(Vocabulary(secret), LabelChanges())
        for label in [] if like is None else like.labels:
            self._numbers.add(label.encode())
        self._names = DetailsTable()
        self._name_rows: list[int] = []
        self._text = False
        self._dense: list[bytes] | None = [] if dense_bytes else None
        self._dense_bytes = dense_bytes

    def follow(self, numbers: Vocabulary, changes: LabelChanges) -> None:
        """Begin with the labels of an earlier state, and with what became of them. Both will change."""
        self._numbers, self._changes = numbers, changes

    def _column(self, label: str) -> int:
        column = self._label_ids.get(label)
        if column is None:
            column = self._changes.of(self._numbers.add(label.encode()))
            column = self._label_ids[label] = -1 if self._changes.is_retired(column) else column
        return column

    def add(self, vector: bytes, labels: Sequence[str], *, text: bool = False) -> None:
        """Add an instance; ``text``: whether it was a text. The dense part does not go into the matrices."""
        self._text |= text
        whole, vector = vector, without_dense(vector)
        if self._dense is not None:
            self._dense.append(whole[len(vector) :])
            self._dense_bytes -= len(self._dense[-1])
            if self._dense_bytes < 0:
                self._dense = None
        at, label_at = self._ends[self._n].tolist()
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
        for column in dict.fromkeys(map(self._column, labels)):
            if column < 0:
                continue
            if label_at == len(self._labels):
                self._labels.resize(2 * label_at, refcheck=False)
            self._labels[label_at] = column
            label_at += 1
        self._n += 1
        if self._n == len(self._ends):
            self._ends.resize((self._n + self._n // 2, 2), refcheck=False)
        self._ends[self._n] = at + n, label_at

    def add_record(self, records: bytes, start: int) -> None:
        """Add the record (``abound_core/instances/record.py``) that begins at this byte of ``records``.

        Only its true labels count; a record without one, or whose labels are not all, is left out. A record that
        registers a label is an instance of it, unless it has no features, or the same vector as the label's last
        registration. Labels that are changed later get the names that they have in the end.
        """
        shape = record_shape(records, start)
        second = shape.label_lengths_at - 4
        labels, vector = unpack_labels(records, second), records[start:second]
        if shape.details_at < 0:
            if not shape.partial and any(self._column(label) >= 0 for label in labels):
                self.add(vector, labels)
            return
        if not labels:
            self._change_labels(details_of(records, shape))
            return
        column = self._column(labels[0])
        if shape.n_features and self._names.is_new(column, vector):
            self._name_rows.append(self._n)
            self.add(vector, labels)
        self._names.put(column, b"", vector)

    def _change_labels(self, request: bytes) -> None:
        asked = decode_request(request)
        plan, made = planned(self._numbers, self._changes, asked.changes, START)
        if made:
            self._changes.commit(self._numbers, plan, made, START, asked)
            for number in plan.merged:
                self._names.move(number, plan.class_of(number))
            self._label_ids.clear()

    def __len__(self) -> int:
        return self._n

    def matrices(self) -> Matrices:
        """Return the matrices. The builder cannot be used afterwards."""
        ends = self._ends[: self._n + 1]
        n_values, n_assertions = ends[-1].tolist()
        self._ids.resize(n_values, refcheck=False)
        self._values.resize(n_values, refcheck=False)
        n_known = 0 if self._like is None else len(self._like.labels)
        columns_of = np.arange(self._numbers.n_ids, dtype=np.int32)
        columns_of[: len(self._changes.class_of)] = self._changes.class_of
        assigned = columns_of[self._labels[:n_assertions]]
        used = np.unique(assigned[assigned >= n_known]).tolist()
        keys = {column: self._numbers.key(column) for column in [*range(n_known), *used]}
        order = [*range(n_known), *sorted(used, key=lambda column: (len(keys[column]), keys[column]))]
        features, columns = (
            (self._features, None) if self._like is not None else _in_order(self._features, self._secret)
        )
        X = sparse.csr_matrix((self._values, self._ids, ends[:, 0]), shape=(len(ends) - 1, len(features)), copy=False)
        if columns is None:
            X = without_unknown(X)
        else:
            X.indices = columns[X.indices]
        X.sort_indices()
        l2_normalise(X)
        places = np.empty(len(columns_of), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        ones = np.ones(n_assertions, np.int8)
        Y = sparse.csr_matrix((ones, places[assigned], ends[:, 1]), shape=(len(ends) - 1, len(order)))
        Y.sort_indices()
        if self._changes:  # two labels of an instance may have become one
            Y.sum_duplicates()
            Y.data[:] = 1
        ordered = [keys[column].decode() for column in order]
        names = None
        if self._name_rows:
            names = np.zeros(self._n, np.bool_)
            names[self._name_rows] = True
        return Matrices(X=X, Y=Y, features=features, labels=ordered, text=self._text, dense=self._dense, names=names)


def gather(
    instances: Iterable[DatasetInstance],
    vectorizer: Vectorizer,
    limits: Limits,
    secret: tuple[int, int],
    like: Matrices | None = None,
    dense_bytes: int = 0,
) -> Matrices:
    """Build matrices from a stream of instances without keeping the instances; see ``MatrixBuilder``.

    Raises Malformed for an invalid instance; the message starts with its location.
    """
    gathering = MatrixBuilder(secret, like, dense_bytes)
    for instance in instances:
        labels = vectorizer.labels(instance.complete_labels)
        try:
            if labels:
                pack_labels(labels, limits)
            vector = vectorizer.vectorize(instance.features, instance.text, instance.dense)
        except InvalidInstance as error:
            raise Malformed(f"{instance.location}: {error.field}: {error}") from error
        gathering.add(vector, labels, text=instance.text is not None)
    return gathering.matrices()


def of_dataset(dataset: Dataset, secret: tuple[int, int], like: Matrices | None = None) -> Matrices:
    gathering = MatrixBuilder(secret, like)
    starts, ids = dataset.labels
    for row, vector in enumerate(dataset.vectors):
        gathering.add(vector, [dataset.names[i] for i in ids[starts[row] : starts[row + 1]]])
    return gathering.matrices()


def to_dataset(data: Matrices, boolean: bool) -> Dataset:
    """Return the instances as the live index reads them, with their dense parts if they were kept.

    Each vector is made when it is read, so that the data set takes no memory beside the matrices. ``boolean``: whether
    the model is Boolean; all values are then 1.
    """
    sets, dense = data.label_sets, data.dense

    def vector(row: int) -> bytes:
        start, end = data.X.indptr[row : row + 2]
        keys = [data.features.key(column) for column in data.X.indices[start:end].tolist()]
        values = np.ones(end - start, np.float32) if boolean else data.X.data[start:end]
        if not dense or not dense[row]:
            return pack_vector(keys, values)
        d, value = struct.unpack_from("<If", dense[row])
        if not boolean:  # the codes of the dense part count in the norm
            values = values * np.float32(math.sqrt(max(0.0, 1.0 - WINNERS * value**2)))
        return add_dense(pack_vector(keys, values), dense[row][8 : 8 + d], value)

    def labels(row: int) -> bytes:
        names = [data.labels[column] for column in sets.ids[sets.starts[row] : sets.starts[row + 1]].tolist()]
        return pack_labels(names, DATASET_LIMITS) if names else b""

    n = data.X.shape[0]
    return Dataset(vectors=_Computed(n, vector), label_parts=_Computed(n, labels), labels=sets, names=data.labels)


class _Computed(Sequence[bytes]):
    """A sequence of ``n`` items, each made when it is read."""

    def __init__(self, n: int, make: Callable[[int], bytes]) -> None:
        self._places = range(n)
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._places[place])


def _in_order(features: Vocabulary, secret: tuple[int, int]) -> tuple[Vocabulary, npt.NDArray[np.int32]]:
    """Return a vocabulary with the same keys in the order of columns, and the column of each old id."""
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
