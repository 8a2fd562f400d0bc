"""Calibration as one would write it down, with lists: slow, plain, and no code of the product's.

Its sums are in the order that the product promises, so that the numbers can be compared bit for bit.
"""

import math
from dataclasses import dataclass, field

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


def exponential(x: float) -> float:
    twos = x * (1 / math.log(2))
    n = int(twos + 0.5) if twos >= 0 else int(twos - 0.5)
    rest = x - n * LN2_HIGH - n * LN2_LOW
    total = 0.0
    for power in reversed(range(14)):
        total = total * rest + 1.0 / math.factorial(power)
    return math.ldexp(total, n)


def logarithm(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    mantissa, exponent = 2 * mantissa, exponent - 1
    if mantissa > math.sqrt(2):
        mantissa, exponent = mantissa / 2, exponent + 1
    z = (mantissa - 1) / (mantissa + 1)
    total = 1 / 19
    for odd in range(17, 0, -2):
        total = total * (z * z) + 1 / odd
    return exponent * 0.6931471805599453 + 2 * z * total


def terms(score: float, best: float, second: float, is_best: bool) -> list[float]:
    score, best, second = max(score, 0.0), max(best, 0.0), max(second, 0.0)
    lead, distance = (score - second, 0.0) if is_best else (0.0, best - score)
    return [1.0, score, lead, distance, float(is_best), logarithm(0.02 + score)]


def solve(curvature: list[list[float]], gradient: list[float], ridge: float) -> list[float]:
    """L D L' by rows, then forwards and backwards."""
    n = len(gradient)
    lower = [[0.0] * n for _ in range(n)]
    pivots, forward, step = [0.0] * n, [0.0] * n, [0.0] * n
    for i in range(n):
        for j in range(i):
            entry = curvature[i][j]
            for k in range(j):
                entry -= lower[i][k] * pivots[k] * lower[j][k]
            lower[i][j] = entry / pivots[j]
        pivots[i] = curvature[i][i]
        for k in range(i):
            pivots[i] -= lower[i][k] * pivots[k] * lower[i][k]
        pivots[i] = max(pivots[i], ridge)
        forward[i] = gradient[i]
        for k in range(i):
            forward[i] -= lower[i][k] * forward[k]
    for i in reversed(range(n)):
        step[i] = forward[i] / pivots[i]
        for k in range(i + 1, n):
            step[i] -= lower[k][i] * step[k]
    return step


@dataclass
class Oracle:
    weights: list[float] = field(default_factory=lambda: [-2.0, 4.0, 0.0, 0.0, 0.0, 0.0])
    curvature: list[list[float]] = field(default_factory=lambda: [[float(i == j) for j in range(6)] for i in range(6)])
    stretches: list[list[tuple[float, bool]]] = field(default_factory=lambda: [[]])  # estimates and outcomes

    def estimate(self, x: list[float]) -> float:
        logit = 0.0
        for weight, term in zip(self.weights, x, strict=True):
            logit += weight * term
        return 1.0 / (1.0 + exponential(-min(max(logit, -30.0), 30.0)))

    def answer(self, ranked: list[tuple[int, float]], place: int) -> float:
        """The probability of a class of a ranking, as answers have it."""
        second = ranked[1][1] if len(ranked) > 1 else 0.0
        x = terms(ranked[place][1], ranked[0][1], second, place == 0)
        learned, self.weights = self.weights, list(self.weights)
        self.weights[5] = max(self.weights[5], 0.0)
        self.weights[1] = max(self.weights[1], -self.weights[2] - self.weights[5] / 1.02)
        chance = self.estimate(x)
        self.weights = learned
        knots, share = [(0.0, 0.0)], 0.0
        for tenth in range(10):
            pairs = [[p for p in part if min(int(p[0] * 10), 9) == tenth] for part in self.stretches[-2:]]
            expected = sum(sum((p[0] for p in part), 0.0) for part in pairs)
            share = min((sum(p[1] for part in pairs for p in part) + 0.1) / (expected + 2.5), 1.0)
            middle = (tenth + 0.5) / 10
            knots.append((middle, max(knots[-1][1], middle * share)))
        knots.append((1.0, max(knots[-1][1], share)))
        at = int(chance * 10 + 0.5)
        part = chance * 10 + 0.5 - at
        part = 2 * (chance * 10 + 0.5) - 1 if at == 0 else 2 * (chance * 10 + 0.5 - 10) if at == 10 else part
        return knots[at][1] + (knots[at + 1][1] - knots[at][1]) * part

    def learn(self, ranked: list[tuple[int, float]], true: set[int], known: set[int] | None = None) -> None:
        """An instance by its best five classes and their scores, its true classes, and those of which it is known."""
        best = [(place, *pair) for place, pair in enumerate(ranked[:5]) if pair[1] > 0.0]
        pairs = [one for one in best if known is None or one[1] in known]
        if not pairs:
            return
        keep = 1 - len(pairs) / 10_000
        for i in range(6):
            for j in range(i + 1):
                self.curvature[i][j] *= keep
            self.curvature[i][i] += 1 - keep
        gradient = [0.0] * 6
        second = ranked[1][1] if len(ranked) > 1 else 0.0
        for place, class_id, score in pairs:
            x = terms(score, ranked[0][1], second, place == 0)
            chance = self.estimate(x)
            self.stretches[-1].append((chance, class_id in true))
            error, variance = (class_id in true) - chance, max(chance * (1 - chance), 0.02)
            for i in range(6):
                gradient[i] += error * x[i]
                for j in range(i + 1):
                    self.curvature[i][j] += variance * x[i] * x[j]
        if len(self.stretches[-1]) >= 10_000:
            self.stretches.append([])
        step = solve(self.curvature, gradient, 1.0)
        self.weights = [weight + part for weight, part in zip(self.weights, step, strict=True)]
