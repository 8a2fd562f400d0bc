"""The sequential test: challengers are scored on live traffic without serving, and a rule decides which is promoted.

Before a scored instance is learned, the served version and each challenger rank it (prequential evaluation: Dawid,
1984). The test uses the **paired difference** d of their reciprocal ranks, in [-1, 1]. Both rank the same instance,
so the difficulty of the instance cancels out.

**The rule.** A challenger replaces the served version when its evidence reaches ``5 / alpha`` after at least
``min_events`` paired instances. Evidence is the capital of a gambler who bets, fairly, that the mean of d is above 0.
Each instance multiplies the capital by 1 + b d, where the earlier instances determine the bet b in [0, 1/2] (aGRAPA
of Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024, appendix B). If the
challenger is not better, whatever the earlier instances were, the capital is a supermartingale. The probability that
it ever reaches 1/p is then at most p (Ville, 1939), *however often the test is evaluated*. Four challengers at most,
and the index, make the bound ``5 / alpha``. From one change of the served version to the next, the probability that
any challenger is promoted without being better is therefore at most ``alpha`` for those that run together. Each
challenger that enters after another has left adds at most ``alpha / 5``.

A challenger may become better late, and a bet that lost for months would first have to win that back. So a new
gambler begins every ``INSTANCES_PER_GAMBLER`` instances with a part 1/(j (j + 1)) of the capital; the parts sum to 1
(mixtures over the time of a change: Shin, Ramdas and Rinaldo, E-detectors, 2023). At most ``MAX_GAMBLERS`` play. When
another one begins, the gambler with the smallest mean leaves and hands all its capital to the new one. (If the
poorest left, it would soon always be the newest.) This keeps the bound. While the challenger is not better, no
gambler's capital is expected to grow with the next instance, and neither is the sum of all capital and the reserve
for later gamblers, which is 1 at the beginning. Handing over does not change the sum, and only instances before the
next bet decide it.

The same rule with exchanged roles rolls back to the index or the former version when the promoted version falls
behind. The confidence interval of a difference also holds at all times at once: the predictable plug-in empirical
Bernstein sequence (theorem 2 of the same paper).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from abound_core.rank_sums import RankSums

MAX_CHALLENGERS = 4  # most at a time

INSTANCES_PER_GAMBLER = 500
MAX_GAMBLERS = 8
MAX_BET = 0.5

BLOCK = 500
BLOCKS = 10  # of the window of a score; the newest one is still filling


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParams:
    """Parameters of the promotion rule.

    Attributes
    ----------
    alpha : float, 1e-6 to 0.5
        Maximum probability that a challenger is promoted without being better, between two changes of the served
        version, for all challengers that run together. Each challenger that enters after another has left
        adds ``alpha / 5``.
    min_events : int
        Minimum number of paired instances.
    """

    alpha: float = 0.05
    min_events: int = 300

    def __post_init__(self) -> None:
        if not 1e-6 <= self.alpha <= 0.5:
            raise ValueError("alpha must be from 0.000001 to 0.5")
        if not 1 <= self.min_events <= 10**9:
            raise ValueError("min_events must be from 1 to 1000000000")

    @property
    def needed(self) -> float:
        """The evidence that a challenger needs to be promoted."""
        return (MAX_CHALLENGERS + 1) / self.alpha


class Score(msgspec.Struct):
    """The prequential score of one version, over all instances that it ranked and over a window of the newest."""

    all: RankSums = msgspec.field(default_factory=RankSums)
    blocks: list[RankSums] = msgspec.field(default_factory=list)

    def add(self, rank: int) -> None:
        self.all.add(rank)
        if not self.blocks or self.blocks[-1].n == BLOCK:
            self.blocks = [*self.blocks[1 - BLOCKS :], RankSums()]
        self.blocks[-1].add(rank)

    @property
    def window(self) -> RankSums:
        """Sums over the newest ``BLOCKS - 1`` to ``BLOCKS`` blocks."""
        return RankSums(
            sum(block.n for block in self.blocks),
            sum(block.hits_1 for block in self.blocks),
            sum(block.hits_5 for block in self.blocks),
            math.fsum(block.reciprocal for block in self.blocks),
        )


class Gambler(msgspec.Struct, array_like=True):
    """A sequence of bets, from some instance on, that the mean difference is above 0.

    ``capital`` is a logarithm; ``total`` and ``squares`` are sums of the differences since the gambler began.
    """

    capital: float
    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, d: float) -> None:
        """Set the bet from the earlier differences, then apply it to ``d``."""
        mean = self.total / (self.n + 1)
        if mean > 0.0:
            variance = max(0.0, (0.25 + self.squares - self.total * mean) / (self.n + 1))
            self.capital += math.log1p(min(MAX_BET, mean / (variance + mean * mean)) * d)
        self.n += 1
        self.total += d
        self.squares += d * d


class Interval(NamedTuple):
    """A confidence interval of the mean difference that holds at all times at once."""

    low: float
    high: float


class PairedComparison(msgspec.Struct):
    """A challenger compared with the served version, on the instances that both ranked."""

    n: int = 0  # paired instances
    total: float = 0.0  # sum of the differences
    gamblers: list[Gambler] = msgspec.field(default_factory=list)
    begun: int = 0
    weights: float = 0.0
    weighted: float = 0.0
    penalty: float = 0.0
    deviation: float = 0.0

    def add(self, d: float, alpha: float) -> None:
        """Add the next difference of reciprocal ranks. ``alpha`` is that of the interval, the same at every call.

        Gamblers begin and leave before ``d`` is used; the bound depends on this order.
        """
        self._widen(0.5 + 0.5 * d, alpha)
        if self.n % INSTANCES_PER_GAMBLER == 0:
            self.begun += 1
            new = Gambler(-math.log(self.begun * (self.begun + 1.0)))
            if len(self.gamblers) >= MAX_GAMBLERS:
                leaving = min(self.gamblers, key=lambda one: one.total / one.n)
                self.gamblers.remove(leaving)
                new.capital = _sum(new.capital, leaving.capital)
            self.gamblers.append(new)
        for gambler in self.gamblers:
            gambler.add(d)
        self.n += 1
        self.total += d

    def _widen(self, x: float, alpha: float) -> None:
        """Update the empirical Bernstein sequence with x in 0..1; its bets depend only on earlier instances."""
        t = self.n + 1
        mean = (0.5 + 0.5 * (self.n + self.total)) / t
        variance = (0.25 + self.deviation) / t
        bet = min(0.5, math.sqrt(2.0 * math.log(2.0 / alpha) / (variance * t * math.log1p(t))))
        self.weights += bet
        self.weighted += bet * x
        self.penalty += (x - mean) ** 2 * (-math.log1p(-bet) - bet)
        self.deviation += (x - (mean * t + x) / (t + 1)) ** 2

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else 0.0

    @property
    def evidence(self) -> float:
        """Total capital of all gamblers, 1 at the beginning; the reserve for later gamblers counts unchanged."""
        if not self.gamblers:
            return 1.0
        greatest = max(gambler.capital for gambler in self.gamblers)
        if greatest > 600.0:
            return math.exp(600.0)
        return math.fsum(math.exp(gambler.capital) for gambler in self.gamblers) + 1.0 / (self.begun + 1.0)

    def interval(self, alpha: float) -> Interval:
        """Return the interval of the mean difference; the probability that it is ever wrong is at most ``alpha``."""
        if not self.n:
            return Interval(-1.0, 1.0)
        middle = self.weighted / self.weights
        margin = (math.log(2.0 / alpha) + self.penalty) / self.weights
        return Interval(max(-1.0, 2.0 * (middle - margin) - 1.0), min(1.0, 2.0 * (middle + margin) - 1.0))


class Decision(msgspec.Struct, frozen=True):
    """The version to serve from now on, with the figures that decided."""

    kind: Literal["promote", "roll back"]
    version: str
    instead_of: str
    n: int
    difference: float
    low: float
    high: float
    evidence: float


class Contest(msgspec.Struct):
    """All versions that rank the same instances, compared with the served one. Plain values."""

    served: str  # name of the served version
    alpha: float  # error probability of the intervals
    scores: dict[str, Score] = msgspec.field(default_factory=dict)  # by name, including the served version
    # by name, for all versions but the served one
    comparisons: dict[str, PairedComparison] = msgspec.field(default_factory=dict)

    def set_served(self, name: str) -> None:
        """Set the served version. If it changes, all comparisons start again and the scores continue."""
        if name != self.served:
            self.served = name
            self.comparisons = {}

    def retain(self, names: Collection[str]) -> None:
        kept = {*names, self.served}
        self.scores = {name: score for name, score in self.scores.items() if name in kept}
        self.comparisons = {name: one for name, one in self.comparisons.items() if name in kept}

    def add(self, ranks: Mapping[str, int]) -> None:
        """Add an instance: the rank of the best true label by each version that ranked it, 0 where it was not ranked.

        Comparisons need the rank of the served version.
        """
        for name, rank in ranks.items():
            self.scores.setdefault(name, Score()).add(rank)
        if self.served not in ranks:
            return
        against = _reciprocal(ranks[self.served])
        for name, rank in ranks.items():
            if name != self.served:
                one = self.comparisons.setdefault(name, PairedComparison())
                one.add(_reciprocal(rank) - against, self.alpha)

    def decide(self, params: GateParams, promotable: Collection[str], fallback: Collection[str]) -> Decision | None:
        """Return the version to promote or to roll back to, by the rule in the module docstring.

        If several versions reach the needed evidence, the one with the most evidence wins. ``fallback`` are the index
        and the former version.
        """
        ready = [
            (one.evidence, name)
            for name, one in sorted(self.comparisons.items())
            if name in {*promotable, *fallback} and one.n >= params.min_events and one.evidence >= params.needed
        ]
        if not ready:
            return None
        evidence, name = max(ready, key=lambda pair: pair[0])
        one = self.comparisons[name]
        low, high = one.interval(self.alpha)
        kind: Literal["promote", "roll back"] = "roll back" if name in fallback else "promote"
        return Decision(kind, name, self.served, one.n, one.mean, low, high, evidence)


def _reciprocal(rank: int) -> float:
    return 1.0 / rank if rank > 0 else 0.0


def _sum(one: float, other: float) -> float:
    """Return log(exp(one) + exp(other)): capitals are kept as logarithms."""
    return max(one, other) + math.log1p(math.exp(-abs(one - other)))
