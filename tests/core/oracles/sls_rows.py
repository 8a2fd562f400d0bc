"""``sls`` in rows, with numpy arrays of all features and classes: plain, slow, and no code of the product's.

Lists are those of ``squares_oracle``; here is what changes between the two forms, and the rule in rows.
"""

import math

import numpy as np

from tests.core.oracles.sls import LEAST_WEIGHT, MOST_SLOTS, Oracle, short_steps, short_weight, weighted_step


class RowsOracle(Oracle):
    may_have_rows = True

    """An index that may be in rows; ``most_cells`` features times classes at most."""

    def __init__(self, most_cells: int = 2**19, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.most_cells = most_cells
        self.in_rows = False
        self.n_features = self.n_classes = self.n_labels = self.n_in_rows = 0
        self.weights = np.zeros((500, 200), np.float32)
        self.grown, self.intercepts, self.times = np.zeros(500), np.zeros(200), np.zeros(200)

    def scores(self, vector: dict[int, float]) -> dict[int, float]:
        if not self.in_rows:
            return super().scores(vector)
        scores = {}
        for c in range(self.n_classes):
            score = float(self.intercepts[c])
            for feature, value in vector.items():
                score += value * float(self.weights[feature, c])
            scores[c] = score
        return scores

    def choose_form(
        self, instance: dict[int, float], true: list[int], wrong: list[int], counted: bool, partial: bool
    ) -> None:
        before = self.n_features, self.n_classes
        self.n_features = max(self.n_features, *(f + 1 for f in instance))
        self.n_classes = max([self.n_classes, *(c + 1 for c in true + wrong)])
        wanted, number = self.in_rows, self.n + 1
        if counted and number >= 8 and math.log2(number).is_integer():
            wanted = self.n_labels >= 2 * self.n
        if self.n_features * self.n_classes > self.most_cells:
            wanted = False
        if wanted and not self.in_rows:
            self.to_rows(before[1])
        elif self.in_rows and not wanted:
            self.to_lists(*before)
        self.in_rows = wanted
        mean = self.n_labels // max(self.n, 1) if partial or not true else 0
        self.n_labels += max(len(true), mean) * counted

    def to_rows(self, n_classes: int) -> None:
        self.weights[:] = self.grown[:] = self.intercepts[:] = self.times[:] = self.n_in_rows = 0
        self.times[:n_classes] = 4
        for feature, posting in self.postings.items():
            for c, (weight, steps) in posting.items():
                self.weights[feature, c] = weight
                self.grown[feature] = max(self.grown[feature], steps / 3)
        self.postings = {}

    def to_lists(self, n_features: int, n_classes: int) -> None:
        most = max(self.slots, min(MOST_SLOTS, self.shared // self.n_features))
        for feature in range(n_features):
            row = {
                c: np.float32(float(self.weights[feature, c]) * (self.times[c] / (self.times[c] + 4)))
                for c in range(n_classes)
            }
            best = sorted((c for c in row if abs(row[c]) >= LEAST_WEIGHT), key=lambda c: (-abs(row[c]), c))[:most]
            if best:
                steps = short_steps(self.grown[feature])
                self.postings[feature] = {c: (short_weight(float(row[c])), steps) for c in best}

    def forget(self, feature: int) -> None:
        self.postings.pop(feature, None)
        self.seen[feature] = 0
        self.weights[feature] = self.grown[feature] = 0

    def learn(
        self,
        instance: dict[int, float],
        true: list[int],
        counted: bool = True,
        strengths: dict[int, float] | None = None,
        weight: float = 1.0,
        partial: bool = False,
    ) -> list[int]:
        self.choose_form(instance, true, list(strengths or {}), counted, partial)
        if not self.in_rows:
            return super().learn(instance, true, counted, strengths, weight, partial)
        if counted:
            self.n += 1
            for feature in instance:
                self.seen[feature] = self.seen.get(feature, 0) + 1
        vector = self.vector(instance)
        scores = self.scores(vector)
        new = [c for c in true if self.times[c] == 0]
        ranking = sorted((c for c in scores if c not in new), key=lambda c: (-scores[c], c))
        places = {c: rank for rank, c in enumerate(ranking, start=1)}
        errors = np.array([-scores[c] for c in range(self.n_classes)])
        if not true or partial:
            corrected = {c: strength for c, strength in (strengths or {}).items() if scores[c] > 0}
            corrected |= dict.fromkeys(true, 1.0)
            errors = np.array([errors[c] * corrected.get(c, 0.0) for c in range(self.n_classes)])
        errors[true] += 1
        errors *= max(len(true), 1) ** -0.375
        self.n_in_rows += 1
        step = weighted_step(max(1 / (1 + self.n_in_rows / 3), 0.02), weight, 0.5 / self.eta)
        self.intercepts[: self.n_classes] += self.eta * step * errors
        errors[true] *= 1 + 4 / (1 + self.times[true])
        self.times[true] += 1
        errors = errors.astype(np.float32)
        for feature, value in vector.items():
            self.grown[feature] += weight * (value * value) / 3
            step = weighted_step(max(1 / (1 + self.grown[feature]), 0.2), weight, 0.5 / self.eta)
            self.weights[feature, : self.n_classes] += np.float32(self.eta * value * step) * errors
        return [places.get(c, 0) for c in true]
