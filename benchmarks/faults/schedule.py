"""What happens at each kill: derived from the seed and the kill's number alone, so that any run can be gone on with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from benchmarks.faults.fleet import SERVES

KILLS = {
    "replica": 6,  # the process that answers; the one above it starts it again
    "serve": 8,  # all processes of one `abound serve`
    "worker": 5,
    "store": 5,  # and started again on its files
    "failover": 4,  # the copy takes the primary's place
    "copy": 2,
    "balancer": 1,
    "everything": 3,
}
"""What can be killed, and how often compared to the others."""

TROUBLES = {"stop": 6, "cut": 4, "refuse": 2, "hold": 2, "slow": 2}
"""What can happen besides, around a kill: a process that is stopped for a while; a wire that is cut once, closed for
a while, lets nothing through, or is slow."""

Kind = Literal["stop", "cut", "refuse", "hold", "slow"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that passes.

    Attributes
    ----------
    kind : str
    target : str
        A program, or ``store`` (only stopped).
    after, seconds : float
        From the beginning of the step; how long.
    """

    kind: str
    target: str
    after: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One kill and what goes with it.

    Attributes
    ----------
    number : int
    kill, target : str
        One of ``KILLS``; the program, where there are several.
    after : float
        Seconds from the beginning of the step.
    away : float
        Seconds until what nobody else starts again is started again.
    troubles : tuple of Trouble
    calm : bool
        Whether everything is waited for before the next step; else only some of it may be back.
    """

    number: int
    kill: str
    target: str
    after: float
    away: float
    troubles: tuple[Trouble, ...]
    calm: bool

    def __str__(self) -> str:
        kill = f"{self.kill} {self.target}".strip()
        return ", ".join([kill, *(f"{t.kind} {t.target} {t.seconds:.1f} s" for t in self.troubles)])


def step(seed: int, number: int) -> Step:
    """The step of a number, from 1."""
    rng = random.Random(f"{seed}/{number}")
    programs = [*(f"serve{i}" for i in range(SERVES)), "worker"]
    kill = rng.choices(list(KILLS), list(KILLS.values()))[0]
    target = f"serve{rng.randrange(SERVES)}" if kill in ("replica", "serve") else ""
    troubles = []
    for _ in range(rng.choices((0, 1, 2), (3, 4, 2))[0]):
        kind = rng.choices(list(TROUBLES), list(TROUBLES.values()))[0]
        where = rng.choice([*programs, "store"] if kind == "stop" else programs)
        troubles.append(Trouble(kind, where, rng.uniform(0.0, 1.5), rng.uniform(0.2, 3.5)))
    return Step(number, kill, target, rng.uniform(0.2, 1.5), rng.uniform(0.0, 1.5), tuple(troubles), rng.random() < 0.7)
