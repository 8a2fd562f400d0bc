"""The contexts of instances: the instances whose label vectors are nearest by cosine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from scipy import sparse

from abound_core.methods.embeddings.skip_grams_kernels import nearest_by_labels
from abound_core.methods.training.matrices import Csr
from abound_core.methods.training.progress import Progress

ROWS = 256

JITTER = 1e-6  # size of the random numbers that break ties between equally near instances


def nearest_by_label(Y: Csr, k: int, rng: np.random.Generator, progress: Progress) -> npt.NDArray[np.int32]:
    """Return the k nearest other instances that share a label with each instance, shape (n, k), padded with -1.

    Costs the sum of the squares of the label counts.
    """
    n = Y.shape[0]
    carriers = sparse.csr_matrix(Y.T)
    labels, back = (Y.indptr, Y.indices), (carriers.indptr, carriers.indices)
    lengths = np.sqrt(np.diff(Y.indptr).astype(np.float64))
    jitter = rng.random(n) * JITTER
    found = np.empty((n, k), np.int32)

    def block(first: int) -> None:
        progress("contexts", first / n)
        end = min(first + ROWS, n)
        nearest_by_labels(first, end, labels, back, lengths, jitter, found[first:end])

    Parallel(require="sharedmem")(delayed(block)(first) for first in range(0, n, ROWS))
    return found
