"""What callers see while replicas come and go: ``python -m benchmarks.rolling [--seconds 10] [--json]``.

Wants haproxy. The processes of the compose file behind its own load balancer (``benchmarks.composed``), and through it
clients without a pause: learners that send each event until it is acknowledged, under one key; readers that classify,
half of them what was just learned, with ``min_offset``. Five runs: nothing happens; the replicas are restarted one
after the other; one is killed; one is stopped (SIGSTOP) for six seconds; all are killed, and started again some seconds
later. In the end history and log are applied anew and compared with what the clients were told.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from abound.client import Client, ClientError, Model
from benchmarks.composed import Composed
from benchmarks.faults.clients import Acknowledged, Book, Learner, Reader
from benchmarks.faults.ledger import Findings, examine_now
from benchmarks.faults.run import texts

LEARNERS, READERS = 3, 3
PAUSE = 0.002
STOPPED_SECONDS = 6.0
SETTLE_SECONDS = 1.0
"""Under load before something happens, and after it."""


class OneStore(Book):
    """What clients were told where no failover takes anything back: every event can be asked for at once."""

    def newest(self, among: int = 50) -> list[Acknowledged]:
        """Some of the newest events."""
        return list(self.acknowledged.values())[-among:]


class Probe(threading.Thread):
    """Classifies every few milliseconds, to see for how long nobody answered."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.slowest = 0.0
        self.outage = 0.0
        self._url = url
        self._over = threading.Event()

    def stop(self) -> None:
        """Come to an end."""
        self._over.set()

    def run(self) -> None:
        """Ask."""
        answered = time.monotonic()
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._over.is_set():
                began = time.monotonic()
                try:
                    good = http.post("/classify", json={"text": "wheat"}).status_code == 200
                except httpx.TransportError:
                    good = False
                now = time.monotonic()
                self.slowest = max(self.slowest, now - began)
                if good:
                    self.outage = max(self.outage, now - answered)
                    answered = now
                self._over.wait(0.01)


class Caller(threading.Thread):
    """Classifies through the client of the product, which sends again what may be sent again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.asked = self.failed = 0
        self._url = url
        self._over = threading.Event()

    def stop(self) -> None:
        """Come to an end."""
        self._over.set()

    def run(self) -> None:
        """Ask."""
        with Client(self._url, timeout=20) as client:
            model = Model(client, "default")
            while not self._over.is_set():
                self.asked += 1
                try:
                    model.classify(text="wheat")
                except ClientError:
                    self.failed += 1
                self._over.wait(PAUSE)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the requests of a run.

    Attributes
    ----------
    seconds : float
    classified, classify_failed, failed_with_all_away : int
    client_asked, client_failed : int
        Classified through ``abound.client``.
    behind : int
        Reads with ``min_offset`` that were told that the replica is behind.
    acknowledged : int
        Events, of ``learn_sent`` requests; ``learn_again``: requests that had to be sent again.
    longest_gap : float
        Seconds between two answers to a caller that asks all the while.
    slowest_classify, slowest_learn : float
        Seconds of the slowest classify, and from the first attempt of a learn request until it was acknowledged.
    """

    seconds: float
    classified: int
    classify_failed: int
    failed_with_all_away: int
    client_asked: int
    client_failed: int
    behind: int
    acknowledged: int
    learn_sent: int
    learn_again: int
    longest_gap: float
    slowest_classify: float
    slowest_learn: float


def nothing(composed: Composed, seconds: float) -> None:
    """Leave them alone."""
    time.sleep(seconds)


def rolling(composed: Composed, seconds: float) -> None:
    """Stop, start and await one replica after the other."""
    for replica in composed.replicas:
        code = replica.stop()
        if code != 0:
            raise RuntimeError(f"{replica.name} ended with {code}: {replica.said()}")
        replica.start()
        replica.until_ready()


def one_killed(composed: Composed, seconds: float) -> None:
    """Kill one, and start it again after a while."""
    replica = composed.replicas[0]
    replica.kill()
    time.sleep(seconds / 2)
    replica.start()
    replica.until_ready()


def one_stopped(composed: Composed, seconds: float) -> None:
    """Suspend all processes of one, and resume them after six seconds."""
    replica = composed.replicas[0]
    replica.signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    replica.signal(signal.SIGCONT)
    replica.until_ready()


def all_killed(composed: Composed, seconds: float) -> None:
    """Kill all at once, and start them after a while."""
    for replica in composed.replicas:
        replica.kill()
    time.sleep(seconds / 2)
    for replica in composed.replicas:
        replica.start()
    for replica in composed.replicas:
        replica.until_ready()
    composed.until_balanced()


RUNS: dict[str, Callable[[Composed, float], None]] = {
    "nothing happens": nothing,
    "replicas restarted one by one": rolling,
    "one replica killed": one_killed,
    "one replica stopped for 6 s": one_stopped,
    "all replicas killed": all_killed,
}


def under_load(
    composed: Composed,
    book: Book,
    happens: Callable[[Composed, float], None],
    seconds: float,
    pause: float = PAUSE,
) -> Counts:
    """Count the outcomes of requests while ``happens`` runs; each caller pauses between two requests."""
    before, known = book.counts.copy(), len(book.acknowledged)
    tag, real = f"{len(before)}-{known}", texts()
    learners = [
        Learner(composed.url, f"{tag}/learner{i}", "lines" if i == 0 else "single", "log", real, book, pause)
        for i in range(LEARNERS)
    ]
    readers = [Reader(composed.url, f"{tag}/reader{i}", real, book, pause) for i in range(READERS)]
    for reader in readers:
        reader.may_fail = happens is all_killed
    probe, caller_of_client = Probe(composed.url), Caller(composed.url)
    callers: list[Learner | Reader | Probe | Caller] = [*learners, *readers, probe, caller_of_client]
    began = time.monotonic()
    for caller in callers:
        caller.start()
    time.sleep(SETTLE_SECONDS)
    happens(composed, seconds)
    time.sleep(SETTLE_SECONDS)
    for caller in callers:
        caller.stop()
    for caller in callers:
        caller.join(60)
    counts = book.counts - before
    return Counts(
        seconds=time.monotonic() - began,
        classified=counts["asked"] + counts["asked to have read its writes"],
        classify_failed=counts["classify failed"],
        failed_with_all_away=counts["classify failed, with everything away"],
        client_asked=caller_of_client.asked,
        client_failed=caller_of_client.failed,
        behind=counts["behind min_offset"],
        acknowledged=len(book.acknowledged) - known,
        learn_sent=sum(learner.tries for learner in learners),
        learn_again=counts["retries"],
        longest_gap=probe.outage,
        slowest_classify=max(caller.slowest for caller in (*readers, probe)),
        slowest_learn=max((one.at - one.began for one in list(book.acknowledged.values())[known:]), default=0.0),
    )


def measure(directory: Path, seconds: float) -> tuple[dict[str, Counts], Findings, list[str]]:
    """All runs; what the log holds beside what was told; and answers that nobody should get."""
    composed = Composed(directory)
    book = OneStore(directory / "acknowledged.jsonl")
    try:
        composed.start()
        counts = {name: under_load(composed, book, happens, seconds) for name, happens in RUNS.items()}
        findings = examine_now(composed.store_url, book.acknowledged, [], composed.artifacts)
    finally:
        composed.close()
        book.close()
    return counts, findings, book.wrong


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run; replicas are away for half of it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="abound-bench-") as directory:
        counts, findings, wrong = measure(Path(directory), options.seconds)
    if options.json:
        runs = {name: asdict(one) for name, one in counts.items()}
        print(json.dumps({"runs": runs, "lost": len(findings.lost), "twice": len(findings.twice), "wrong": wrong}))
        return
    for name, one in counts.items():
        print(f"\n{name}")
        for field, value in asdict(one).items():
            print(f"  {field:22s} {value:10,.3f}" if isinstance(value, float) else f"  {field:22s} {value:10,}")
    told = f"{len(findings.lost)} lost, {len(findings.twice)} learned twice, {len(findings.otherwise)} told otherwise"
    print(f"\n{findings.learned:,} learned, {findings.repeated:,} repeats passed over; {told}; wrong answers: {wrong}")


if __name__ == "__main__":
    main()
