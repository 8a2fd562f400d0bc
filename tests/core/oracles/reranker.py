"""The re-ranker as one would write it down, with lists: slow, plain, and no code of the product's.

Its sums are in the order that the product promises, so that the numbers can be compared bit for bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.core.oracles.calibration import exponential, logarithm, solve

Ranked = list[tuple[int, float]]


@dataclass
class Candidate:
    class_id: int
    score: float
    terms: list[float]
    logit: float
    index_rank: int
    share: float = 0.0


@dataclass
class Oracle:
    weights: list[float] = field(default_factory=lambda: [2.0, 3.5, 5.0, -0.5, 0.0])
    curvature: list[list[float]] = field(
        default_factory=lambda: [[10.0 * (i == j) for j in range(5)] for i in range(5)]
    )
    gain: float = 0.0
    allowance: float = 5.0
    counts: dict[int, int] = field(default_factory=dict)
    sums: dict[int, list[int]] = field(default_factory=dict)
    told: list[tuple[int, int]] = field(default_factory=list)  # best ranks: in the index, in the answer

    @property
    def trusted(self) -> bool:
        return self.gain > -self.allowance

    def mean(self, class_id: int) -> list[int]:
        total = sum(number * number for number in self.sums[class_id])
        scale = 16384 / math.sqrt(total) if total else 0.0
        return [round(number * scale) for number in self.sums[class_id]]

    def cosine(self, q: Sequence[int], class_id: int) -> float:
        if class_id not in self.sums:
            return 0.0
        dot = sum(a * b for a, b in zip(q, self.mean(class_id), strict=True))
        return dot / (math.sqrt(sum(number * number for number in q)) * 16384)

    def candidates(self, q: Sequence[int], ranked: Ranked, allowed: Sequence[int]) -> list[Candidate]:
        """Best first; ``ranked`` by the index, of the classes ``allowed``."""
        found = [(class_id, score, rank) for rank, (class_id, score) in enumerate(ranked[:50], 1)]
        taken = {class_id for class_id, _, _ in found}
        others = [class_id for class_id in allowed if class_id not in taken and class_id in self.sums]
        others.sort(key=lambda class_id: (-self.cosine(q, class_id), class_id))
        found += [(class_id, 0.0, 0) for class_id in others[:16]]
        made = []
        for class_id, score, rank in found:
            n = self.counts.get(class_id, 0)
            terms = [
                min(max(score, -0.5), 1.0),
                logarithm(0.02 + max(score, 0.0)),
                self.cosine(q, class_id),
                logarithm(1.0 + n),
                float(n == 0),
            ]
            logit = 0.0
            for weight, term in zip(self.weights, terms, strict=True):
                logit += weight * term
            made.append(Candidate(class_id, score, terms, logit, rank))
        self.share(made, max([one.logit for one in made], default=0.0), 1.0)
        return made

    def share(self, made: list[Candidate], highest: float, total: float) -> float:
        together = 0.0
        for one in made:
            one.share = exponential(max(min(one.logit - highest, 0.0), -700.0)) / total
            together += one.share
        return together

    def answer(self, q: Sequence[int], ranked: Ranked, mask: set[int] | None, everyone: Ranked, n: int) -> Ranked:
        """Classes and shares, best first; 0 for classes that are no candidates."""
        all_ = self.candidates(q, everyone, range(n))
        highest = max([one.logit for one in all_], default=0.0)
        total = self.share(all_, highest, 1.0) if all_ else 1.0
        made = all_ if mask is None else self.candidates(q, ranked, sorted(mask))
        self.share(made, highest, total)
        if not self.trusted:
            return [(one.class_id, one.share) for one in made if one.index_rank] + [(i, 0.0) for i, _ in ranked[50:]]
        order = sorted(made, key=lambda one: -one.logit)
        own = {one.class_id for one in made}
        return [(one.class_id, one.share) for one in order] + [(i, 0.0) for i, _ in ranked[50:] if i not in own]

    def learn(self, q: Sequence[int], ranked: Ranked, n: int, true: list[int]) -> dict[int, int]:
        """Learn from an instance before the index does; return the ranks of its true classes in the answer.

        ``true`` has the ids that known true classes have.
        """
        made = self.candidates(q, ranked, range(n))
        if not made or not true:
            return {}
        total = self.share(made, max(one.logit for one in made), 1.0)
        self.share(made, max(one.logit for one in made), total)
        order = sorted(made, key=lambda one: -one.logit)
        ranks = {one.class_id: rank for rank, one in enumerate(order, 1) if one.class_id in true}
        best = min(ranks.values(), default=0)
        index = min([one.index_rank for one in made if one.class_id in true and one.index_rank], default=0)
        trusted = self.trusted
        self.told.append((index, best if trusted else index))
        self.gain = 0.9995 * self.gain + (best == 1) - (index == 1)
        self.allowance *= 0.995
        if ranks:
            self.step(made, set(true), len(ranks))
        return ranks if trusted else {}

    def step(self, made: list[Candidate], true: set[int], m: int) -> None:
        keep = 1 - 1 / 10_000
        n = len(self.weights)
        mean, gradient = [0.0] * n, [0.0] * n
        for one in made:
            for a in range(n):
                mean[a] += one.share * one.terms[a]
        for a in range(n):
            for b in range(a + 1):
                self.curvature[a][b] *= keep
            self.curvature[a][a] += (1 - keep) * 10.0
        for one in made:
            for a in range(n):
                if one.class_id in true:
                    gradient[a] += one.terms[a] / m
                if one.share >= 1e-4:
                    for b in range(a + 1):
                        self.curvature[a][b] += one.share * (one.terms[a] - mean[a]) * (one.terms[b] - mean[b])
        step = solve(self.curvature, [g - x for g, x in zip(gradient, mean, strict=True)], 10.0)
        self.weights = [weight + part for weight, part in zip(self.weights, step, strict=True)]

    def add(self, q: Sequence[int], class_id: int) -> None:
        scale = 2048 / math.sqrt(sum(number * number for number in q))
        sums = self.sums.get(class_id, [0] * len(q))
        self.sums[class_id] = [a + round(b * scale) for a, b in zip(sums, q, strict=True)]
        self.counts[class_id] = self.counts.get(class_id, 0) + 1
        if self.counts[class_id] == 2**19:
            self.counts[class_id] //= 2
            self.sums[class_id] = [number >> 1 for number in self.sums[class_id]]
