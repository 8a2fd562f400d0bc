"""Where batch work is done changes nothing that it gives."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from abound.processes.parallel import parallel
from abound_core.methods.embeddings.ridge import Ridge
from abound_core.methods.training.progress import no_progress


def test_least_squares_are_the_same_on_any_number_of_threads() -> None:
    """BLAS adds up in another order where it has more threads, so it has one."""
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(sparse.random(1200, 900, 0.02, random_state=rng, dtype=np.float32))
    targets = rng.standard_normal((1200, 20))
    found = []
    for threads in (1, 2, 4):
        with parallel(None, threads):
            found.append(Ridge(X, 1.0).fit(targets, no_progress))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
