"""The blend: one ranking out of two, that of the live index and that of a batch version.

The live index knows the newest labels and what was learned a moment ago, the version what many passes over the past
can find. Their scores have nothing in common, so each list is brought to shares first: of its best ``DEPTH``, the
squares of what each score is above the last one, divided by their sum. So scores of any sign can be taken, and a list
whose first label stands out says so louder than one that hesitates. A label that a list lacks has 0 there. (Between
the first and the last alone is what fusion of retrieval systems calls min-max, or CombSUM: Fox and Shaw, TREC-2, 1994;
Lee, SIGIR 1997. ``docs/results.md`` has what was measured of it.)

How much each counts is **learned** from the ranks that the true labels would have had under each of ``MIXTURES``,
before they were learned. Of discounted sums of their reciprocal ranks

1. the better of the index alone and the version alone is the *side*;
2. the mixture is the mean of all, weighed by the exponentials of their sums (the exponentially weighted forecaster:
   Cesa-Bianchi and Lugosi, Prediction, Learning, and Games, 2006, section 2.2);
3. the mixture is taken where it has gained more than the side, by ``SURE`` standard errors of that difference, and the
   side where it has not. For the first instances with a version the mixture has the benefit of the doubt.

The discount is what lets it change its mind: what was ``1 / (1 - DISCOUNT)`` instances ago counts a third. Before the
first instance it goes by what may be expected: the version beats the index by as much as on the instances that it was
judged on, and of two lists both are mostly worth something.

>>> mix(Listed(["a", "b"], [2.0, 1.0]), Listed(["b", "c"], [0.9, 0.1]), (0.6, 0.4), 2)
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
"""So many of the best labels of each list bring their scores; what stands behind them has 0."""

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""How much the version may count; the live index counts the rest."""

MIXTURES: tuple[tuple[float, float], ...] = tuple((1.0 - share, share) for share in SHARES)
"""The weights that are tried: of the live index, of the version."""

DISCOUNT = 0.9995
RATE = 0.05
"""Of the exponential weights, an instance's reciprocal rank being 1 at most."""

SURE = 2.1
"""Standard errors."""

DOUBT = 5.0
"""So much, in reciprocal ranks, may a mixture have lost at the beginning before the side is taken in its place ..."""

DOUBT_KEPT = 0.995
"""... and so much of that is left after each instance."""

JUDGED = 200.0
"""The instances that a version was judged on count as so many."""

BOTH = 6.0
"""What an even mixture is expected to have gained at the beginning, beyond what lies between both sides."""

KEPT = 1000.0
"""Evidence that a new version begins with is no more than that of so many instances."""

_MIXTURES = np.array(MIXTURES)

Floats = npt.NDArray[np.float64]


class Listed(NamedTuple):
    """A ranking by names: labels, best first, and their scores."""

    labels: Sequence[str]
    scores: Sequence[float] | Floats


def shares_of(scores: Sequence[float] | Floats) -> Floats:
    """Scores of a list, best first, as shares of 1; 0 for the ``DEPTH``-th or the last, and for all behind it.

    Equal scores have equal shares.
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


def mix(live: Listed, batch: Listed, weights: tuple[float, float], k: int) -> list[tuple[str, float]]:
    """The best ``k`` labels of both lists together, best first, with their shares, 0..1.

    Equal scores go by the place in the live list, then in the other one. Ask for ``DEPTH`` labels of each, or ``k``
    where that is more: so the first of the answer do not depend on ``k``.

    Parameters
    ----------
    live, batch : Listed
    weights : (float, float)
        Of each, at least 0.
    k : int
    """
    labels, shares = _together(live, batch)
    scores = np.array([weights]) @ shares
    order = np.argsort(-scores[0], kind="stable")[:k]
    return [(labels[i], float(scores[0, i])) for i in order.tolist()]


def ranks_under(live: Listed, batch: Listed, mixtures: Floats, true: Set[str]) -> npt.NDArray[np.int64]:
    """The rank, from 1, that the best true label has under each mixture; 0 where neither list has one.

    Parameters
    ----------
    live, batch : Listed
        At most ``DEPTH`` labels each.
    mixtures : float64 array, shape (m, 2)
    true : set of labels

    Returns
    -------
    int64 array, shape (m,)
        As ``mix`` ranks.
    """
    labels, shares = _together(live, batch)
    places = [i for i, label in enumerate(labels) if label in true]
    if not places:
        return np.zeros(len(mixtures), np.int64)
    scores = np.array([np.array([weights]) @ shares for weights in mixtures])[:, 0]  # to the bit what ``mix`` has
    found = np.array(places)[np.argmax(scores[:, places], axis=1)]
    best = scores[np.arange(len(scores)), found][:, None]
    before = (scores > best) | ((scores == best) & (np.arange(len(labels)) < found[:, None]))
    ranks: npt.NDArray[np.int64] = 1 + np.count_nonzero(before, axis=1)
    return ranks


def _together(live: Listed, batch: Listed) -> tuple[list[str], Floats]:
    """All labels of two lists in the order of ties, and their shares, shape (2, n)."""
    places: dict[str, int] = {}
    columns = [[places.setdefault(label, len(places)) for label in one.labels] for one in (live, batch)]
    shares = np.zeros((2, len(places)))
    for row, (one, column) in enumerate(zip((live, batch), columns, strict=True)):
        shares[row, column] = shares_of(one.scores)
    return list(places), shares


class Weighing(msgspec.Struct, kw_only=True):
    """Which mixture leads. Plain values, so that it can be kept; the same ranks give the same weights.

    Attributes
    ----------
    n : int
        Instances that it has seen.
    since : int
        Of these, the ones with the present version.
    gains : list of float, one a mixture
        Discounted sums of reciprocal ranks.
    squares : (list of float, list of float), one a mixture
        Sums of the squares of what a mixture had more or less than the index alone, and than the version. Discounted by
        the square of what the gains are: so they are the variances of the differences of these.
    advantage : float
        By how much the version was better than the index, in reciprocal ranks, where both were judged before it came;
        0 where that is not known.
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
        """Of the live index and the version, by the three steps at the top of this file; one of ``MIXTURES``."""
        shares = _MIXTURES[:, 1]
        expected = JUDGED * self.advantage * shares + BOTH * 4.0 * shares * (1.0 - shares)
        gains = np.array(self.gains) + DISCOUNT**self.since * expected
        side = len(MIXTURES) - 1 if gains[-1] > gains[0] else 0
        trust = np.exp(RATE * (gains - gains.max()))
        mixed = int(np.argmin(np.abs(shares - trust @ shares / trust.sum())))
        error = math.sqrt(self.squares[side > 0][mixed])
        doubt = DOUBT * DOUBT_KEPT**self.since
        return MIXTURES[mixed if gains[mixed] - gains[side] > SURE * error - doubt else side]

    def due(self, weighed: int, every: int) -> bool:
        """Whether others are to hear of the weights: after ``every`` instances, and at the beginning after fewer.

        ``weighed``: ``since`` when they heard of them last.
        """
        return not 0 <= self.since - weighed < min(every, max(1, self.since // 4))

    def note(self, live: Listed, batch: Listed, true: Set[str]) -> npt.NDArray[np.int64]:
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

    def begin_anew(self, advantage: float = 0.0) -> None:
        """Another version comes into the mixture: of what was learned with the one before only a part stays.

        ``advantage``: see above.
        """
        full = (1.0 - DISCOUNT**self.n) / (1.0 - DISCOUNT)
        if full > KEPT:
            part = KEPT / full
            self.gains = [one * part for one in self.gains]
            index, version = ([one * part**2 for one in sums] for sums in self.squares)
            self.squares = (index, version)
        self.since = 0
        self.advantage = advantage
