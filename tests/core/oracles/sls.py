"""Sparse least squares as one would write it down, with dictionaries: slow, plain, and no code of the product's.

Sums and products are in the order of the index, so that all numbers are equal to the last bit.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from tests.core.oracles.calibration import logarithm

ETA, NEGATIVES, THETA_NEGATIVE, THETA_INSERT, FLOOR = 0.6, 8, 0.05, 0.2, 0.1
REACH, LEAST_WEIGHT, SHARED, MOST_SLOTS, MOST_ERROR = 0.3, 0.02, 2**17, 1024, 8.0


def short_weight(weight: float) -> float:
    """A float32 with 16 bits of mantissa, the leading one among them."""
    bits = np.array(weight, np.float32).view(np.uint32).astype(np.uint64)
    return float(np.uint32((int(bits) + 0x80) >> 8 << 8).view(np.float32))


def short_steps(steps: float) -> float:
    """A multiple of 1/4096, at most 65535 of them."""
    return min(math.floor(steps * 4096 + 0.5), 65_535) / 4096


def share_of(true: list[int]) -> float:
    """The number of true classes to the power of -3/8."""
    root = math.sqrt(math.sqrt(max(len(true), 1)))
    return 1.0 / (root * math.sqrt(root))


def weighted_step(step: float, weight: float, most: float) -> float:
    """The step of an instance of this weight, at most ``most`` unless the step alone is longer."""
    return min(step * weight, max(step, most))


@dataclass
class Oracle:
    may_have_rows = False

    slots: int = 64
    eta: float = ETA
    recovery: float = 0.15
    idf: bool = True
    shared: int = SHARED
    n: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    postings: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)  # feature -> class -> (w, g)

    def vector(self, instance: dict[int, float]) -> dict[int, float]:
        weighed, squares = {}, 0.0
        for feature, value in instance.items():
            idf = max(0.01, logarithm((self.n + 1) / (self.seen.get(feature, 0) + 0.5))) if self.idf else 1.0
            weighed[feature] = float(np.float32(value * idf))
            squares += (value * idf) ** 2
        scale = 1.0 / math.sqrt(squares)
        return {feature: float(np.float32(value * scale)) for feature, value in weighed.items()}

    def scores(self, vector: dict[int, float]) -> dict[int, float]:
        scores: dict[int, float] = {}
        for feature, value in vector.items():
            for class_id, (weight, _) in self.postings.get(feature, {}).items():
                scores[class_id] = scores.get(class_id, 0.0) + value * weight
        return scores

    def rank(self, instance: dict[int, float]) -> list[tuple[int, float]]:
        return sorted(self.scores(self.vector(instance)).items(), key=lambda item: (-item[1], item[0]))

    def learn(
        self,
        instance: dict[int, float],
        true: list[int],
        counted: bool = True,
        strengths: dict[int, float] | None = None,
        weight: float = 1.0,
        partial: bool = False,
    ) -> list[int]:
        """The ranks of the true classes before learning; 0: without a score.

        ``strengths`` are those of the wrong classes: 1 for a rejected one, ``implicit`` for an ignored one.
        """
        if counted:
            self.n += 1
            for feature in instance:
                self.seen[feature] = self.seen.get(feature, 0) + 1
        vector = self.vector(instance)
        scores = self.scores(vector)
        ranking = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        places = {class_id: rank for rank, (class_id, _) in enumerate(ranking, start=1)}
        lowest = max(THETA_NEGATIVE, min([1.0, *(scores.get(c, 0.0) for c in true)]) - REACH)
        others = [(c, s) for c, s in ranking if c not in true and s > lowest][: NEGATIVES + 4 * (len(true) - 1)]
        others = others if true and not partial else []
        share = share_of(true)
        errors = {c: min(1.0 - scores.get(c, 0.0), MOST_ERROR) * share for c in true if scores.get(c, 0.0) < 1.0}
        inserted = list(errors) + [c for c, s in others if s - THETA_NEGATIVE > THETA_INSERT]
        errors |= {c: max(THETA_NEGATIVE - s, -MOST_ERROR) * share for c, s in others}
        for c, strength in (strengths or {}).items():
            height = THETA_NEGATIVE + strength * (scores.get(c, 0.0) - THETA_NEGATIVE)
            if height > THETA_NEGATIVE and c not in errors:
                errors[c] = max(THETA_NEGATIVE - height, -MOST_ERROR) * share
                inserted += [c] if height - THETA_NEGATIVE > THETA_INSERT else []
        for feature, value in vector.items():
            self.update(self.postings.setdefault(feature, {}), value, errors, inserted, weight, share)
        unscored = 0 if self.may_have_rows else len([c for c in true if c not in scores])
        return [places.get(c, 0) + (unscored if scores.get(c, 0.0) < 0.0 else 0) for c in true]

    def update(
        self,
        posting: dict[int, tuple[float, float]],
        value: float,
        errors: dict[int, float],
        inserted: list[int],
        importance: float = 1.0,
        share: float = 1.0,
    ) -> None:
        recovery = self.recovery / (share * share)
        for class_id, (weight, steps) in list(posting.items()):
            if class_id in errors:
                grown = steps + importance * (value * value)
                grown *= 1.0 - min(recovery * (errors[class_id] * errors[class_id]), self.recovery)
                step = weighted_step(max(1.0 / (1.0 + grown), FLOOR), importance, 1.0 / self.eta)
                weight += self.eta * errors[class_id] * value * step
                posting[class_id] = (short_weight(weight), short_steps(grown))
        for class_id in inserted:
            if class_id in posting:
                continue
            steps = importance * (value * value)
            step = weighted_step(max(1.0 / (1.0 + steps), FLOOR), importance, 1.0 / self.eta)
            weight = self.eta * value * step * errors[class_id]
            if abs(weight) < LEAST_WEIGHT:
                continue
            entry = (short_weight(weight), short_steps(steps))
            if len(posting) < max(self.slots, min(MOST_SLOTS, self.shared // (max(self.seen) + 1))):
                posting[class_id] = entry
                continue
            weakest = min(posting, key=lambda c: abs(posting[c][0]))  # the first of them, in order of arrival
            items = [(class_id, entry) if c == weakest else (c, old) for c, old in posting.items()]
            posting.clear()
            posting.update(items)
