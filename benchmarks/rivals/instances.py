"""A set's arrays as rivals take them, and the measures of what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

DEPTH = 100
"""Labels of an answer that are looked at."""


@dataclass(frozen=True)
class Part:
    """Instances: ``X`` (csr, float32) has their vectors; ``labels[i]`` the label ids of instance i."""

    X: sp.csr_matrix
    labels: list


@dataclass(frozen=True)
class Problem:
    """A training part in the order in which it is to be learned, and a test part.

    ``n_labels`` counts the labels of the training part; those of the test part that it lacks have higher ids. ``on``:
    each test instance is learned once it is ranked.
    """

    train: Part
    test: Part
    n_labels: int
    on: bool = False

    @property
    def single(self) -> bool:
        """Whether each training instance has one label."""
        return all(len(own) == 1 for own in self.train.labels)

    @cached_property
    def learned_on(self) -> list:
        """For each test instance what is learned of it: nothing, or its labels that the training part has."""
        return [[label for label in own if self.on and label < self.n_labels] for own in self.test.labels]


@dataclass
class Outcome:
    """What a rival did: seconds of the processor, the best labels of each test instance, bytes of the model on disk."""

    learning: float
    classifying: float
    answers: list
    model_bytes: int | None = None
    classified: int | None = None


def read(path: Path, on: bool) -> Problem:
    """The problem in a file that ``benchmarks.libraries`` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        n_features = int(max(arrays["train_ids"].max(), arrays["test_ids"].max())) + 1
        parts = []
        for name in ("train", "test"):
            starts, cuts = arrays[f"{name}_starts"], arrays[f"{name}_label_starts"]
            X = sp.csr_matrix(
                (arrays[f"{name}_values"], arrays[f"{name}_ids"], starts), shape=(len(starts) - 1, n_features)
            )
            parts.append(Part(X, [own.tolist() for own in np.split(arrays[f"{name}_label_ids"], cuts[1:-1])]))
        return Problem(*parts, int(arrays["train_label_ids"].max()) + 1, on)


def measures(answers: list, labels: list) -> dict:
    """R@1, R@5 and MRR over the instances with a label, P@5 over all; None for what a single answer cannot tell."""
    ranks, hits, single = [], 0, True
    for answer, own in zip(answers, labels, strict=False):
        true = set(own)
        single &= len(answer) <= 1
        hits += sum(label in true for label in answer[:5])
        if true:
            ranks.append(next((place for place, label in enumerate(answer, start=1) if label in true), 0))
    found = np.array(ranks)
    figures = {"R@1": float((found == 1).mean())}
    if single:
        return figures | {"R@5": None, "MRR": None, "P@5": None}
    return figures | {
        "R@5": float(((found > 0) & (found <= 5)).mean()),
        "MRR": float((1.0 / found[found > 0]).sum() / len(found)),
        "P@5": hits / (5 * len(answers)),
    }


def best(scores: np.ndarray, depth: int = DEPTH) -> list:
    """The best columns of each row of a matrix, best first."""
    k = min(depth, scores.shape[1])
    places = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1).tolist()
