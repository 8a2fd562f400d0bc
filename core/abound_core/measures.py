"""Measures of rankings against true labels, for single-label and multi-label data.

``R@k``, ``MRR`` and ``HR`` are those of Madani, Connor and Greiner (JMLR 2009), section 5. They use the rank k_x of
the best ranked true label and are averaged **over the instances that have a true label**. ``P@k``, ``nDCG@k`` and
their propensity-scored forms ``PSP@k`` and ``PSnDCG@k`` are those of the Extreme Classification repository (Jain,
Prabhu and Varma, KDD 2016). They are averaged over **all** instances; an instance without true labels counts as 0.
``macro R@5`` shows rare labels: the share of a label's instances that have it among their best five, averaged over
the labels that are true for some instance, each label counting alike.

Labels are ids: whole numbers >= 0 that rankings, true labels and training counts share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound_core.rank_sums import RankSums

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRECISION_AT = (1, 3, 5)  # the k of the multi-label measures


class LabelSets(NamedTuple):
    """The label sets of n instances in one ragged array."""

    starts: Ints  # shape (n + 1,); instance i has ``ids[starts[i]:starts[i + 1]]``
    ids: Ints  # shape (starts[n],); unique within an instance, in any order

    @classmethod
    def of(cls, sets: Iterable[Sequence[int]]) -> LabelSets:
        """Build from one sequence of ids per instance; drop duplicate ids of an instance."""
        unique = [list(dict.fromkeys(ids)) for ids in sets]
        return cls(*_joined(unique))

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


class Rankings(NamedTuple):
    """The ranked labels of n instances in one ragged array: best first, ties by label id."""

    starts: Ints  # shape (n + 1,)
    ids: Ints  # shape (starts[n],); unique within an instance
    scores: Floats  # shape (starts[n],)

    @classmethod
    def of(cls, starts: Ints, ids: Ints, scores: Floats) -> Rankings:
        """Sort the labels of each instance by score, highest first, then by label id. Scores must not be NaN."""
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        order = np.lexsort((ids, -scores, rows))
        return cls(starts, ids[order].astype(np.int64), scores[order].astype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Propensity:
    """The probability that a true label was recorded (Jain, Prabhu and Varma, KDD 2016, section 3).

    p_l = 1 / (1 + C exp(-A ln(N_l + B))) with C = (ln n - 1) (B + 1)^A, for n training instances of which N_l carry l.
    The Amazon sets use 0.6 and 2.6, the Wikipedia sets 0.5 and 0.4. ``b`` > 0 keeps the weight of a label finite that
    is not in the training data.
    """

    a: float = 0.55
    b: float = 1.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.a) and math.isfinite(self.b) and self.b > 0):
            raise ValueError("a propensity needs a finite a and a finite b > 0")

    def weights(self, counts: npt.ArrayLike, n_train: int) -> Floats:
        """Return 1 / p_l of each label, at least 1, for its training ``counts`` and all ``n_train`` training instances.

        With fewer than e training instances C would be negative; it is then taken as 0.
        """
        c = max(math.log(max(n_train, 1)) - 1.0, 0.0) * (self.b + 1.0) ** self.a
        seen: Floats = np.asarray(counts, dtype=np.float64) + self.b
        weights: Floats = 1.0 + c * seen**-self.a
        return weights


def rank_measures(ranks: Ints) -> dict[str, float | None]:
    """Return R@1, R@5, MRR and HR of instances that have a true label; all 0 without instances.

    ``ranks`` are k_x, 0 for infinite (the ranking has no true label). HR = 1 / MRR, the harmonic rank, None where MRR
    is 0.
    """
    sums, n = RankSums.of(ranks), max(len(ranks), 1)
    mrr = sums.reciprocal / n
    return {"R@1": sums.hits_1 / n, "R@5": sums.hits_5 / n, "MRR": mrr, "HR": 1.0 / mrr if mrr > 0 else None}


def evaluate(rankings: Rankings, truth: LabelSets, weights: Floats) -> dict[str, float | None]:
    """Return every measure of the rankings of n instances.

    ``weights`` are 1 / p_l of every label id, shape (n_labels,). ``R@1 R@5 MRR HR`` are over the instances that have a
    true label, ``macro R@5`` over the labels, ``P@k nDCG@k PSP@k PSnDCG@k`` over all instances. Each is in 0..1, except
    HR, which is >= 1, or None where MRR is 0. Deeper rankings give a more exact MRR.
    """
    hits = _hits(rankings, truth)
    ranks = _first_ranks(rankings, hits)
    measures = rank_measures(ranks[truth.sizes > 0])
    depth = max(PRECISION_AT)
    won = _top(rankings, hits.astype(np.float64), depth)
    won_weights = _top(rankings, np.where(hits, weights[rankings.ids], 0.0), depth)
    best_weights = _best(truth, weights, depth)
    discounts = 1.0 / np.log2(np.arange(2.0, depth + 2.0))
    ideals = np.concatenate(([0.0], np.cumsum(discounts)))
    n = max(len(truth.sizes), 1)
    for k in PRECISION_AT:
        # An instance without true labels has no gain; ideal 1 spares a division of 0 by 0.
        ideal = np.where(truth.sizes > 0, ideals[np.minimum(truth.sizes, k)], 1.0)
        gain, best = won_weights[:, :k], best_weights[:, :k]
        measures[f"P@{k}"] = float(won[:, :k].sum()) / (n * k)
        measures[f"nDCG@{k}"] = float((won[:, :k] @ discounts[:k] / ideal).sum()) / n
        measures[f"PSP@{k}"] = _ratio(gain.sum(), best.sum())
        measures[f"PSnDCG@{k}"] = _ratio((gain @ discounts[:k] / ideal).sum(), (best @ discounts[:k] / ideal).sum())
    measures["macro R@5"] = _macro_recall(rankings.ids[hits & (_places(rankings.starts)[1] < 5)], truth.ids)
    names = [
        "R@1",
        "R@5",
        "macro R@5",
        "MRR",
        "HR",
        *(f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG") for k in PRECISION_AT),
    ]
    return {name: measures[name] for name in names}


def _joined(lists: list[list[int]]) -> tuple[Ints, Ints]:
    starts = np.concatenate(([0], np.cumsum([len(ids) for ids in lists], dtype=np.int64))).astype(np.int64)
    return starts, np.fromiter((label for ids in lists for label in ids), dtype=np.int64, count=int(starts[-1]))


def _places(starts: Ints) -> tuple[Ints, Ints]:
    """Return the row of each element of a ragged array, and its position in the row from 0."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return rows, np.arange(int(starts[-1])) - starts[rows]


def _hits(rankings: Rankings, truth: LabelSets) -> npt.NDArray[np.bool_]:
    n_labels = 1 + int(max(rankings.ids.max(initial=0), truth.ids.max(initial=0)))
    ranked = _places(rankings.starts)[0] * n_labels + rankings.ids
    return np.isin(ranked, _places(truth.starts)[0] * n_labels + truth.ids)


def _first_ranks(rankings: Rankings, hits: npt.NDArray[np.bool_]) -> Ints:
    rows, places = _places(rankings.starts)
    ranks = np.zeros(len(rankings.starts) - 1, dtype=np.int64)
    # The last write to a row wins: from the worst true label to the best.
    ranks[rows[hits][::-1]] = places[hits][::-1] + 1
    return ranks


def _top(rankings: Rankings, values: Floats, depth: int) -> Floats:
    """Return the values of the first ``depth`` labels of each instance, padded with 0; shape (n, depth)."""
    rows, places = _places(rankings.starts)
    shallow = places < depth
    table = np.zeros((len(rankings.starts) - 1, depth))
    table[rows[shallow], places[shallow]] = values[shallow]
    return table


def _best(truth: LabelSets, weights: Floats, depth: int) -> Floats:
    """Return the ``depth`` largest weights of each instance's true labels, padded with 0; shape (n, depth)."""
    heaviest = Rankings.of(truth.starts, truth.ids, weights[truth.ids])
    return _top(heaviest, heaviest.scores, depth)


def _macro_recall(found: Ints, true: Ints) -> float:
    """Return the mean over the labels in ``true`` of the share of their occurrences that are in ``found``."""
    labels, counts = np.unique(true, return_counts=True)
    shares = np.bincount(found, minlength=1 + int(true.max(initial=0)))[labels] / counts
    return float(shares.mean()) if len(labels) else 0.0


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0
