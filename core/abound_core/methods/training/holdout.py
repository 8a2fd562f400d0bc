"""Choice of parameters on a held-out part of the training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from abound_core.errors import InvalidInstance
from abound_core.measures import Propensity, Rankings, evaluate
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import Progress

P = TypeVar("P")

SHARE = 0.2
MOST = 5000
"""Share and maximum number of held-out rows."""


def held_out(data: Matrices, rng: np.random.Generator) -> tuple[Matrices, Matrices]:
    """Split into rows to fit on and to measure on, at random. Raises InvalidInstance if no label occurs twice."""
    n = data.X.shape[0]
    if data.label_counts.max(initial=0) < 2:
        raise InvalidInstance("params=auto needs labels that at least two instances have", "params")
    order = rng.permutation(n)
    size = max(1, min(MOST, round(SHARE * n)))
    return data.rows(np.sort(order[size:])), data.rows(np.sort(order[:size]))


def best(
    candidates: Sequence[P], rankings: Callable[[P], Rankings], test: Matrices, progress: Progress, measure: str = "P@1"
) -> P:
    """Return the candidate with the best rankings of the held-out rows, of equal ones the first."""
    weights = Propensity().weights(test.label_counts, test.X.shape[0])
    scores = []
    for number, candidate in enumerate(candidates):
        progress(f"trying {number + 1} of {len(candidates)}", number / len(candidates))
        scores.append(evaluate(rankings(candidate), test.label_sets, weights)[measure] or 0.0)
    return candidates[int(np.argmax(scores))]
