"""The blend: one ranking made of two, that of the live index and that of a batch version.

The live index knows the newest labels and events; the version has made many passes over older data. Their scores are
not comparable, so each list is first converted to shares. Of the best ``DEPTH`` labels, take the squares of the
differences between each score and the last one, divided by their sum. This accepts scores of any sign, and gives more
weight to a list whose first label stands out. A label missing from a list has 0 there. (The linear form of this, from
the last score to the first, is called min-max or CombSUM in the fusion of retrieval systems: Fox and Shaw, TREC-2,
1994; Lee, SIGIR 1997. ``docs/results.md`` has measurements.)

The weights are **learned** from the ranks that the true labels would have had under each of ``MIXTURES``, before they
were learned. The rule uses discounted sums of the reciprocal ranks:

1. the *side* is the better of the index alone and the version alone;
2. the mixture is the one of ``MIXTURES`` nearest to their weighted mean; each has the weight exp(``LEARNING_RATE`` *
   its sum) (the exponentially weighted forecaster: Cesa-Bianchi and Lugosi, Prediction, Learning, and Games, 2006,
   section 2.2);
3. the mixture is used if its gain exceeds that of the side by ``STANDARD_ERRORS`` standard errors of the
   difference, else the side. For the first instances with a version the mixture may be used with a smaller gain.

The discount lets the rule adapt: an instance ``1 / (1 - DISCOUNT)`` instances ago has a third of the weight. Before
the first instance the rule uses prior gains: the version beats the index by as much as on its evaluation instances,
and a mixture of both lists usually beats either.

>>> mix(LabelRanking(["a", "b"], [2.0, 1.0]), LabelRanking(["b", "c"], [0.9, 0.1]), (0.6, 0.4), 2)
[('a', 0.6), ('b', 0.4)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

DEPTH = 50
"""Number of the best labels of each list whose scores count; labels below have 0."""

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Candidates for the weight of the version; the live index has the rest of 1."""

MIXTURES: tuple[tuple[float, float], ...] = tuple((1.0 - share, share) for share in SHARES)
"""The same candidates as pairs: weight of the live index, weight of the version."""

DISCOUNT = 0.9995
LEARNING_RATE = 0.05
"""Learning rate of the exponential weights; the reciprocal rank of an instance is at most 1."""

STANDARD_ERRORS = 2.1
"""Standard errors by which the mixture must beat the side."""

INITIAL_ALLOWANCE = 5.0
"""Reciprocal ranks by which a mixture may trail the side at the beginning and still be used."""

ALLOWANCE_DECAY = 0.995
"""Factor on ``INITIAL_ALLOWANCE`` after each instance."""

PRIOR_INSTANCES = 200.0
"""Number of instances that the prior ``advantage`` of a version counts for."""

PRIOR_MIXTURE_GAIN = 6.0
"""Prior gain of the mixture (0.5, 0.5), in addition to the mean of the prior gains of both sides."""

MAX_KEPT_INSTANCES = 1000.0
"""Evidence kept when the version changes: it is scaled down to at most this number of instances."""

_MIXTURES = np.array(MIXTURES)

Floats = npt.NDArray[np.float64]


class LabelRanking(NamedTuple):
    """A ranking by names: labels, best first, and their scores."""

    labels: Sequence[str]
    scores: Sequence[float] | Floats


def shares_of(scores: Sequence[float] | Floats) -> Floats:
    """Convert the scores of a list, best first, to shares of 1. Equal scores have equal shares.

    The last of the first ``DEPTH`` scores and all scores after it get 0, unless the first ``DEPTH`` scores are equal.
    """
    given = np.asarray(scores, np.float64)
    shares = np.zeros(len(given))
    if not len(given):
        return shares
    first = given[:DEPTH]
    best, last = first[0], first[-1]
    above = np.square((first - last) / (best - last)) if best > last else np.ones(len(first))
    shares[: len(first)] = above / above.sum()
    return shares


def mix(live: LabelRanking, batch: LabelRanking, weights: tuple[float, float], k: int) -> list[tuple[str, float]]:
    """Return the best ``k`` labels of both lists together, best first, with their shares, 0..1.

    Ties are broken by the position in the live list, then in the other one. Pass ``DEPTH`` labels of each list, or
    ``k`` if that is more, so that the first labels of the result do not depend on ``k``.

    Parameters
    ----------
    live, batch : LabelRanking
    weights : (float, float)
        Weight of each list, at least 0.
    k : int
    """
    labels, shares = _together(live, batch)
    scores = np.array([weights]) @ shares
    order = np.argsort(-scores[0], kind="stable")[:k]
    return [(labels[i], float(scores[0, i])) for i in order.tolist()]


def ranks_under(live: LabelRanking, batch: LabelRanking, mixtures: Floats, true: Set[str]) -> npt.NDArray[np.int64]:
    """Return the rank, from 1, of the best true label under each mixture; 0 where neither list has one.

    Parameters
    ----------
    live, batch : LabelRanking
        At most ``DEPTH`` labels each.
    mixtures : float64 array, shape (m, 2)
    true : set of labels

    Returns
    -------
    int64 array, shape (m,)
        The ranks in the result of ``mix``.
    """
    labels, shares = _together(live, batch)
    places = [i for i, label in enumerate(labels) if label in true]
    if not places:
        return np.zeros(len(mixtures), np.int64)
    scores = np.array([np.array([weights]) @ shares for weights in mixtures])[
        :, 0
    ]  # bit-equal to the scores in ``mix``
    found = np.array(places)[np.argmax(scores[:, places], axis=1)]
    best = scores[np.arange(len(scores)), found][:, None]
    before = (scores > best) | ((scores == best) & (np.arange(len(labels)) < found[:, None]))
    ranks: npt.NDArray[np.int64] = 1 + np.count_nonzero(before, axis=1)
    return ranks


def _together(live: LabelRanking, batch: LabelRanking) -> tuple[list[str], Floats]:
    """Return all labels of two lists in the order of ties, and their shares, shape (2, n)."""
    places: dict[str, int] = {}
    columns = [[places.setdefault(label, len(places)) for label in one.labels] for one in (live, batch)]
    shares = np.zeros((2, len(places)))
    for row, (one, column) in enumerate(zip((live, batch), columns, strict=True)):
        shares[row, column] = shares_of(one.scores)
    return list(places), shares


class BlendLearner(msgspec.Struct, kw_only=True):
    """Chooses among the mixtures, by the ranks that they would have given so far.

    Its state is plain values that can be stored. The same ranks give the same weights.

    Attributes
    ----------
    n : int
        Instances seen.
    since : int
        Instances seen with the present version.
    gains : list of float, one per mixture
        Discounted sums of reciprocal ranks.
    squares : (list of float, list of float), one per mixture
        Sums of the squared differences between a mixture and the index alone, and between a mixture and the version
        alone. They are discounted by the square of the discount of the gains, so they are the variances of the
        differences of the gains.
    advantage : float
        Lead of the version over the index, in reciprocal ranks, when both were evaluated before its activation; 0 if
        unknown.
    """

    n: int = 0
    since: int = 0
    gains: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(MIXTURES))
    squares: tuple[list[float], list[float]] = msgspec.field(
        default_factory=lambda: ([0.0] * len(MIXTURES), [0.0] * len(MIXTURES))
    )
    advantage: float = 0.0

    def __post_init__(self) -> None:
        if any(len(sums) != len(MIXTURES) for sums in (self.gains, *self.squares)):
            raise ValueError(f"there are {len(MIXTURES)} mixtures")

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the live index and the version: the mixture that the steps of the module docstring choose."""
        shares = _MIXTURES[:, 1]
        expected = PRIOR_INSTANCES * self.advantage * shares + PRIOR_MIXTURE_GAIN * 4.0 * shares * (1.0 - shares)
        gains = np.array(self.gains) + DISCOUNT**self.since * expected
        side = len(MIXTURES) - 1 if gains[-1] > gains[0] else 0
        trust = np.exp(LEARNING_RATE * (gains - gains.max()))
        mixed = int(np.argmin(np.abs(shares - trust @ shares / trust.sum())))
        error = math.sqrt(self.squares[side > 0][mixed])
        doubt = INITIAL_ALLOWANCE * ALLOWANCE_DECAY**self.since
        return MIXTURES[mixed if gains[mixed] - gains[side] > STANDARD_ERRORS * error - doubt else side]

    def should_publish(self, weighed: int, every: int) -> bool:
        """Return whether to publish the weights: after ``every`` instances, and after fewer at the beginning.

        ``weighed`` is the value of ``since`` at the last publication.
        """
        return not 0 <= self.since - weighed < min(every, max(1, self.since // 4))

    def learn(self, live: LabelRanking, batch: LabelRanking, true: Set[str]) -> npt.NDArray[np.int64]:
        """Learn from an instance, and return the rank of its best true label under each mixture."""
        ranks = ranks_under(live, batch, _MIXTURES, true)
        gained = np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0)
        self.gains = (np.array(self.gains) * DISCOUNT + gained).tolist()
        index, version = (
            (np.array(sums) * DISCOUNT**2 + np.square(gained - gained[side])).tolist()
            for side, sums in zip((0, -1), self.squares, strict=True)
        )
        self.squares = (index, version)
        self.n += 1
        self.since += 1
        return ranks

    def start_version(self, advantage: float = 0.0) -> None:
        """Start with another version and keep only a part of the evidence gained with the former one.

        ``advantage`` is described in the class docstring.
        """
        full = (1.0 - DISCOUNT**self.n) / (1.0 - DISCOUNT)
        if full > MAX_KEPT_INSTANCES:
            part = MAX_KEPT_INSTANCES / full
            self.gains = [one * part for one in self.gains]
            index, version = ([one * part**2 for one in sums] for sums in self.squares)
            self.squares = (index, version)
        self.since = 0
        self.advantage = advantage
