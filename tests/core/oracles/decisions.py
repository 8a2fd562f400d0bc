"""Decisions as one would write them down: slow, plain, and no code of the product's but SipHash.

Its sums are in the order that the product promises, so that the numbers can be compared bit for bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.core.oracles.calibration import logarithm

Ranked = list[tuple[int, float, float]]  # class, score and probability, best first


def place_of(value: float, lowest: float, per_unit: float, n: int) -> int:
    return int(min(max((value - lowest) * per_unit, 0.0), n - 1.0))


def probability_bin(p: float) -> int:
    p = min(max(p, 1e-6), 1 - 1e-6)
    return place_of(logarithm(p / (1 - p)), -4.0, 5.0, 50)


def score_bin(score: float) -> int:
    return place_of(logarithm(0.02 + max(score, 0.0)), -4.0, 24.0, 128)


def wilson(share: float, n: float) -> float:
    spread = math.sqrt(share * (1 - share) / n + 0.25 * (1 / n) / n)
    return (share + 0.5 * (1 / n) - spread) / (1 + 1 / n)


@dataclass
class Oracle:
    agreement: float
    audit: float
    none: float
    coverage: float
    is_audited: Callable[[bytes], bool]
    outcomes: list[list[float]] = field(default_factory=lambda: [[0.0] * 3 for _ in range(50)])
    scores: list[list[float]] = field(default_factory=lambda: [[0.0] * 128 for _ in range(2)])
    theta: float = 0.0
    deferred: float = 0.0
    held: float = 0.0
    reached: float = 0.0
    more_labels: float = 0.0
    counted: list[tuple[str, int, int]] = field(default_factory=list)  # decision, labels applied, right ones

    def threshold(self) -> int:
        found, traffic, right, squares = 50, 0.0, 0.0, 0.0
        for place in reversed(range(50)):
            n, n_right, weight = self.outcomes[place]
            if n:
                traffic += weight
                right += weight * (n_right / n)
                squares += weight * weight / n
            worth = traffic * traffic / squares / (1.0 + self.more_labels) if squares else 0.0
            if worth >= 30 and wilson(min(right / traffic, 1.0), worth) >= self.agreement:
                found = place
        return found

    def bound(self) -> int:
        known, examples = (sum(row) for row in self.scores)
        if known < 100 or self.none == 0:
            return 0
        quotients = [
            [x / max(total, 1e-9) for x in row] for row, total in zip(self.scores, (known, examples), strict=True)
        ]
        shares = [(sum(quotients[0][:b]), sum(quotients[1][:b])) for b in range(128)]
        if examples < 20:
            return max(b for b, (below, _) in enumerate(shares) if below <= self.none)
        possible = [(caught - below, -b) for b, (below, caught) in enumerate(shares) if below <= 2 * self.none]
        gain, b = max(possible)
        return -b if gain > 0 else 0

    def decide(self, ranked: Ranked, plain: float) -> tuple[str, list[int], list[int]]:
        """The decision, the classes to apply, and the candidates."""
        threshold = self.threshold()
        applied = [c for c, _, p in self.judged(ranked) if probability_bin(p) >= threshold]
        decision = "none" if score_bin(plain) < self.bound() else "answer" if applied else "defer"
        candidates = []
        for at, (class_id, _, _) in enumerate(ranked[:50]):
            if self.lag(ranked, at) > self.theta:
                break
            candidates.append(class_id)
        return decision, applied if decision == "answer" else [], candidates

    def judged(self, ranked: Ranked) -> Ranked:
        return ranked[: 5 if self.more_labels > 0.01 else 1]

    def lag(self, ranked: Ranked, at: int) -> float:
        return logarithm(0.02 + max(ranked[0][1], 0.0)) - logarithm(0.02 + max(ranked[at][1], 0.0))

    def learn(self, vector: bytes, ranked: Ranked, plain: float, labels: list[int]) -> None:
        """An instance before it is learned; its true classes are -1 for new ones."""
        true = set(labels)
        decision, applied, _ = self.decide(ranked, plain)
        if decision == "answer" and not self.is_audited(vector):
            return
        weight, keep = 1.0 / self.audit if decision == "answer" else 1.0, 1.0 - 1.0 / 2000
        if decision != "none":
            self.outcomes = [[x * keep for x in row] for row in self.outcomes]
            for class_id, _, p in self.judged(ranked):
                row = self.outcomes[probability_bin(p)]
                row[0], row[1], row[2] = row[0] + 1, row[1] + (class_id in true), row[2] + weight
        is_known = bool(true - {-1})
        self.scores = [
            [x * (1.0 - 1.0 / 400) for x in self.scores[0]],
            [x * (1.0 - 1.0 / 1000) for x in self.scores[1]],
        ]
        self.scores[not is_known][score_bin(plain)] += weight if is_known else 1.0
        if is_known and decision == "defer":
            self.learn_set(ranked, true, keep)
        self.more_labels += (max(len(labels) - 1.0, 0.0) - self.more_labels) / 200.0
        self.counted.append((decision, len(applied), len(true & set(applied))))

    def learn_set(self, ranked: Ranked, true: set[int], keep: float) -> None:
        first = next((at for at, one in enumerate(ranked[:50]) if one[0] in true), None)
        held = first is not None and self.lag(ranked, first) <= self.theta
        self.deferred = keep * self.deferred + 1.0
        self.held = keep * self.held + held
        self.reached = keep * self.reached + (first is not None)
        step = 2.0 * max(1.0 / math.sqrt(self.deferred), 0.02)
        self.theta = min(max(self.theta + step * ((0.0 if held else 1.0) - (1.0 - self.coverage)), 0.0), 20.0)
