"""Rank instances by a version, alone or blended with the index. Plain functions that run in a thread.

The event loop reads the model's present state (offset, active version, ranking by the index) when it accepts
the request. An answer therefore belongs to the offset that it names, however long the ranking takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound.core.comparison.blend import DEPTH, LabelRanking, mix
from abound.core.model.active_version import BLEND
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.versions.repository import LoadedVersion

MOST_SCORES = 2**20
"""Approximate bound on the scores held at once. Longer lists of instances are ranked in batches."""

Labels = list[tuple[str, float]]


class RankingChoice(NamedTuple):
    """Version to rank by, alone or blended.

    Attributes
    ----------
    loaded : LoadedVersion
    weights : (float, float) or None
        Blend weights of the index and the version; None to rank by the version alone.
    """

    loaded: LoadedVersion
    weights: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """The version that an answer names."""
        return self.loaded.card.id if self.weights is None else BLEND


class RankingRequest(NamedTuple):
    """Request to rank one instance.

    Attributes
    ----------
    vector : bytes
    k : int
    include, exclude : collections of labels or None
    threshold : float or None
    offset : Offset
        Offset that the answer names.
    live : LabelRanking or None
        Ranking by the index, for a blend.
    """

    choice: RankingChoice
    vector: bytes
    k: int
    include: Collection[str] | None
    exclude: Collection[str] | None
    threshold: float | None
    offset: Offset
    live: LabelRanking | None = None

    @property
    def depth(self) -> int:
        """Number of labels to take from each list."""
        return self.k if self.live is None else max(self.k, DEPTH)

    def can_batch_with(self, other: RankingRequest) -> bool:
        """Return whether both requests can be ranked in one batch."""
        alike = self.include is other.include and (self.exclude is other.exclude or self.exclude == other.exclude)
        return alike and self.choice.loaded is other.choice.loaded and self.depth == other.depth


def rank_live(
    live: LiveModel,
    vector: bytes,
    k: int,
    include: Collection[str] | None,
    exclude: Collection[str] | None,
    zero_shot: bool = True,
) -> LabelRanking:
    """Return the index's ranking by label names, deep enough for a blend."""
    ranking = live.rank(vector, max(k, DEPTH), include, exclude, zero_shot=zero_shot)
    return LabelRanking([live.label(i) for i in ranking.class_ids.tolist()], ranking.scores)


def rank_all(asked: Sequence[RankingRequest]) -> list[Labels]:
    """Return the labels for each instance, best first, with their scores."""
    ranked: list[Labels] = [[]] * len(asked)
    order = sorted(range(len(asked)), key=lambda at: (id(asked[at].choice.loaded), asked[at].depth))
    first = 0
    while first < len(order):
        end = first + 1
        while end < len(order) and asked[order[end]].can_batch_with(asked[order[first]]):
            end += 1
        together = [asked[at] for at in order[first:end]]
        for at, one, found in zip(order[first:end], together, _by_version(together), strict=True):
            if one.choice.weights is not None and one.live is not None:
                found = mix(one.live, LabelRanking(*_apart(found)), one.choice.weights, one.k)
            if one.threshold is not None:
                found = [scored for scored in found if scored[1] >= one.threshold]
            ranked[at] = found
        first = end
    return ranked


def _by_version(asked: Sequence[RankingRequest]) -> list[Labels]:
    """Rank requests of one batch by the version alone."""
    one = asked[0]
    labels = one.choice.loaded.fitted.labels
    allowed = _allowed(labels, one.include, one.exclude)
    depth = one.depth
    if one.include is not None:
        deepest = len(labels)  # the included labels may have any rank
    else:
        deepest = min(len(labels), depth + (0 if allowed is None else int(np.count_nonzero(~allowed))))
    at_once = max(1, MOST_SCORES // max(1, deepest))
    ranked: list[Labels] = []
    for first in range(0, len(asked), at_once):
        vectors = [instance.vector for instance in asked[first : first + at_once]]
        rankings = one.choice.loaded.fitted.rank_vectors(vectors, deepest)
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
    """Return which labels may be ranked, shape (L,); None: all of them."""
    if include is None and not exclude:
        return None
    wanted = None if include is None else set(include)
    unwanted = set(exclude or ())
    return np.array([(wanted is None or label in wanted) and label not in unwanted for label in labels], np.bool_)


def _apart(ranked: Labels) -> tuple[list[str], list[float]]:
    return [label for label, _ in ranked], [score for _, score in ranked]
