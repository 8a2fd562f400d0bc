"""Hurts a fleet again and again while clients learn: ``python -m benchmarks.faults --seed N --kills K [--json]``.

Three `abound serve`, an `abound worker`, a store with a copy, and nginx in front. Each kill is a SIGKILL of one of them
or of everything at once, or a failover to the copy, with processes stopped and wires cut around it; what happens at a
kill follows from the seed and the kill's number. Clients send each event, under one Idempotency-Key, until it is
acknowledged, and classify with ``min_offset``. In the end history and log are applied anew and compared with what the
clients were told: every acknowledged event exactly once, at its offset, with its rank; and ``abound verify`` compares
the digests of all replicas.

With ``--vectors`` each event has a vector, and the model re-ranks and calibrates.

``--work DIR`` keeps everything in DIR; a run that was cut off goes on from there. ``--first F`` begins at kill F.
Wants nginx (on Debian: ``apt-get install nginx-light``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.faults.run import Outcome, run


def shown(outcome: Outcome, number: int, kills: int, what: str) -> None:
    """A line for a kill, on standard error."""
    acknowledged = len(outcome.book.acknowledged)
    print(f"{number}/{kills}  {acknowledged:7d} acknowledged  {what}", file=sys.stderr, flush=True)


def figures(outcome: Outcome) -> dict[str, object]:
    """The outcome as JSON values."""
    findings, book = outcome.findings, outcome.book
    seconds = outcome.seconds
    return {
        "good": outcome.good,
        "seed": outcome.seed,
        "kills": dict(outcome.kills),
        "troubles": dict(outcome.troubles),
        "acknowledged": len(book.acknowledged),
        "lost": findings.lost[:20],
        "learned_twice": findings.twice[:20],
        "told_otherwise": findings.otherwise[:20],
        "wrong_answers": book.wrong[:20],
        "gone_with_a_tail_below_level_replica": findings.excused,
        "learned": findings.learned,
        "repeats_passed_over": findings.repeated,
        "entries": findings.entries,
        "entries_in_history": findings.in_history,
        "clients": dict(book.counts),
        "verify": outcome.verified,
        "seconds_to_learn_again_median": round(statistics.median(seconds), 2) if seconds else None,
        "seconds_to_learn_again_max": round(max(seconds), 2) if seconds else None,
        "seconds": round(outcome.took, 1),
    }


def main() -> int:
    """Print the figures; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10, help="up to and with the kill of this number")
    parser.add_argument("--first", type=int, default=1, help="number of the first kill")
    parser.add_argument("--work", type=Path, help="directory to keep everything in, and to go on from")
    parser.add_argument("--vectors", action="store_true", help="all events have vectors, and the model learns them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="abound-faults-") as temporary:
        work = options.work or Path(temporary)
        outcome = run(work, options.seed, options.kills, options.first, shown, vectors=options.vectors)
    result = figures(outcome)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:40} {value}")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
