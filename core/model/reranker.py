"""The re-ranker of a model: how the index's best classes are ordered for an answer, learned from the stream.

A model with ``rerank`` has five weights, a guard that turns the re-ranker off where it does harm, and for each class
the sum of the vectors of its instances. All of it is part of the model's state: the same log gives the same numbers on
every replica. ``core/kernels/model/reranker.py`` has the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound.core.kernels.model.reranker import (
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
    VARIANCE,
    is_trusted,
    put_means,
)

FIRST_WEIGHTS = (2.0, 3.5, 5.0, -0.5, 0.0)
"""The weights before the first event."""

FIRST_ALLOWANCE = 5.0
"""Reciprocal ranks by which the re-ranker may trail the index at the beginning and still be used."""

TERMS = ("score", "log score", "similarity to the class", "frequency", "class without a vector")
"""The terms of a class, in words."""

MOST_NUMBER = 2049
"""Most that a vector adds to a number of a sum, in absolute value, with a halving."""

Floats = npt.NDArray[np.float64]


class RerankerArrays(NamedTuple):
    """The arrays that the kernels use; all but ``ranks`` are empty unless the model re-ranks.

    Attributes
    ----------
    weights : float64 array, shape (terms,)
    curvature : float64 array, shape (terms, terms)
        The lower triangle of H.
    guard : float64 array, shape (N_GUARD,)
    counts : int64 array, shape (classes,)
        Instances with a vector, by class.
    sums : int32 array, shape (classes, d)
        Sums of their vectors.
    means : int16 array, shape (classes, d)
        The sums, scaled to one length.
    dirty : uint8 array, shape (pages,)
        1 for a page of classes that changed since its last digest.
    ranks : int32 array, shape (labels,)
        Ranks of the true labels of the record that is applied; not part of the state.
    """

    weights: Floats
    curvature: Floats
    guard: Floats
    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int32]
    means: npt.NDArray[np.int16]
    dirty: npt.NDArray[np.uint8]
    ranks: npt.NDArray[np.int32]


class Reranker:
    """The re-ranker of a model; changed only by the apply kernel.

    Parameters
    ----------
    on : bool
        False: the model does not re-rank, and the state is empty.
    """

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
        """Bytes of memory, including the reserve for growth."""
        return sum(array.nbytes for array in (self.arrays.counts, self.arrays.sums, self.arrays.means))

    @property
    def growth_bytes(self) -> int:
        """Bytes that the arrays need when they grow next: the old arrays may stay until they are copied."""
        n, d = self.arrays.sums.shape
        return _roomy(n + 1) * (8 + 6 * d) if self.on else 0

    def make_room(self, n_classes: int, n_labels: int, d: int) -> None:
        """Grow to ``n_classes``, ``n_labels`` of a record and dimension ``d`` (0: not known yet); arrays may move."""
        if not self.on:
            return
        if d != self.arrays.sums.shape[1]:
            shape = len(self.arrays.counts), d
            self.arrays = self.arrays._replace(sums=np.zeros(shape, np.int32), means=np.zeros(shape, np.int16))
        _, _, _, counts, sums, means, dirty, ranks = self.arrays
        if n_classes > len(counts):
            n = _roomy(n_classes)
            counts.resize(n, refcheck=False)
            sums.resize((n, d), refcheck=False)
            means.resize((n, d), refcheck=False)
            dirty.resize(n // PAGE, refcheck=False)
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
        """Return the state as named arrays, copies, none unless the model re-ranks."""
        if not self.on:
            return {}
        n = int(np.flatnonzero(self.arrays.counts).max(initial=-1)) + 1
        weights, curvature, guard, counts, sums, *_ = self.arrays
        return {
            "weights": weights.copy(),
            "curvature": curvature.copy(),
            "guard": guard.copy(),
            "counts": counts[:n].copy(),
            "sums": sums[:n].copy(),
        }

    @classmethod
    def from_arrays(cls, on: bool, arrays: Mapping[str, npt.NDArray[Any]], n_classes: int, d: int) -> Reranker:
        """Load the output of ``to_arrays`` for a model with ``n_classes`` and vectors of ``d`` numbers.

        Raises ValueError if it is invalid.
        """
        fresh = cls(on)
        if set(arrays) != set(fresh.to_arrays()):
            raise ValueError(f"a re-ranker needs the arrays {sorted(fresh.to_arrays())}, not {sorted(arrays)}")
        if not on:
            return fresh
        for name in ("weights", "curvature", "guard"):
            own, given = getattr(fresh.arrays, name), arrays[name]
            if given.shape != own.shape or given.dtype != own.dtype or not np.all(np.isfinite(given)):
                raise ValueError(f"re-ranker {name} must have dtype {own.dtype}, shape {own.shape} and finite numbers")
            own[...] = given
        if fresh.arrays.guard[VARIANCE:].min() < 0:
            raise ValueError("the guard of a re-ranker has negative counts")
        counts, sums = arrays["counts"], arrays["sums"]
        n = len(counts)
        if (
            counts.dtype != np.int64
            or counts.ndim != 1
            or n > n_classes
            or np.any((counts < 0) | (counts >= MOST_COUNTED))
        ):
            raise ValueError("the counts of a re-ranker do not fit its classes")
        if sums.dtype != np.int32 or sums.shape != (n, d if n else sums.shape[-1]):
            raise ValueError("the sums of a re-ranker do not fit its classes or the dimension of the vectors")
        if np.any(np.abs(sums.astype(np.int64)) > (counts * MOST_NUMBER)[:, None]):
            raise ValueError("a sum of a re-ranker is too large for its count")
        fresh.make_room(n, 0, d)
        fresh.arrays.counts[:n], fresh.arrays.sums[:n] = counts, sums
        put_means(fresh.arrays, n, d)
        fresh.arrays.dirty[:] = fresh.arrays.counts.reshape(-1, PAGE).any(axis=1)
        return fresh

    def digest_pages(self, limit: int) -> bool:
        """Digest up to ``limit`` changed pages of classes; return whether no changed page is left."""
        changed = np.flatnonzero(self.arrays.dirty)
        for page in changed[:limit].tolist():
            part = slice(page * PAGE, (page + 1) * PAGE)
            hashed = hashlib.blake2b(self.arrays.counts[part].tobytes(), digest_size=16)
            hashed.update(self.arrays.sums[part].tobytes())
            self._hashes[page] = hashed.digest()
            self.arrays.dirty[page] = 0
        return len(changed) <= limit

    def digest_bytes(self) -> bytes:
        """Return the bytes that the digest of a model covers; empty unless the model re-ranks."""
        self.digest_pages(2**62)
        pages = [page.to_bytes(8, "little") + self._hashes[page] for page in sorted(self._hashes)]
        weights, curvature, guard, *_ = self.arrays
        return b"".join([weights.tobytes(), curvature.tobytes(), guard.tobytes(), *pages])


def _roomy(n_classes: int) -> int:
    """Return a number of classes in whole pages, with a reserve of an eighth."""
    return -(-(n_classes + n_classes // 8) // PAGE) * PAGE
