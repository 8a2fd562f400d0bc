"""Nearest-neighbor search among dense vectors: exact, by a graph (usearch), or by locality-sensitive hashing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.errors import InvalidInstance
from abound_core.methods.neighbors.neighbors_kernels import sort_nearest
from abound_core.methods.neighbors.projection import Vectors
from abound_core.methods.neighbors.projection_kernels import keep_candidates, keep_tile
from abound_core.methods.training.progress import Progress, no_progress

TILE = 4096  # vectors multiplied with a block of queries at a time; the products fit in the cache

TABLES = 16  # most tables of locality-sensitive hashing

BUCKET = 64  # mean number of vectors with the same key in a table


ADDED = 1000  # vectors added to a graph between two progress reports


class Neighbors(NamedTuple):
    """The neighbors of m queries, nearest first."""

    # ids, sims: int32, float64, shape (m, k)
    ids: npt.NDArray[np.int32]
    sims: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]  # shape (m,); number of entries in use in each row: only similarities above 0 count

    @classmethod
    def none(cls, m: int, k: int) -> Neighbors:
        return cls(np.zeros((m, k), np.int32), np.zeros((m, k)), np.zeros(m, np.int64))

    def sort(self) -> Neighbors:
        for row in range(len(self.ids)):
            sort_nearest(self.ids[row], self.sims[row], self.counts[row])
        return self


def search_exact(queries: Vectors, vectors: Vectors, k: int, progress: Progress = no_progress) -> Neighbors:
    """Return the k vectors with the largest dot products, of equal ones the first; uses BLAS, a tile at a time.

    O(m n dim). Memory: ``TILE`` x m products.
    """
    found = Neighbors.none(len(queries), min(k, len(vectors)))
    room = np.empty((len(queries), min(TILE, len(vectors))), np.float32)
    for first in range(0, len(vectors), TILE):
        progress("neighbours", first / len(vectors))
        part = vectors[first : first + TILE]
        tile = room[:, : len(part)] if len(part) == room.shape[1] else np.empty((len(queries), len(part)), np.float32)
        np.matmul(queries, part.T, out=tile)
        keep_tile(tile, first, *found)
    return found.sort()


def tables_of(n: int, dim: int) -> tuple[int, int]:
    """Return the number of tables for ``n`` vectors, and of bits per key so that ``BUCKET`` vectors share a key."""
    bits = int(min(dim, 30, max(1, round(np.log2(max(n, 1) / BUCKET)))))
    return max(1, min(TABLES, dim // bits)), bits


def hash_keys(vectors: Vectors, n_stored: int) -> npt.NDArray[np.int32]:
    """Return the key of each vector in each table, shape (tables, n): signs of coordinates, none used in two tables."""
    n, dim = vectors.shape
    tables, bits = tables_of(n_stored, dim)
    powers = (1 << np.arange(bits)).astype(np.int32)
    keys = np.empty((tables, n), np.int32)
    for table in range(len(keys)):
        keys[table] = (vectors[:, table * bits : (table + 1) * bits] > 0) @ powers
    return keys


def search_hashed(
    queries: Vectors, vectors: Vectors, keys: npt.NDArray[np.int32], k: int, progress: Progress = no_progress
) -> Neighbors:
    """Return the k nearest of the vectors that share a key with the query in at least one table."""
    found = Neighbors.none(len(queries), min(k, len(vectors)))
    orders, sorted_keys = [], []
    for table, row in enumerate(keys):
        progress("neighbours", table / len(keys))
        orders.append(np.argsort(row, kind="stable"))
        sorted_keys.append(row[orders[-1]])
    candidates = [np.zeros(0, np.int32)]
    for wanted in hash_keys(queries, len(vectors)).T:
        buckets = [
            order[np.searchsorted(row, key) : np.searchsorted(row, key, "right")]
            for order, row, key in zip(orders, sorted_keys, wanted, strict=True)
        ]
        candidates.append(np.unique(np.concatenate(buckets)).astype(np.int32))
    starts = np.cumsum([len(part) for part in candidates])
    keep_candidates(queries, vectors, np.concatenate(candidates), starts, *found)
    return found.sort()


class Graph:
    """A navigable small-world graph over vectors of length 1 (Malkov and Yashunin, 2018), by the library usearch.

    ``saved`` is the output of ``to_bytes``. ``build`` adds the vectors on one thread, so that the same vectors give the
    same graph. Raises InvalidInstance if usearch is not installed.
    """

    def __init__(self, vectors: Vectors, saved: npt.NDArray[np.uint8] | None = None) -> None:
        try:
            from usearch.index import Index
        except ImportError as error:
            raise InvalidInstance("index=graph needs usearch: pip install abound[approximate]", "index") from error
        self._index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        if saved is not None:
            self._index.load(saved.tobytes())

    @classmethod
    def build(cls, vectors: Vectors, progress: Progress = no_progress) -> Graph:
        graph = cls(vectors)
        for first in range(0, len(vectors), ADDED):
            progress("graph", first / len(vectors))
            graph._add(first, vectors[first : first + ADDED])
        return graph

    def _add(self, first: int, vectors: Vectors) -> None:
        self._index.add(np.arange(first, first + len(vectors), dtype=np.uint64), vectors, threads=1)

    def to_bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(bytes(self._index.save() or b""), np.uint8)

    def search(self, queries: Vectors, k: int) -> Neighbors:
        """Return approximately the k nearest vectors."""
        m, k = len(queries), min(k, len(self._index))
        found = Neighbors.none(m, k)
        for row in range(m):
            matches = self._index.search(queries[row], k, threads=1)
            n = len(matches.keys)
            found.ids[row, :n], found.sims[row, :n] = matches.keys, 1.0 - np.asarray(matches.distances)
            found.counts[row] = np.count_nonzero(found.sims[row, :n] > 0)
        return found
