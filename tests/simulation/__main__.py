"""Run many histories: ``python -m tests.simulation --seeds 0..200000 --done seeds.txt``.

With ``--done`` the program writes down how far it is and which seeds failed; started again, it goes on there.
``--seeds 17 --trace`` shows one history: all that the store was asked, all faults, all answers.
"""

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from pathlib import Path

import structlog

from tests.simulation.history import run

EVERY = 200
"""Histories between two lines of progress."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..2000", help="FIRST..LAST (without LAST), or one")
    parser.add_argument("--done", type=Path, help="file in which to keep how far it is")
    parser.add_argument("--trace", action="store_true", help="show everything that happens, with the service's log")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    begin, end = int(first), int(last or int(first) + 1)
    failed: list[int] = []
    if options.done is not None and options.done.exists():
        words = options.done.read_text().split()
        begin, failed = max(begin, int(words[0])), [int(word) for word in words[1:]]
    if not options.trace:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.process_time()
    counts = Counter[str]()
    for seed in range(begin, end):
        outcome = run(seed, trace=options.trace)
        counts.update(outcome.counts)
        for line in outcome.trace:
            print(line)
        if outcome.broken:
            failed.append(seed)
            print(f"seed {seed} (python -m tests.simulation --seeds {seed} --trace):")
            for one in outcome.broken:
                print(f"    {one}")
        if (seed + 1) % EVERY == 0 or seed + 1 == end:
            gc.collect()
            seconds = (time.process_time() - began) / (seed + 1 - begin)
            print(
                f"{seed + 1 - begin} histories up to seed {seed}, {seconds * 1000:.1f} ms of processor each, "
                f"{', '.join(f'{n} {what}' for what, n in counts.items())}, failed: {failed or 'none'}",
                flush=True,
            )
            if options.done is not None:
                options.done.write_text(" ".join(map(str, [seed + 1, *failed])))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
