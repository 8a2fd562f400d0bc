"""Accuracy of proportions estimated by the FSU: Madani, Connor and Greiner (JMLR 2009), appendix B.

A single feature sees a stream of classes; its weights estimate how often each class occurs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from abound_core.config import ModelConfig
from abound_core.index.index import Index
from abound_core.index.params import IndexParams

Floats = npt.NDArray[np.float64]

OBSERVATIONS = 1000
"""Length of a stream."""


def estimated_weights(stream: npt.NDArray[np.int32], n_classes: int, w_min: float) -> Floats:
    """Return the weights of a feature after a stream of classes, shape (n_classes,)."""
    index = Index(IndexParams.of(ModelConfig(w_min=w_min, margin=1e9)))
    feature, value = np.zeros(1, np.int32), np.ones(1, np.float32)
    for place in range(len(stream)):
        index.learn(feature, value, stream[place : place + 1])
    arrays = index.to_arrays()
    weights = np.zeros(n_classes)
    weights[arrays["class_ids"]] = arrays["counts"] / arrays["totals"][0]
    return weights


def peaked_distribution(p: float, n_classes: int) -> Floats:
    """Return probabilities: ``p`` for one class, the rest in equal parts for the others."""
    return np.array([p, *[(1.0 - p) / (n_classes - 1)] * (n_classes - 1)]) if n_classes > 1 else np.ones(1)


def stick_breaking_distribution(rng: np.random.Generator) -> Floats:
    """Return random probabilities that sum to 1, drawn one after the other from [0, 1].

    The first draw that exceeds what is left becomes what is left, and is the last one.
    """
    shares: list[float] = []
    left = 1.0
    while left > 0.0:
        share = min(float(rng.random()), left)
        shares.append(share)
        left -= share
    return np.array(shares) / sum(shares)


def deviation(p: float, n_classes: int, w_min: float, rng: np.random.Generator) -> float:
    """Return |estimate - p| / p for the class with the highest estimate (figure 21), of one stream."""
    truth = peaked_distribution(p, n_classes)
    stream = rng.choice(len(truth), OBSERVATIONS, p=truth).astype(np.int32)
    return abs(float(estimated_weights(stream, len(truth), w_min).max()) - p) / p


def distances(w_min: float, rng: np.random.Generator) -> tuple[float, float]:
    """Return the l1 and the largest distance between estimate and truth (figure 22), of one stream."""
    truth = stick_breaking_distribution(rng)
    stream = rng.choice(len(truth), OBSERVATIONS, p=truth).astype(np.int32)
    away = np.abs(estimated_weights(stream, len(truth), w_min) - truth)
    return float(away.sum()), float(away.max())


def mean(of: Callable[[np.random.Generator], float], trials: int, rng: np.random.Generator) -> float:
    """Return the mean over trials."""
    return float(np.mean([of(rng) for _ in range(trials)]))
