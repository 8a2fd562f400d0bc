"""Rank instances by a version. Plain functions that run in a thread.

The event loop reads the model's present state (offset, active version) when it accepts the request. An answer
therefore belongs to the offset that it names, however long the ranking takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from abound.versions.versions import LoadedVersion
from abound_core.model.label_changes import Renamed
from abound_core.types import START, Offset

MOST_SCORES = 2**20  # held at once, approximately; longer lists of instances are ranked in batches

Labels = list[tuple[str, float]]


class RankingRequest(NamedTuple):
    loaded: LoadedVersion
    vector: bytes
    k: int
    include: Collection[str] | None
    exclude: Collection[str] | None
    threshold: float | None
    offset: Offset  # that the answer names
    renamed: Renamed  # since the version was fitted

    def can_batch_with(self, other: RankingRequest) -> bool:
        alike = self.include == other.include and (self.exclude is other.exclude or self.exclude == other.exclude)
        same = self.loaded is other.loaded and self.renamed is other.renamed
        return alike and same and self.k == other.k


def rank_all(asked: Sequence[RankingRequest]) -> list[Labels]:
    """Return the labels for each instance, best first."""
    ranked: list[Labels] = [[]] * len(asked)
    order = sorted(range(len(asked)), key=lambda at: (id(asked[at].loaded), asked[at].k))
    first = 0
    while first < len(order):
        end = first + 1
        while end < len(order) and asked[order[end]].can_batch_with(asked[order[first]]):
            end += 1
        together = [asked[at] for at in order[first:end]]
        for at, one, found in zip(order[first:end], together, _by_version(together), strict=True):
            if one.threshold is not None:
                found = [scored for scored in found if scored[1] >= one.threshold]
            ranked[at] = found
        first = end
    return ranked


def _by_version(asked: Sequence[RankingRequest]) -> list[Labels]:
    one = asked[0]
    labels, n_hidden = one.renamed.present(one.loaded.fitted.labels)
    allowed = _allowed(labels, one.renamed, one.include, one.exclude)
    if one.include is not None:
        deepest = len(labels)  # the included labels may have any rank
    else:
        n_hidden += 0 if allowed is None else int(np.count_nonzero(~allowed))
        deepest = min(len(labels), one.k + n_hidden)
    at_once = max(1, MOST_SCORES // max(1, deepest))
    ranked: list[Labels] = []
    for first in range(0, len(asked), at_once):
        vectors = [instance.vector for instance in asked[first : first + at_once]]
        rankings = one.loaded.fitted.rank_vectors(vectors, deepest)
        for start, end in zip(rankings.starts[:-1].tolist(), rankings.starts[1:].tolist(), strict=True):
            ids, scores = rankings.ids[start:end], rankings.scores[start:end]
            if allowed is not None:
                kept = allowed[ids]
                ids, scores = ids[kept], scores[kept]
            found: dict[str, float] = {}
            for i, score in zip(ids.tolist(), scores.tolist(), strict=True):
                if (label := labels[i]) is not None:
                    found.setdefault(label, score)
                if len(found) == one.k:
                    break
            ranked.append(list(found.items()))
    return ranked


def _allowed(
    labels: Sequence[str | None], renamed: Renamed, include: Collection[str] | None, exclude: Collection[str] | None
) -> npt.NDArray[np.bool_] | None:
    """Return which labels may be ranked, shape (L,); None: all of them."""
    if include is None and not exclude:
        return None
    wanted = None if include is None else {renamed.get(label, label) for label in include}
    unwanted = {renamed.get(label, label) for label in exclude or ()}
    return np.array([(wanted is None or label in wanted) and label not in unwanted for label in labels], np.bool_)


def fitted_until(loaded: LoadedVersion) -> Offset:
    """Return the last offset that a version was fitted on. It must not be scored on instances up to there."""
    until = (loaded.card.data_range or {}).get("until")
    return START if until is None else Offset.parse(until)


def named_at(loaded: LoadedVersion) -> Offset:
    """Return the offset whose names of labels a version has: the end of its data, or that of its fit on a data set."""
    return fitted_until(loaded) if loaded.card.data_range else Offset.parse(loaded.card.offset)
