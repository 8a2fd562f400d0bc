"""Compilation of the kernels of all batch methods.

Each method is fitted on a few instances and ranks some, with its defaults and with the parameters that need other
kernels. The compiled kernels then serve all uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from abound_core.instances.record import pack_vector
from abound_core.methods import fitted, registry
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import no_progress

INSTANCES, CLASSES, FEATURES = 120, 6, 40
FITS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.METHODS),
    ("one_vs_rest", {"kind": "perceptron"}),
    ("ogeec", {"index": "lsh"}),
]


def warmup() -> None:
    data = small_data_set()
    for name, params in FITS:
        made = fitted.fit(name, data, registry.params_of(name, params), np.random.default_rng(0), no_progress)
        made.model.rank(data.X[:3], 5)


def small_data_set() -> Matrices:
    rng = np.random.default_rng(0)
    gathering = MatrixBuilder((1, 2))
    for i in range(INSTANCES):
        words = {f"class{i % CLASSES}word{w}": 1.0 for w in range(3)}
        words |= {f"noise{w}": 0.5 for w in rng.choice(FEATURES, 5, replace=False)}
        values = np.array(list(words.values()), np.float32)
        vector = pack_vector([word.encode() for word in words], values / np.linalg.norm(values))
        gathering.add(vector, [f"class {i % CLASSES}", f"class {(i + 1) % CLASSES}"][: 1 + i % 2])
    return gathering.matrices()
