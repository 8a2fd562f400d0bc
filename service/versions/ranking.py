"""Ranking by a version, alone or blended with the index: plain functions that work in a thread.

What is of the model's present state (the offset, what is active, the ranking by the index) is taken on the event loop
when the request is looked at, so an answer belongs to the offset that it names however long the ranking takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound.core.comparison.blend import DEPTH, Listed, mix
from abound.core.model.active_version import BLEND
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.versions.repository import Loaded

MOST_SCORES = 2**20
"""So many scores are held at once, about; instances are ranked some at a time."""

Labels = list[tuple[str, float]]


class Way(NamedTuple):
    """By what to rank.

    Attributes
    ----------
    loaded : Loaded
    weights : (float, float) or None
        Of the index and the version, where both are blended.
    """

    loaded: Loaded
    weights: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """The version that an answer names."""
        return self.loaded.card.id if self.weights is None else BLEND


class Asked(NamedTuple):
    """One instance to be ranked.

    Attributes
    ----------
    vector : bytes
    k : int
    include, exclude : collections of labels or None
    threshold : float or None
    offset : Offset
        That the answer is from.
    live : Listed or None
        What the index says, for a blend.
    """

    way: Way
    vector: bytes
    k: int
    include: Collection[str] | None
    exclude: Collection[str] | None
    threshold: float | None
    offset: Offset
    live: Listed | None = None

    @property
    def depth(self) -> int:
        """So many labels of each list are asked for."""
        return self.k if self.live is None else max(self.k, DEPTH)

    def goes_with(self, other: Asked) -> bool:
        """Whether both can be ranked in one go."""
        alike = self.include is other.include and self.exclude is other.exclude
        return alike and self.way.loaded is other.way.loaded and self.depth == other.depth


def listed(
    live: LiveModel, vector: bytes, k: int, include: Collection[str] | None, exclude: Collection[str] | None
) -> Listed:
    """What the index says, by names, deep enough to be blended."""
    ranking = live.rank(vector, max(k, DEPTH), include, exclude)
    return Listed([live.label(i) for i in ranking.class_ids.tolist()], ranking.scores)


def rank_all(asked: Sequence[Asked]) -> list[Labels]:
    """The labels for each instance, best first, with their scores."""
    ranked: list[Labels] = [[]] * len(asked)
    order = sorted(range(len(asked)), key=lambda at: (id(asked[at].way.loaded), asked[at].depth))
    first = 0
    while first < len(order):
        end = first + 1
        while end < len(order) and asked[order[end]].goes_with(asked[order[first]]):
            end += 1
        together = [asked[at] for at in order[first:end]]
        for at, one, found in zip(order[first:end], together, _by_version(together), strict=True):
            if one.way.weights is not None and one.live is not None:
                found = mix(one.live, Listed(*_apart(found)), one.way.weights, one.k)
            if one.threshold is not None:
                found = [scored for scored in found if scored[1] >= one.threshold]
            ranked[at] = found
        first = end
    return ranked


def _by_version(asked: Sequence[Asked]) -> list[Labels]:
    """By the version alone, for instances that go together."""
    one = asked[0]
    labels = one.way.loaded.fitted.labels
    allowed = _allowed(labels, one.include, one.exclude)
    depth = one.depth
    if one.include is not None:
        deepest = len(labels)  # those that are asked for may stand anywhere
    else:
        deepest = min(len(labels), depth + (0 if allowed is None else int(np.count_nonzero(~allowed))))
    at_once = max(1, MOST_SCORES // max(1, deepest))
    ranked: list[Labels] = []
    for first in range(0, len(asked), at_once):
        vectors = [instance.vector for instance in asked[first : first + at_once]]
        rankings = one.way.loaded.fitted.rank_vectors(vectors, deepest)
        for start, end in zip(rankings.starts[:-1].tolist(), rankings.starts[1:].tolist(), strict=True):
            ids, scores = rankings.ids[start:end], rankings.scores[start:end]
            if allowed is not None:
                kept = allowed[ids]
                ids, scores = ids[kept], scores[kept]
            ids, scores = ids[:depth], scores[:depth]
            ranked.append([(labels[i], score) for i, score in zip(ids.tolist(), scores.tolist(), strict=True)])
    return ranked


def _allowed(
    labels: list[str], include: Collection[str] | None, exclude: Collection[str] | None
) -> npt.NDArray[np.bool_] | None:
    """Which labels may be ranked, shape (L,); None: all of them."""
    if include is None and not exclude:
        return None
    wanted = None if include is None else set(include)
    unwanted = set(exclude or ())
    return np.array([(wanted is None or label in wanted) and label not in unwanted for label in labels], np.bool_)


def _apart(ranked: Labels) -> tuple[list[str], list[float]]:
    return [label for label, _ in ranked], [score for _, score in ranked]
