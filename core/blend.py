"""The blend: one ranking out of two, that of the live index and that of a batch version.

The live index knows the newest labels and what was learned a moment ago, the version what many passes over the past
can find. Their scores have nothing in common, so each list is brought to 0..1 first, between the first and the last of
its best ``DEPTH`` (what fusion of retrieval systems calls min-max, or CombSUM: Fox and Shaw, TREC-2, 1994; Lee, SIGIR
1997). A label that a list lacks has 0 there. Of the ways that were tried (reciprocal ranks of three kinds, shares of
the sum, of the length, of the best) this one, with its best weights, is the best or within 0.003 of it in every
measure, with a good live index and with a poor one; it takes scores of any sign.

How much each counts is **learned** from the ranks that the true labels would have had under each of ``MIXTURES``,
before they were learned: the leader by discounted reciprocal ranks (Cesa-Bianchi and Lugosi, Prediction, Learning, and
Games, 2006, section 2.11). The discount is what lets it change its mind: what was ``1 / (1 - DISCOUNT)`` instances ago
counts a third.

>>> mix(Listed(["a", "b"], [2.0, 1.0]), Listed(["b", "c"], [0.9, 0.1]), (0.6, 0.4), 2)
[('a', 0.6), ('b', 0.4)]
"""

from __future__ import annotations

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
HEAD_START = 10.0
"""So much more than the index alone must another mixture have gained: what differs by less is left to the index."""

KEPT = 250.0
"""Evidence that a new version begins with is no more than that of so many instances."""

_MIXTURES = np.array(MIXTURES)

Floats = npt.NDArray[np.float64]


class Listed(NamedTuple):
    """A ranking by names: labels, best first, and their scores."""

    labels: Sequence[str]
    scores: Sequence[float] | Floats


def normalised(scores: Sequence[float] | Floats) -> Floats:
    """Scores of a list, best first, brought to 0..1: 1 the best, 0 the ``DEPTH``-th or the last, and all behind it."""
    given = np.asarray(scores, np.float64)
    if not len(given):
        return given
    best, last = given[0], given[min(len(given), DEPTH) - 1]
    if not best > last:
        return np.ones(len(given))
    shares: Floats = np.maximum(0.0, (given - last) / (best - last))
    return shares


def mix(live: Listed, batch: Listed, weights: tuple[float, float], k: int) -> list[tuple[str, float]]:
    """The best ``k`` labels of both lists together, best first, with what they have of 0..1.

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
    """All labels of two lists in the order of ties, and their normalised scores, shape (2, n)."""
    places: dict[str, int] = {}
    columns = [[places.setdefault(label, len(places)) for label in one.labels] for one in (live, batch)]
    shares = np.zeros((2, len(places)))
    for row, (one, column) in enumerate(zip((live, batch), columns, strict=True)):
        shares[row, column] = normalised(one.scores)
    return list(places), shares


class Weighing(msgspec.Struct, kw_only=True):
    """Which mixture leads. Plain values, so that it can be kept; the same ranks give the same weights.

    Attributes
    ----------
    n : int
        Instances that it has seen.
    gains : list of float, one a mixture
        Discounted sums of reciprocal ranks.
    """

    n: int = 0
    gains: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(MIXTURES))

    def __post_init__(self) -> None:
        if len(self.gains) != len(MIXTURES):
            raise ValueError(f"there are {len(MIXTURES)} mixtures")

    @property
    def weights(self) -> tuple[float, float]:
        """Of the live index and the version; of mixtures that are equally good the one with more of the live index."""
        return MIXTURES[int(np.argmax([self.gains[0] + HEAD_START, *self.gains[1:]]))]

    def note(self, live: Listed, batch: Listed, true: Set[str]) -> npt.NDArray[np.int64]:
        """Learn from an instance, and return the rank of its best true label under each mixture."""
        ranks = ranks_under(live, batch, _MIXTURES, true)
        gains = np.array(self.gains) * DISCOUNT
        gains[ranks > 0] += 1.0 / ranks[ranks > 0]
        self.gains = gains.tolist()
        self.n += 1
        return ranks

    def begin_anew(self) -> None:
        """Another version comes into the mixture: of what was learned with the one before only a little stays."""
        full = (1.0 - DISCOUNT**self.n) / (1.0 - DISCOUNT)
        if full > KEPT:
            self.gains = [gain * KEPT / full for gain in self.gains]
