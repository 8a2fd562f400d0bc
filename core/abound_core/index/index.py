"""The live index: feature -> classes, learned by FF with FSU (Madani, Connor and Greiner, JMLR 2009).

The state is a tuple of plain arrays (``abound_core.index.layout_kernels``). The class ``Index`` owns the arrays, grows
them, passes them to the kernels and names the results. Other kernels may take ``index.arrays`` and
``index.kernel_params`` too. They first ask ``learning_kernels.has_room``. If it is false, call ``make_room_for`` and
fetch ``index.arrays`` again, because arrays may have moved.

Nothing here is thread-safe: scores are accumulated in one shared array.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import check_arrays
from abound_core.errors import Corrupted
from abound_core.growth import longer
from abound_core.index import export_kernels as export
from abound_core.index import layout_kernels as layout
from abound_core.index import learning_kernels as learning
from abound_core.index import rank_kernels as retrieval
from abound_core.index import relabel_kernels as relabel
from abound_core.index import sls_rows_kernels as sls_rows
from abound_core.index.arrays import ARRAYS, SQUARES_ARRAYS, export_index, import_index
from abound_core.index.dense_rows import ARRAYS as ROWS_ARRAYS
from abound_core.index.dense_rows import DenseRows, Flows
from abound_core.index.layout_kernels import Feedback, IndexArrays
from abound_core.index.params import IndexParams
from abound_core.types import Ranking

ALL_CLASSES: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)  # allows every class

NO_IDS: npt.NDArray[np.int32] = np.zeros(0, np.int32)

MAX_UNITS = 2**32  # 8-byte units in the arena: a header has 32 bits for the position of its block


class Index:
    """The live index of one model, empty at first. Its arrays grow to the highest feature and class ids.

    After a change of ``params``, the connections of a feature follow the new ones from its next update on.
    """

    def __init__(self, params: IndexParams) -> None:
        self.params = params
        self._headers = np.zeros(2, np.uint64)
        self._arena = np.zeros(64, np.uint64)
        self._scores = np.zeros(1, np.float64)
        self._touched = np.zeros(2, np.int32)
        self._scratch = np.zeros(1024, np.uint64)
        self._counters = np.zeros(layout.N_COUNTERS, np.uint64)
        self._counters[layout.FREE :] = layout.NONE
        self._dirty = np.ones(1, np.uint8)
        self._hashes = np.zeros(1, np.uint64)
        self._digested = 0
        self._rows = DenseRows(self._counters)
        self._bind()

    @property
    def params(self) -> IndexParams:
        return self._params

    @params.setter
    def params(self, params: IndexParams) -> None:
        self._params = params
        self.kernel_params = params.for_kernels()

    def _bind(self) -> None:
        self._counters[layout.SKEW] = self._arena.ctypes.data % 64 // 8
        self.arrays = IndexArrays(
            self._headers,
            self._arena,
            self._scores,
            self._touched,
            self._scratch,
            self._counters,
            self._dirty,
        )

    def reader(self) -> Index:
        """Return the same index with its own memory for sums, for a thread that ranks while others rank too."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._scores, other._touched = np.zeros_like(self._scores), np.zeros_like(self._touched)
        other._scratch = np.zeros_like(self._scratch)
        other._bind()
        return other

    @property
    def n_features(self) -> int:
        """1 + the highest feature id that was learned."""
        return int(self._counters[layout.N_FEATURES])

    @property
    def n_connections(self) -> int:
        if self.in_rows:
            return self.n_features * self.n_classes
        return int(self._counters[layout.N_CONNECTIONS])

    @property
    def n_counted(self) -> int:
        """Instances counted; 0 with ``fsu``."""
        return int(self._counters[layout.N_COUNTED])

    @property
    def in_rows(self) -> bool:
        return self._rows.in_use

    @property
    def n_classes(self) -> int:
        """1 + the highest class id that was learned, if the index may use rows; else 0."""
        return self._rows.n_classes

    @property
    def most_classes(self) -> int | None:
        """Maximum number of classes: with ``sls`` a class id has 24 bits. None: no limit but that of int32."""
        return int(layout.CLASS_MASK) + 1 if self.params.update == "sls" else None

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in (*self.arrays, self._hashes)) + self._rows.n_bytes

    @property
    def growth_bytes(self) -> int:
        """Bytes that growth may need soon: arrays grow by an eighth; rows are created or left in one step."""
        return self.n_bytes // 8 + self._n_bytes_of_rows_ahead()

    @property
    def n_bytes_used(self) -> int:
        """Bytes of headers, rows and blocks up to the arena's front; free blocks count, the reserve does not."""
        return 16 * self.n_features + 8 * int(self._counters[layout.USED]) + self._rows.n_bytes_used

    def _n_bytes_of_rows_ahead(self) -> int:
        if not self.kernel_params.most_cells:
            return 0
        size = np.uint64(self.n_features), np.uint64(self.n_classes)
        many = int(self._counters[sls_rows.N_LABELS]) >= int(sls_rows.MANY_LABELS) * int(
            self._counters[layout.N_COUNTED]
        )
        if not (sls_rows.are_few(self.kernel_params, *size) and (many or self.in_rows)):
            return 0
        grown = sls_rows.are_few(self.kernel_params, size[0], np.uint64(2) * size[1])
        leaving = self.in_rows and not (many and grown)
        units = int(learning.units_to_leave(self.arrays, self.kernel_params, NO_IDS, np.uint64(1))) if leaving else 0
        return self._rows.growth_bytes + 8 * units

    def make_room(
        self, n_features: int, n_classes: int, n_labels: int = 1, n_units: int = 0, n_active: int = 0
    ) -> None:
        """Grow so that ids below these numbers can be learned. References to ``arrays`` are invalid afterwards.

        ``n_units`` of 8 bytes are needed after the arena's front; ``n_active`` is the maximum number of active features
        of an instance. Raises MemoryError above 32 GiB of connections, the limit of the positions in headers.
        """
        if int(self._counters[layout.USED]) + n_units > MAX_UNITS:
            raise MemoryError("an index holds at most 32 GiB of connections")
        n_scratch = int(learning.scratch_needed(self.kernel_params, np.uint64(n_active), np.uint64(n_labels)))
        before = self._lengths()
        self._headers = _grown(self._headers, 2 * n_features)
        self._scores = _grown(self._scores, n_classes)
        self._touched = _grown(self._touched, len(self._scores) + 1)
        self._scratch = _grown(self._scratch, n_scratch)
        self._arena = _grown(self._arena, int(self._counters[layout.USED]) + n_units, MAX_UNITS)
        if self._lengths() != before:
            n_pages, n_old = len(self._headers) // 512 + 1, len(self._dirty)
            self._dirty = _grown(self._dirty, n_pages)
            self._dirty[n_old:] = 1
            self._hashes = _grown(self._hashes, n_pages)
            self._bind()

    def _lengths(self) -> list[int]:
        return [len(array) for array in (self._headers, self._scores, self._touched, self._scratch, self._arena)]

    def make_room_for(self, ids: npt.NDArray[np.int32], class_ids: npt.NDArray[np.int32]) -> None:
        params = self.kernel_params
        self.make_room(int(ids.max(initial=-1)) + 1, int(class_ids.max(initial=-1)) + 1, len(class_ids))
        m = np.uint64(learning.new_classes(params, np.uint64(len(class_ids))))
        units = int(learning.units_needed(self.arrays, self.kernel_params, ids, m))
        if params.most_cells:
            units = self._make_room_for_form(ids, class_ids, m, units)
        self.make_room(0, 0, len(class_ids), units, len(ids))

    def _make_room_for_form(
        self, ids: npt.NDArray[np.int32], class_ids: npt.NDArray[np.int32], m: np.uint64, units: int
    ) -> int:
        """Allocate the rows that an instance needs; return its units, including those for rows that become lists."""
        lacking, n_units = learning.room_for_form(self.arrays, self.kernel_params, ids, class_ids, m)
        n_features = max(int(ids.max(initial=-1)) + 1, self.n_features)
        n_classes = max(int(class_ids.max(initial=-1)) + 1, self.n_classes)
        if lacking:
            self._rows.make_room(n_features, n_classes)
        elif not self.in_rows and not sls_rows.are_few(self.kernel_params, np.uint64(n_features), np.uint64(n_classes)):
            self._rows.release()
        return max(units, int(n_units))

    def learn(
        self,
        ids: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int32],
        count_seen: bool = True,
        feedback: Feedback | None = None,
    ) -> tuple[int, bool]:
        """Learn one instance by FF with FSU (section 4).

        Parameters
        ----------
        ids, values : int32, float32, shape (l,)
            Active features, unique, and their values, > 0.
        class_ids : int32, shape (c,)
            Classes, unique; ids may be new. Without ``feedback`` all are true.
        count_seen : bool
            Whether to count the features as seen once more. Pass False in all passes but the first.
        feedback : Feedback, optional
            Which classes are true, and the weight.

        Returns
        -------
        rank : int
            Rank of the best true class before learning, from 1; 0 if none was retrieved.
        updated : bool
            Whether connections were updated.
        """
        feedback = feedback or Feedback(len(class_ids), 0, 1.0)
        if not learning.has_room(self.arrays, self.kernel_params, ids, class_ids):
            if min(ids.min(initial=0), class_ids.min(initial=0)) < 0:
                raise ValueError("ids of features and classes must not be negative")
            self.make_room_for(ids, class_ids)
        values = values.copy()
        ranks = np.empty(feedback.n_true, np.int32)
        updated = learning.learn_feedback(
            self.arrays, self.kernel_params, ids, values, class_ids, feedback, count_seen, ranks
        )
        return int(min((rank for rank in ranks.tolist() if rank), default=0)), bool(updated)

    def rank(
        self,
        ids: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        k: int,
        mask: npt.NDArray[np.uint8] | None = None,
    ) -> Ranking:
        """Return the k best classes for an instance (section 3.2), or fewer if fewer have a score.

        Parameters
        ----------
        ids, values : int32, float32, shape (l,)
            Active features and their values; ids that are negative or not learned are skipped.
        k : int
        mask : uint8, shape (n_classes,)
            1 for a class that may be ranked.
        """
        k = min(k, len(self._scores))
        class_ids, scores = np.empty(k, np.int32), np.empty(k, np.float64)
        allowed = ALL_CLASSES if mask is None else mask
        values = self._writable(values)
        n = retrieval.rank_classes(self.arrays, self.kernel_params, ids, values, allowed, class_ids, scores)
        return Ranking(class_ids[:n], scores[:n])

    def explain(
        self, ids: npt.NDArray[np.int32], values: npt.NDArray[np.float32], class_id: int
    ) -> npt.NDArray[np.float64]:
        """Return the contribution of each feature to the score of a class, shape (l,); 0 without a voting connection.

        The score is the sum of the contributions and ``intercept``.
        """
        contributions = np.empty(len(ids), np.float64)
        retrieval.explain_score(self.arrays, self.kernel_params, ids, values.copy(), class_id, contributions)
        return contributions

    def intercept(self, class_id: int) -> float:
        return self._rows.intercept(class_id)

    def _writable(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return values.copy() if self.kernel_params.squares or not values.flags.writeable else values

    def forget_feature(self, feature_id: int) -> None:
        if 0 <= feature_id < self.n_features:
            sls_rows.forget(self.arrays, np.uint64(feature_id))

    def digest_pages(self, limit: int) -> bool:
        """Digest up to ``limit`` changed pages of 256 features; return whether no changed page is left."""
        done = export.digest_dirty(self.arrays, self._hashes, self._digested, limit)
        n_pages = -(-self.n_features // 256)
        self._digested = int(done) if done < n_pages else 0
        return self._digested == 0 and not self._dirty[:n_pages].any()

    def digest(self) -> bytes:
        """Return 16 bytes over the logical state: totals, times seen and connections of all features."""
        while not self.digest_pages(2**62):
            pass
        n_pages = -(-self.n_features // 256)
        counted = self._counters[layout.N_COUNTED].tobytes() if self.kernel_params.squares else b""
        in_rows = self._rows.digest_bytes() if self.kernel_params.most_cells else b""
        return hashlib.blake2b(
            self.n_features.to_bytes(8, "little") + counted + self._hashes[:n_pages].tobytes() + in_rows, digest_size=16
        ).digest()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        of_rows = self._rows.to_arrays() if self.kernel_params.most_cells else {}
        return export_index(self.arrays, self.kernel_params.squares) | of_rows

    def move_classes(self, flows: Flows, n_classes: int) -> None:
        """Move the connections of some classes to others.

        ``flows`` has for each class that moves its targets, below ``n_classes``, each with its part.
        """
        sizes = np.zeros(n_classes + 1, np.int64)
        sizes[[class_id + 1 for class_id in flows]] = [len(flow) for flow in flows.values()]
        moves = [move for class_id in sorted(flows) for move in flows[class_id].items()]
        targets, parts = (np.array(part) for part in zip(*moves, strict=True))
        units = 1
        feature = 0
        while units:
            given = np.cumsum(sizes), targets, parts
            feature, units = relabel.move_connections(self.arrays, self.kernel_params, given, feature)
            self.make_room(0, 0, 0, units)
        if self.kernel_params.most_cells:
            self._rows.move_classes(flows)
            self.make_room(0, self.n_classes)
            self._dirty[:] = 1

    @classmethod
    def from_arrays(cls, params: IndexParams, arrays: dict[str, npt.NDArray[Any]], n_classes: int = 2**31) -> Index:
        index, is_squares = cls(params), params.update == "sls"
        has_rows = bool(index.kernel_params.most_cells)
        specs = (SQUARES_ARRAYS if is_squares else ARRAYS) | (ROWS_ARRAYS if has_rows else {})
        arrays = check_arrays("an index", arrays, specs, classes=n_classes)
        lengths, class_ids = arrays["lengths"], arrays["class_ids"]
        if int(lengths.sum(dtype=np.int64)) != len(class_ids):
            raise Corrupted("the lengths of the index do not add up to its connections")
        highest = int(class_ids.max()) if len(class_ids) else -1
        n_units = int(export.units_to_import(lengths, class_ids, arrays.get("counts", np.zeros(0))))
        index.make_room(len(lengths), highest + 1, 1, n_units)
        import_index(index.arrays, arrays, is_squares)
        if has_rows:
            index._rows.load_arrays(arrays, len(lengths), len(class_ids), highest)
            if index.in_rows:
                index.make_room(0, index.n_classes)
        index._arena.resize(int(index._counters[layout.USED]) + 64, refcheck=False)  # shrink from the worst-case size
        index._bind()
        return index


def _grown(array: npt.NDArray[Any], n: int, most: int = 2**63) -> npt.NDArray[Any]:
    """Return an array of ``n`` to ``most`` elements: the same, or one an eighth longer with zeros at its end."""
    return array if n <= len(array) else longer(array, min(most, max(n, len(array) + len(array) // 8 + 64)))


def warmup(update: Literal["fsu", "sls"]) -> None:
    """Compile the index kernels of one update rule for arrays, or load them from numba's cache."""
    params = IndexParams(w_min=0.01, d_max=25, margin=0.0, leak=True, rating=True, memory=None, update=update)
    ids, values, one = np.arange(2, dtype=np.int32), np.ones(2, np.float32), np.zeros(1, np.int32)
    plain = Index(params)
    plain.make_room(2, 1)
    plain.rank(ids, values, 1)
    plain.explain(ids, values, 0)
    plain.digest()
    Index.from_arrays(params, plain.to_arrays()).forget_feature(0)
    plain.move_classes({0: {0: 1.0}}, 1)
    relabel.count_connections(plain.arrays, 0, 0, np.zeros(1, np.int64))
    sls_rows.forget(plain.arrays, np.uint64(0))
    if update == "fsu":
        plain.learn(ids, values, ids)
        return
    small = Index(replace(params, rows=True))
    while not small.in_rows:
        small.learn(ids, values, ids)
    small.digest()
    learning.units_to_leave(small.arrays, small.kernel_params, NO_IDS, np.uint64(1))
    small.learn(ids, values, one + int(sls_rows.MOST_IN_ROW))  # too many classes for rows
    small.digest()
    Index.from_arrays(small.params, small.to_arrays())
