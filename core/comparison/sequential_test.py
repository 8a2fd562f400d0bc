"""Contenders: versions that are scored on live traffic without being served, and the rule by which one takes over.

Every scored instance is ranked by what is served and by each contender before it is learned (prequential evaluation:
Dawid, 1984). What is compared is the **paired difference** d of their reciprocal ranks, in [-1, 1]: both saw the same
instance, so what is hard for all cancels out.

**The rule.** A contender replaces what is served when its evidence reaches ``5 / alpha`` after at least ``min_events``
paired instances. Evidence is the capital of a gambler who bets, fairly, that d is above 0 in the mean: each instance
multiplies it by 1 + b d, where the bet b in [0, 1/2] is fixed by the instances before (aGRAPA of Waudby-Smith and
Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024, appendix B). As long as the contender is
not better, whatever the instances before were, that is a supermartingale, and with it never reaches 1/p with more than
chance p (Ville, 1939), *however often one looks*; at most four contenders and the index make it ``5 / alpha``. So from
one change of what is served to the next the chance that anything takes over without being better is at most ``alpha``
for those that contend together, and at most ``alpha / 5`` more for each that comes after another has left.

Being better can begin late: a bet that lost for months would have to win it back. So a new gambler begins every
``EVERY`` instances with a part 1/(j (j + 1)) of the capital, and the parts sum to 1 (mixtures over the time of a
change: Shin, Ramdas and Rinaldo, E-detectors, 2023). At most ``GAMBLERS`` play: when one more begins, the one whose own
mean is least leaves, and hands it all that it has. (Were it the poorest that leaves, it would soon always be the
newest.) That keeps the bound: as long as the contender is not better, nobody's capital is expected to grow by the next
instance, whoever holds it; so neither is the sum of all with what is put by for those to come, which is 1 at the
beginning. Handing over changes no sum, and who hands what to whom is fixed by the instances before the one that is bet
on next.

The same rule, with the roles changed, brings back the index or the former version when what was promoted falls behind.
The interval that is told with a difference holds for all times at once as well: the predictable plug-in empirical
Bernstein sequence (theorem 2 of the same paper).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

MOST = 4
"""Versions that can contend at a time."""

EVERY = 500
GAMBLERS = 8
LARGEST_BET = 0.5

BLOCK = 500
BLOCKS = 10
"""The window of a score: so many blocks of instances, the newest one still filling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateParams:
    """When a contender takes over.

    Attributes
    ----------
    alpha : float, 1e-6 to 0.5
        Largest chance that something takes over though it is not better, between two changes of what is served, of
        all that contend together; each that comes after another has left has a fifth of it.
    min_events : int
        Fewest paired instances.
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
        """The evidence that decides."""
        return (MOST + 1) / self.alpha


class Sums(msgspec.Struct, array_like=True):
    """Of some instances: how many, how many with a true label at rank 1 and up to 5, sum of the reciprocal ranks."""

    n: int = 0
    hits_1: int = 0
    hits_5: int = 0
    reciprocal: float = 0.0

    def note(self, rank: int) -> None:
        """Count an instance; rank 0: no true label was ranked."""
        self.n += 1
        if rank > 0:
            self.hits_1 += rank == 1
            self.hits_5 += rank <= 5
            self.reciprocal += 1.0 / rank

    def measures(self) -> dict[str, Any]:
        """``n``, and R@1, R@5 and MRR, None without an instance."""
        if not self.n:
            return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
        n = self.n
        return {"n": n, "R@1": self.hits_1 / n, "R@5": self.hits_5 / n, "MRR": self.reciprocal / n}


class Score(msgspec.Struct):
    """The prequential score of one version: over all that it was asked, and over a window of the newest."""

    all: Sums = msgspec.field(default_factory=Sums)
    blocks: list[Sums] = msgspec.field(default_factory=list)

    def note(self, rank: int) -> None:
        """Count an instance."""
        self.all.note(rank)
        if not self.blocks or self.blocks[-1].n == BLOCK:
            self.blocks = [*self.blocks[1 - BLOCKS :], Sums()]
        self.blocks[-1].note(rank)

    @property
    def window(self) -> Sums:
        """The newest ``BLOCKS - 1`` to ``BLOCKS`` blocks."""
        return Sums(
            sum(block.n for block in self.blocks),
            sum(block.hits_1 for block in self.blocks),
            sum(block.hits_5 for block in self.blocks),
            math.fsum(block.reciprocal for block in self.blocks),
        )


class Gambler(msgspec.Struct, array_like=True):
    """One that bets on a difference above 0, from some instance on.

    ``capital`` is a logarithm; ``total`` and ``squares`` are sums of what came since it began.
    """

    capital: float
    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def note(self, d: float) -> None:
        """Bet by what came before, then see the difference."""
        mean = self.total / (self.n + 1)
        if mean > 0.0:
            variance = max(0.0, (0.25 + self.squares - self.total * mean) / (self.n + 1))
            self.capital += math.log1p(min(LARGEST_BET, mean / (variance + mean * mean)) * d)
        self.n += 1
        self.total += d
        self.squares += d * d


class Interval(NamedTuple):
    """Where the mean difference lies, at all times at once."""

    low: float
    high: float


class Comparison(msgspec.Struct):
    """A contender against what is served, since both are what they are.

    Attributes
    ----------
    n : int
        Paired instances.
    total : float
        Sum of the differences.
    """

    n: int = 0
    total: float = 0.0
    gamblers: list[Gambler] = msgspec.field(default_factory=list)
    begun: int = 0
    weights: float = 0.0
    weighted: float = 0.0
    penalty: float = 0.0
    deviation: float = 0.0

    def note(self, d: float, alpha: float) -> None:
        """Take the next difference of reciprocal ranks; ``alpha``: of the interval, the same at every call.

        Who begins and who leaves is settled before ``d`` is looked at: the bound rests on that.
        """
        self._widen(0.5 + 0.5 * d, alpha)
        if self.n % EVERY == 0:
            self.begun += 1
            new = Gambler(-math.log(self.begun * (self.begun + 1.0)))
            if len(self.gamblers) >= GAMBLERS:
                leaving = min(self.gamblers, key=lambda one: one.total / one.n)
                self.gamblers.remove(leaving)
                new.capital = _sum(new.capital, leaving.capital)
            self.gamblers.append(new)
        for gambler in self.gamblers:
            gambler.note(d)
        self.n += 1
        self.total += d

    def _widen(self, x: float, alpha: float) -> None:
        """The empirical Bernstein sequence of x in 0..1; all that it bets is fixed by what came before."""
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
        """Of the differences so far."""
        return self.total / self.n if self.n else 0.0

    @property
    def evidence(self) -> float:
        """The capital of all gamblers together, 1 at the beginning; the part of those to come counts as it is."""
        if not self.gamblers:
            return 1.0
        greatest = max(gambler.capital for gambler in self.gamblers)
        if greatest > 600.0:
            return math.exp(600.0)
        return math.fsum(math.exp(gambler.capital) for gambler in self.gamblers) + 1.0 / (self.begun + 1.0)

    def interval(self, alpha: float) -> Interval:
        """Of the mean difference; wrong at any time at all with a chance of at most ``alpha``."""
        if not self.n:
            return Interval(-1.0, 1.0)
        middle = self.weighted / self.weights
        margin = (math.log(2.0 / alpha) + self.penalty) / self.weights
        return Interval(max(-1.0, 2.0 * (middle - margin) - 1.0), min(1.0, 2.0 * (middle + margin) - 1.0))


class Decision(msgspec.Struct, frozen=True):
    """What is to be served from now on, and why."""

    kind: Literal["promote", "roll back"]
    version: str
    instead_of: str
    n: int
    difference: float
    low: float
    high: float
    evidence: float


class Contest(msgspec.Struct):
    """All versions that are asked about the same instances, against the one that is served. Plain values.

    Attributes
    ----------
    served : str
        Its name.
    alpha : float
        Of the intervals.
    scores : dict of Score
        By name, of what is served too.
    comparisons : dict of Comparison
        By name, of everything else.
    """

    served: str
    alpha: float
    scores: dict[str, Score] = msgspec.field(default_factory=dict)
    comparisons: dict[str, Comparison] = msgspec.field(default_factory=dict)

    def serve(self, name: str) -> None:
        """Another version is served: all comparisons begin anew, the scores go on."""
        if name != self.served:
            self.served = name
            self.comparisons = {}

    def keep(self, names: Collection[str]) -> None:
        """Forget all but these, and what is served."""
        kept = {*names, self.served}
        self.scores = {name: score for name, score in self.scores.items() if name in kept}
        self.comparisons = {name: one for name, one in self.comparisons.items() if name in kept}

    def note(self, ranks: Mapping[str, int]) -> None:
        """Take an instance: the rank of the best true label by each version that was asked, 0 where it has none.

        Without the one that is served nothing is compared.
        """
        for name, rank in ranks.items():
            self.scores.setdefault(name, Score()).note(rank)
        if self.served not in ranks:
            return
        against = _reciprocal(ranks[self.served])
        for name, rank in ranks.items():
            if name != self.served:
                one = self.comparisons.setdefault(name, Comparison())
                one.note(_reciprocal(rank) - against, self.alpha)

    def decide(self, params: GateParams, promotable: Collection[str], fallback: Collection[str]) -> Decision | None:
        """What is to take over, by the rule at the top of this file: of several the one with the most evidence.

        Parameters
        ----------
        params : GateParams
        promotable : names
            Contenders that may take over.
        fallback : names
            What may come back in place of one that was promoted: the index, the former version.
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
    """Of two capitals, all three as logarithms."""
    return max(one, other) + math.log1p(math.exp(-abs(one - other)))
