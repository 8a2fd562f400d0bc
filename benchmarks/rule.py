"""How often the rule of the gate is wrong, and how soon it is right: ``python -m benchmarks.rule [--json] [--runs N]``.

Paired differences are drawn and given to ``abound.core.promotion_rule.PairedComparison`` one after the
other, which is looked at after each of them, as the gate does.

1. Without any difference: drawn evenly from ``NONE``. Told is the share of runs in which the evidence reaches 1 / alpha
   at any time, in which the interval at alpha leaves 0 out at any time, and in which a z-test of one side at alpha,
   which is looked at as often (from instance ``FIRST`` on), finds a difference.
2. With one: drawn from a beta distribution over -1 to 1 with this mean and the standard deviation ``DEVIATION``. Told
   is the median of the instances until the evidence is what the gate asks for by default; None where half of the runs
   do not come to it in ``MOST`` instances.
3. With one that comes late: worse in the mean by ``LED`` for some time (``AFTER``), then better by ``LATE``, as what
   was replaced is when the version that took over falls behind. Told is the median of the instances from the change on,
   of ``--late-runs`` runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.promotion_rule import GateParams, PairedComparison

ALPHA = 0.05
NONE = (-1.0, -0.5, 0.0, 0.0, 0.5, 1.0)
MEANS = (0.02, 0.05, 0.1, 0.3)
DEVIATION = 0.4
FIRST = 30
MOST = 50_000
AFTER = (20_000, 100_000, 200_000)
LED, LATE = -0.1, 0.05
SEED = 0

Floats = npt.NDArray[np.float64]


def without_any(runs: int, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Shares of the runs in which each is wrong."""
    wrong = {"evidence": 0, "interval": 0, "z_test": 0}
    for _ in range(runs):
        differences = rng.choice(NONE, n)
        one, reached, missed = PairedComparison(), False, False
        for d in differences.tolist():
            one.add(d, ALPHA)
            reached = reached or one.evidence >= 1.0 / ALPHA
            low, high = one.interval(ALPHA)
            missed = missed or not low <= 0.0 <= high
        wrong["evidence"] += reached
        wrong["interval"] += missed
        wrong["z_test"] += z_test(differences)
    return {"runs": runs, "instances": n} | {name: many / runs for name, many in wrong.items()}


def z_test(differences: Floats) -> bool:
    """Whether a z-test of one side at ``ALPHA`` is passed after any instance."""
    n = np.arange(1, len(differences) + 1)
    mean = np.cumsum(differences) / n
    variance = np.cumsum(differences**2) / n - mean**2
    z = mean[FIRST - 1 :] / np.sqrt(variance[FIRST - 1 :] / n[FIRST - 1 :])
    return bool((z > statistics.NormalDist().inv_cdf(1.0 - ALPHA)).any())


def until_found(mean: float, runs: int, rng: np.random.Generator) -> float | None:
    """The median of the instances that it takes."""
    return median([until_decided(PairedComparison(), mean, rng) for _ in range(runs)])


def until_found_late(worse: int, runs: int, rng: np.random.Generator) -> float | None:
    """The same, from the change on, when it was worse for so many instances."""
    took = []
    for _ in range(runs):
        one = PairedComparison()
        for d in drawn(LED, worse, rng).tolist():
            one.add(d, ALPHA)
        took.append(until_decided(one, LATE, rng))
    return median(took)


def until_decided(one: PairedComparison, mean: float, rng: np.random.Generator) -> float:
    """More instances that a comparison takes."""
    needed, before = GateParams().needed, one.n
    for d in drawn(mean, MOST, rng).tolist():
        one.add(d, ALPHA)
        if one.evidence >= needed:
            return one.n - before
    return math.inf


def drawn(mean: float, n: int, rng: np.random.Generator) -> Floats:
    """Differences of a beta distribution over -1 to 1."""
    middle = (1.0 + mean) / 2.0
    whole = middle * (1.0 - middle) / (DEVIATION / 2.0) ** 2 - 1.0
    return 2.0 * rng.beta(middle * whole, (1.0 - middle) * whole, n) - 1.0


def median(took: list[float]) -> float | None:
    """None where half of them do not come to it."""
    middle = statistics.median(took)
    return None if math.isinf(middle) else middle


def main() -> None:
    """Draw, tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rule", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--late-runs", type=int, default=20)
    parser.add_argument("--instances", type=int, default=5000, help="of a run without any difference")
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    found = {mean: until_found(mean, options.runs, rng) for mean in MEANS}
    none = without_any(options.runs, options.instances, rng)
    late = {worse: until_found_late(worse, options.late_runs, rng) for worse in AFTER}
    if options.json:
        print(json.dumps({"none": none, "until_found": found, "until_found_late": late}))
        return
    print(f"without any difference, {none['runs']:,} runs of {none['instances']:,} instances, wrong at any time:")
    print(", ".join(f"{name} {none[name]:.1%}" for name in ("evidence", "interval", "z_test")))
    print(f"with one, standard deviation {DEVIATION}, instances in the median:")
    print(", ".join(f"{mean}: {many}" for mean, many in found.items()))
    print(f"of {LATE} after some instances with {LED}, from the change on, in the median:")
    print(", ".join(f"{worse:,}: {many}" for worse, many in late.items()))


if __name__ == "__main__":
    main()
