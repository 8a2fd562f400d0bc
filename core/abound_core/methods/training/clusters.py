"""Clusters of instances by cosine. No cluster exceeds twice the mean size, so the cost of a fit in each is bounded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from abound_core.measures import Ints
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress

Centres = npt.NDArray[np.float32]

ROUNDS = 2  # small, so that different seeds give different clusters, as an ensemble needs

HALVING_ROUNDS = 20

ROWS = 2**16  # rows whose similarities to all centres are in memory at a time

DEFAULT_SIZE = 5_000  # instances of a cluster

MAX_OVER_MEAN = 2  # most instances of a cluster, relative to the mean


def number_of(clusters: int, n: int) -> int:
    """Return the number of clusters: the given one, or, for 0, two and more for every 5,000 instances."""
    return clusters or max(2, round(n / DEFAULT_SIZE))


def largest(clusters: int, n: int) -> int:
    c = number_of(clusters, n)
    return n if c == 1 else min(n, -(-MAX_OVER_MEAN * n // c))


def find_clusters(X: Csr, clusters: int, rng: np.random.Generator, progress: Progress) -> tuple[Centres, Ints]:
    """Find clusters of rows of length 1 by spherical k-means.

    Centres have length 1; there are fewer than requested if clusters became empty. The cluster of each row is that of
    the nearest centre that is not full.
    """
    n = X.shape[0]
    c = min(number_of(clusters, n), n)
    centres = unit(X[np.sort(rng.choice(n, c, replace=False))].toarray())
    for turn in range(ROUNDS if c > 1 else 1):
        progress("clusters", turn / ROUNDS)
        centres = unit(_sums(X, nearest(X, centres, progress), centres))
    places = _not_too_full(X, centres, largest(clusters, n), progress)
    used, places = np.unique(places, return_inverse=True)
    return centres[used], places.astype(np.int64)


def nearest(X: Csr, centres: Centres, progress: Progress = lambda stage, fraction: None) -> Ints:
    """Return the nearest centre of each row, of equal ones the first."""
    places = np.zeros(X.shape[0], np.int64)
    for first in range(0, X.shape[0] if len(centres) > 1 else 0, ROWS):
        progress("clusters", first / X.shape[0])
        places[first : first + ROWS] = np.argmax(X[first : first + ROWS] @ centres.T, axis=1)
    return places


def _sums(X: Csr, places: Ints, centres: Centres) -> Centres:
    """Return the sum of the rows of each cluster; an empty cluster keeps its old centre."""
    n = X.shape[0]
    shape = (len(centres), n)
    member = sparse.csr_matrix((np.ones(n, np.float32), (places, np.arange(n))), shape=shape)
    sums: Centres = (member @ X).toarray()
    empty = np.bincount(places, minlength=len(centres)) == 0
    sums[empty] = centres[empty]
    return sums


def _not_too_full(X: Csr, centres: Centres, most: int, progress: Progress) -> Ints:
    """Return the nearest centre with free capacity for each row; the rows nearest to a centre take precedence."""
    n, c = X.shape[0], len(centres)
    if c == 1:
        return np.zeros(n, np.int64)
    sims = np.empty((n, c), np.float32)
    for first in range(0, n, ROWS):
        progress("clusters", 1.0)
        sims[first : first + ROWS] = X[first : first + ROWS] @ centres.T
    places: Ints = np.argmax(sims, axis=1).astype(np.int64)
    while True:
        full = np.flatnonzero(np.bincount(places, minlength=c) > most)
        if not len(full):
            return places
        for cluster in full.tolist():
            members = np.flatnonzero(places == cluster)
            leaving = members[np.argsort(-sims[members, cluster], kind="stable")[most:]]
            sims[leaving, cluster] = -np.inf
            places[leaving] = np.argmax(sims[leaving], axis=1)


def halves(X: Csr, rng: np.random.Generator, progress: Progress) -> list[Ints]:
    """Divide two or more rows of length 1 into halves by balanced spherical 2-means; return their places."""
    n, middle = X.shape[0], (X.shape[0] + 1) // 2
    centres = X[rng.choice(n, 2, replace=False)].toarray()
    order = np.arange(n)
    for _ in range(HALVING_ROUNDS):
        progress("clusters", 0.0)
        before, order = order, np.argsort(-(X @ (centres[0] - centres[1])), kind="stable")
        if np.array_equal(np.sort(before[:middle]), np.sort(order[:middle])):
            break
        centres = unit(np.stack([np.asarray(X[part].sum(axis=0)).ravel() for part in np.split(order, [middle])]))
    return [np.sort(part) for part in np.split(order, [middle])]


def unit(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Scale the rows to length 1; rows of zeros stay unchanged."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0), np.float32)
