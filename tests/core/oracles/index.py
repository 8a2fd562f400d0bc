"""The learning algorithm of the index as it is written down, in dictionaries and plain floats.

RankedRetrieval, FF and FSU of Madani, Connor and Greiner (JMLR 2009), sections 3.2, 4.1 and 4.2, with the product's
rules where the paper leaves them open. Slow on purpose: nothing is kept sorted, nothing is kept between two steps.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from abound_core.index.params import IndexParams

BEST = 50


@dataclass
class Posting:
    total: float = 0.0
    seen: int = 0
    counts: dict[int, float] = field(default_factory=dict)

    def heaviest(self) -> list[int]:
        """Class ids by weight, heaviest first; equal weights by id."""
        return sorted(self.counts, key=lambda class_id: (-self.counts[class_id], class_id))


def weighted(value: float, weight: float) -> float:
    """The value times the weight as float32, never 0 and never infinite."""
    if weight == 1.0:
        return value
    return float(np.float32(min(max(value * weight, 2.0**-149), 2.0**128 - 2.0**104)))


class Oracle:
    def __init__(self, params: IndexParams) -> None:
        self.params = params
        self.postings: dict[int, Posting] = {}

    def scores(self, ids: Sequence[int], values: Sequence[float]) -> dict[int, float]:
        scores: dict[int, float] = {}
        for feature, value in zip(ids, values, strict=True):
            posting = self.postings.get(feature, Posting())
            rating = min(1.0, posting.seen / 10) if self.params.rating else 1.0
            for class_id in itertools.islice(posting.heaviest(), self.params.d_max):
                weight = posting.counts[class_id] / posting.total
                scores[class_id] = scores.get(class_id, 0.0) + rating * weight * value
        return {class_id: score for class_id, score in scores.items() if score > 0}

    def ranking(self, ids: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
        """All classes with a score, best first; equal scores by id."""
        return sorted(self.scores(ids, values).items(), key=lambda item: (-item[1], item[0]))

    def learn(
        self,
        ids: Sequence[int],
        values: Sequence[float],
        class_ids: Sequence[int],
        count_seen: bool = True,
        strengths: dict[int, float] | None = None,
        weight: float = 1.0,
    ) -> tuple[list[int], bool]:
        """Ranks of the true classes before learning (0: not retrieved), and whether anything was updated.

        ``strengths`` are those of the wrong classes.
        """
        wrong = strengths or {}
        for feature in ids:
            self.postings.setdefault(feature, Posting()).seen += count_seen
        ranking = self.ranking(ids, values)
        rank_of = {class_id: rank for rank, (class_id, _) in enumerate(ranking, 1)}
        best_other = max((score for class_id, score in ranking if class_id not in class_ids), default=0.0)
        score_of = dict(ranking[:BEST])
        due = [c for c in class_ids if score_of.get(c, 0.0) - best_other <= self.params.margin]
        scored = dict(ranking)
        best_true = max((scored.get(c, 0.0) for c in class_ids), default=0.0)
        weak = [c for c in wrong if c in scored and best_true - scored[c] <= self.params.margin]
        for feature, value in zip(ids, values, strict=True):
            for class_id in due:
                self.update(self.postings[feature], class_id, weighted(value, weight))
            for class_id in weak:
                self.weaken(self.postings[feature], class_id, weighted(value, weight) * wrong[class_id])
        return [rank_of.get(class_id, 0) for class_id in class_ids], bool(due or weak)

    def weaken(self, posting: Posting, class_id: int, value: float) -> None:
        """The class forgets as if another one had been observed three times with this value."""
        if class_id not in posting.counts:
            return
        count = posting.counts.pop(class_id)
        left = min(float(np.float32(count * (posting.total / (posting.total + 3.0 * value)))), count)
        if left / posting.total >= self.params.w_min and left >= 2.0**-126:
            posting.counts[class_id] = left

    def update(self, posting: Posting, class_id: int, value: float) -> None:
        """FSU(f, c, v)."""
        counts = posting.counts
        counts[class_id] = counts.get(class_id, 0.0) + value
        posting.total += value
        memory = self.params.memory
        if memory is not None and posting.total > memory:
            for other in counts:
                counts[other] *= memory / posting.total
            posting.total = memory
        dropped = [other for other in posting.heaviest() if counts[other] / posting.total < self.params.w_min]
        dropped_weight = sum(counts.pop(other) for other in reversed(dropped))
        if not self.params.leak:
            posting.total = max(posting.total - dropped_weight, 0.0) if counts else 0.0

    def connections(self) -> dict[int, dict[int, float]]:
        return {feature: dict(posting.counts) for feature, posting in self.postings.items() if posting.counts}
