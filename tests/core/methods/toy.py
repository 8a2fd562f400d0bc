"""A small data set that every method can learn, and the same seen in other ways."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from abound_core.instances.record import pack_vector, record_ends
from abound_core.methods import fitted, registry
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import no_progress

SECRET = (1, 2)
N_CLASSES = 6

_SMALL = {"dim": 10, "learners": 2, "clusters": 2}
RAW: dict[str, dict[str, Any]] = {
    "exmlds1": _SMALL,
    "exmlds2": _SMALL | {"epochs": 2},
    "exmlds3": _SMALL,
    "exmlds_joint": _SMALL | {"epochs": 1},
    "ogeec": {"dim": 20, "learners": 2},
    "unweighted": {"tolerance": 1},
    "xr_linear": {"leaf": 2},
}
"""Parameters that fit within a moment, for tests that do not look at how good a model is."""


def made(n: int, seed: int, order: np.ndarray | None = None) -> Matrices:
    """Instances of one to three classes: five words tell a class, thirty tell nothing.

    ``order``: of the rows.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        classes = rng.choice(N_CLASSES, size=[1, 1, 2, 3][i % 4], replace=False)
        words = {f"c{c}w{w}": 1.0 + rng.random() for c in classes for w in rng.choice(5, 3, replace=False)}
        words |= {f"noise{w}": 0.2 + rng.random() for w in rng.choice(30, 5, replace=False)}
        rows.append((words, [f"class {c}" for c in classes]))
    gathering = MatrixBuilder(SECRET)
    for i in range(n) if order is None else order:
        words, labels = rows[i]
        values = np.array(list(words.values()), np.float32)
        vector = pack_vector([name.encode() for name in words], values / np.linalg.norm(values))
        gathering.add(vector, labels)
    return gathering.matrices()


def from_log(records: Sequence[bytes], **options: int) -> Matrices:
    gathering, payload = MatrixBuilder(SECRET, **options), b"".join(records)
    for start in record_ends(payload, len(records)).tolist()[:-1]:
        gathering.add_record(payload, start)
    return gathering.matrices()


def fit(method: str, data: Matrices, seed: int = 5, use_idf: bool | None = None, **given: Any) -> FittedMethod:
    params = registry.params_of(method, given)
    return fitted.fit(method, data, params, np.random.default_rng(seed), no_progress, use_idf=use_idf)


def queries(data: Matrices, n: int, seed: int) -> sparse.csr_matrix:
    """Rows of other instances in the columns of ``data``; the last one is empty."""
    fresh = made(n, seed)
    columns = np.array([data.features.find(key) for key in fresh.keys])
    dense = np.zeros((n + 1, len(data.features)), np.float32)
    dense[:n, columns[columns >= 0]] = fresh.X.toarray()[:, columns >= 0]
    return sparse.csr_matrix(dense)
