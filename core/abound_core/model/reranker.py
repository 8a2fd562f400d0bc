"""The re-ranker of a model: how the index's best classes are ordered for an answer, learned from the stream.

A model with ``rerank`` has five weights, a guard that turns the re-ranker off where it does harm, and for each class
the sum of the vectors of its instances. All of it is part of the model's state: the same log gives the same numbers on
every replica. ``abound_core/model/reranker_kernels.py`` has the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.array_spec import MOST_EVENTS, ArraySpec, check_arrays
from abound_core.errors import Corrupted
from abound_core.index.dense_rows import Flows
from abound_core.model.calibration_kernels import MOST_CURVATURE, MOST_LOGIT_WEIGHT
from abound_core.model.reranker_kernels import (
    ALLOWANCE,
    COUNTED,
    HITS,
    INDEX_HITS,
    INDEX_RECIPROCAL,
    MOST_COUNTED,
    N_GUARD,
    PAGE,
    RECIPROCAL,
    RIDGE,
    is_trusted,
    put_means,
)

FIRST_WEIGHTS = (2.0, 3.5, 5.0, -0.5, 0.0)  # before the first event

FIRST_ALLOWANCE = 5.0  # hits at rank 1 by which it may trail the index at the beginning and still be used

TERMS = ("score", "log score", "similarity to the class", "frequency", "class without a vector")  # of a class, in words

MOST_LENGTH = 2144.0
"""Most that a vector adds to the length of a sum: ``UNIT``, and half for each of up to 2,048 numbers that are rounded
once and halved at times.
"""

Floats = npt.NDArray[np.float64]

ARRAYS = {
    "weights": ArraySpec(np.float64, ("terms",), -MOST_LOGIT_WEIGHT, MOST_LOGIT_WEIGHT),
    "curvature": ArraySpec(np.float64, ("terms", "terms"), -MOST_CURVATURE, MOST_CURVATURE),
    "guard": ArraySpec(np.float64, (N_GUARD,), -MOST_EVENTS, MOST_EVENTS),
    "counts": ArraySpec(np.int64, ("classes",), 0, MOST_COUNTED - 1),
    "sums": ArraySpec(np.int32, ("classes with vectors", "d")),
}
"""The arrays of ``Reranker.to_arrays``, up to the last class with a vector; without re-ranking there are none."""


class RerankerArrays(NamedTuple):
    """The arrays that the kernels use; all but ``ranks`` are empty unless the model re-ranks."""

    weights: Floats  # shape (terms,)
    curvature: Floats  # shape (terms, terms); the lower triangle of H
    guard: Floats  # shape (N_GUARD,)
    counts: npt.NDArray[np.int64]  # shape (classes,); instances with a vector, by class
    sums: npt.NDArray[np.int32]  # shape (rows, d); sums of their vectors. Row 0 is zero
    means: npt.NDArray[np.int16]  # shape (rows, d); the sums, scaled to one length
    rows: npt.NDArray[np.int32]  # shape (classes,); the row of each class, given with its first vector; 0 before
    used: npt.NDArray[np.int64]  # shape (1,); the next row to give
    dirty: npt.NDArray[np.uint8]  # shape (pages,); 1 for a page of classes that changed since its last digest
    # shape (labels,); ranks of the true labels of the record that is applied; not part of the state
    ranks: npt.NDArray[np.int32]


class Reranker:
    """The re-ranker of a model; changed only by the apply kernel. If not ``on``, the state is empty."""

    def __init__(self, on: bool) -> None:
        self.on = on
        weights = FIRST_WEIGHTS if on else ()
        self.arrays = RerankerArrays(
            np.array(weights),
            RIDGE * np.eye(len(weights)),
            np.zeros(N_GUARD if on else 0),
            np.zeros(0, np.int64),
            np.zeros((0, 0), np.int32),
            np.zeros((0, 0), np.int16),
            np.zeros(0, np.int32),
            np.ones(1, np.int64),
            np.zeros(0, np.uint8),
            np.zeros(0, np.int32),
        )
        if on:
            self.arrays.guard[ALLOWANCE] = FIRST_ALLOWANCE
        self._hashes: dict[int, bytes] = {}

    @property
    def is_used(self) -> bool:
        """Whether the order of the re-ranker is used, and not that of the index."""
        return self.on and bool(is_trusted.py_func(self.arrays.guard))

    @property
    def n_bytes(self) -> int:
        _, _, _, counts, sums, means, rows, *_ = self.arrays
        return counts.nbytes + sums.nbytes + means.nbytes + rows.nbytes

    @property
    def growth_bytes(self) -> int:
        """Bytes that the arrays need when they grow next: the old arrays may stay until they are copied."""
        (n, d), n_classes = self.arrays.sums.shape, len(self.arrays.counts)
        return 12 * _roomy(n_classes + 1) + 6 * d * _roomy(n + 1) if self.on else 0

    def first_bytes(self, n_classes: int) -> int:
        """Return the bytes that the first vector of a model with ``n_classes`` needs if it starts the re-ranker."""
        return 0 if self.on else 12 * _roomy(n_classes)

    def make_room(self, n_classes: int, n_labels: int, n_vectors: int, d: int) -> None:
        """Grow to these numbers; ``d`` is the dimension of vectors, 0 if it is not known yet. Arrays may move."""
        if not self.on:
            return
        if d != self.arrays.sums.shape[1]:
            self.arrays = self.arrays._replace(sums=np.zeros((0, d), np.int32), means=np.zeros((0, d), np.int16))
        _, _, _, counts, sums, means, rows, used, dirty, ranks = self.arrays
        if n_classes > len(counts):
            n = _roomy(n_classes)
            counts.resize(n, refcheck=False)
            rows.resize(n, refcheck=False)
            dirty.resize(n // PAGE, refcheck=False)
        if int(used[0]) + n_vectors > len(sums):
            n = _roomy(int(used[0]) + n_vectors)
            sums.resize((n, d), refcheck=False)
            means.resize((n, d), refcheck=False)
        if n_labels > len(ranks):
            ranks.resize(n_labels, refcheck=False)

    def figures(self) -> dict[str, Any] | None:
        """Return the weights in words and the gain over the index alone; None unless the model re-ranks.

        Each instance with a vector and a true label is counted before it is learned. Reciprocal ranks are of the best
        50 classes.
        """
        if not self.on:
            return None
        guard = self.arrays.guard
        n = int(guard[COUNTED])
        share = {"R@1": (HITS, INDEX_HITS), "MRR": (RECIPROCAL, INDEX_RECIPROCAL)}
        return {
            "used": self.is_used,
            "weights": dict(zip(TERMS, self.arrays.weights.tolist(), strict=True)),
            "n": n,
            "answers": {name: float(guard[own]) / n if n else None for name, (own, _) in share.items()},
            "index": {name: float(guard[index]) / n if n else None for name, (_, index) in share.items()},
        }

    # --- as arrays

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        if not self.on:
            return {}
        n = int(np.flatnonzero(self.arrays.counts).max(initial=-1)) + 1
        weights, curvature, guard, counts, sums, _, rows, *_ = self.arrays
        return {
            "weights": weights.copy(),
            "curvature": curvature.copy(),
            "guard": guard.copy(),
            "counts": counts[:n].copy(),
            "sums": sums[rows[:n][rows[:n] > 0]],
        }

    @classmethod
    def from_arrays(cls, on: bool, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int, d: int) -> Reranker:
        fresh = cls(on)
        given = check_arrays("a re-ranker", arrays, ARRAYS if on else {}, terms=len(fresh.arrays.weights))
        if not on:
            return fresh
        counts, sums, n = given["counts"], given["sums"], len(given["counts"])
        if given["guard"][ALLOWANCE:].min() < 0:
            raise Corrupted("the guard of a re-ranker has negative counts")
        class_ids = np.flatnonzero(counts)
        n_sums = len(class_ids)
        if n > n_classes or len(sums) != n_sums or (n_sums and sums.shape[1] != d):
            raise Corrupted("the sums of a re-ranker do not fit its classes or the dimension of the vectors")
        if np.any(np.einsum("ij,ij->i", sums, sums, dtype=np.float64) > (counts[class_ids] * MOST_LENGTH) ** 2):
            raise Corrupted("a sum of a re-ranker is too large for its count")
        for name in ("weights", "curvature", "guard"):
            getattr(fresh.arrays, name)[...] = given[name]
        fresh.make_room(n, 0, n_sums, d)
        fresh.arrays.counts[:n], fresh.arrays.sums[1 : n_sums + 1] = counts, sums
        fresh.arrays.rows[class_ids], fresh.arrays.used[0] = np.arange(1, n_sums + 1), n_sums + 1
        put_means(fresh.arrays, np.arange(n_sums + 1, dtype=np.int32), d)
        fresh.arrays.dirty[:] = fresh.arrays.counts.reshape(-1, PAGE).any(axis=1)
        return fresh

    def move_classes(self, flows: Flows, n_classes: int, d: int) -> None:
        """Let the vectors of some classes count for others."""
        self.make_room(n_classes, 0, sum(map(len, flows.values())), d)
        _, _, _, counts, sums, _, rows, used, dirty, _ = self.arrays
        given = [(class_id, int(counts[class_id]), sums[rows[class_id]].astype(np.int64)) for class_id in flows]
        counts[list(flows)], rows[list(flows)] = 0, 0
        changed = set(flows)
        for class_id, count, total in given:
            for target in flows[class_id] if count else ():
                if not rows[target]:
                    rows[target], sums[used[0]] = used[0], 0
                    used[0] += 1
                n, together = int(counts[target]) + count, sums[rows[target]] + total
                while n >= MOST_COUNTED:
                    n, together = n >> 1, together >> 1
                counts[target], sums[rows[target]] = n, together
                changed.add(target)
        put_means(self.arrays, rows[list(changed)], d)
        dirty[[class_id // PAGE for class_id in changed]] = 1

    def digest_pages(self, limit: int) -> bool:
        """Digest up to ``limit`` changed pages of classes; return whether no changed page is left."""
        changed = np.flatnonzero(self.arrays.dirty)
        for page in changed[:limit].tolist():
            part = slice(page * PAGE, (page + 1) * PAGE)
            hashed = hashlib.blake2b(self.arrays.counts[part].tobytes(), digest_size=16)
            hashed.update(self.arrays.sums[self.arrays.rows[part]].tobytes())
            self._hashes[page] = hashed.digest()
            self.arrays.dirty[page] = 0
        return len(changed) <= limit

    def digest_bytes(self) -> bytes:
        self.digest_pages(2**62)
        pages = [page.to_bytes(8, "little") + self._hashes[page] for page in sorted(self._hashes)]
        weights, curvature, guard, *_ = self.arrays
        return b"".join([weights.tobytes(), curvature.tobytes(), guard.tobytes(), *pages])


def _roomy(n_classes: int) -> int:
    return -(-(n_classes + n_classes // 8) // PAGE) * PAGE
