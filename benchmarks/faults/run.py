"""A run: a fleet, clients, one step after the other, and the reckoning."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from abound.datasets.austen import novels
from benchmarks.faults.clients import Book, Form, Learner, Level, Reader
from benchmarks.faults.fleet import FIRST_SECONDS, Fleet
from benchmarks.faults.ledger import Findings, LostTail, examine_now
from benchmarks.faults.schedule import Step, Trouble, step

LEARNERS: tuple[tuple[Form, Level], ...] = (
    ("single", "log"),
    ("single", "replica"),
    ("batch", "replica"),
    ("lines", "log"),
    ("lines", "replica"),
)
READERS = 2

TEXT_WORDS = 20

PROGRESS_SECONDS = 120.0

Told = Callable[["Outcome", int, int, str], None]


@dataclass
class Outcome:
    """What came of a run.

    Attributes
    ----------
    book : Book
        What the clients were told.
    findings : Findings
        What the log gives.
    verified : bool or None
        What `abound verify` said.
    kills, troubles : Counter
        By kind.
    seconds : list of float
        From each kill to the next event that was sent after it and acknowledged.
    tails : list of LostTail
    """

    seed: int
    book: Book
    findings: Findings = field(default_factory=Findings)
    verified: bool | None = None
    kills: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    tails: list[LostTail] = field(default_factory=list)
    took: float = 0.0

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return self.findings.good and self.verified is True and not self.book.wrong


WITH_VECTORS = {"update": "sls", "calibrate": True}
"""Configuration of the model whose events have vectors: everything that is learned from one is switched on."""

DIMENSION = 32


def run(
    work: Path, seed: int, kills: int, first: int, told: Told, pause: float = 0.1, vectors: bool = False
) -> Outcome:
    """Run the steps ``first`` to ``kills`` in a directory; goes on after the last step that was noted there.

    With ``vectors`` every event has one, and the model is ``WITH_VECTORS``.
    """
    began = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(seed, Book(work / "acknowledged.jsonl"))
    first = max(first, _read_notes(work / "steps.jsonl", outcome) + 1)
    real = texts()
    fleet = Fleet(work)
    try:
        fleet.start()
        fleet.calm(FIRST_SECONDS)
        if vectors:
            configure(fleet)
        learners = [
            Learner(
                fleet.balancer.url,
                f"event/{seed}/{first}/{i}/{os.getpid()}",
                form,
                level,
                real,
                outcome.book,
                pause,
                DIMENSION if vectors else 0,
            )
            for i, (form, level) in enumerate(LEARNERS)
        ]
        readers = [Reader(fleet.balancer.url, f"reader {i}", real, outcome.book, pause) for i in range(READERS)]
        clients: list[Learner | Reader] = [*learners, *readers]
        for client in clients:
            client.start()
        with (work / "steps.jsonl").open("a", buffering=1) as notes:
            for number in range(first, kills + 1):
                happens = step(seed, number)
                what = Mistreatment(fleet, happens, outcome, readers).run()
                notes.write(json.dumps({"number": number} | what) + "\n")
                told(outcome, number, kills, f"{happens}: learned again after {what['seconds']:.1f} s")
        fleet.calm()
        for client in clients:
            client.stop()
        for client in clients:
            client.join(200)
        fleet.calm()
        url, artifacts = fleet.stores.primary.url, str(fleet.artifacts)
        outcome.verified = verify(url, artifacts)
        outcome.findings = examine_now(url, outcome.book.acknowledged, outcome.tails, artifacts)
    finally:
        fleet.close()
        outcome.book.close()
    outcome.took = time.monotonic() - began
    return outcome


def configure(fleet: Fleet) -> None:
    """Set ``WITH_VECTORS``, and wait until every replica has applied it."""
    httpx.put(f"{fleet.balancer.url}/models/default", json=WITH_VECTORS, timeout=60).raise_for_status()
    for program in fleet.serves:
        address = f"http://127.0.0.1:{program.port}/models/default"
        while httpx.get(address, timeout=10).json()["config"]["update"] != WITH_VECTORS["update"]:
            time.sleep(0.1)


class Mistreatment:
    """One step as it happens."""

    def __init__(self, fleet: Fleet, happens: Step, outcome: Outcome, readers: list[Reader]) -> None:
        self._fleet = fleet
        self._step = happens
        self._outcome = outcome
        self._readers = readers
        self._tail: LostTail | None = None

    def run(self) -> dict[str, Any]:
        """Do it; what is to be noted of it."""
        began = time.monotonic()
        hurt = [threading.Thread(target=self._trouble, args=(trouble,)) for trouble in self._step.troubles]
        for thread in hurt:
            thread.start()
        time.sleep(self._step.after)
        with self._nothing_may_answer(self._step.kill in ("everything", "balancer")):
            kill = self._kill()
            killed = time.time()
            time.sleep(self._step.away)
            for thread in hurt:
                thread.join()
            self._fleet.start()
            seconds = self._until_learned(killed)
        if self._step.calm:
            self._fleet.calm()
        self._outcome.kills[kill] += 1
        self._outcome.seconds.append(seconds)
        self._outcome.troubles.update(trouble.kind for trouble in self._step.troubles)
        took = time.monotonic() - began
        return {
            "kill": kill,
            "troubles": [trouble.kind for trouble in self._step.troubles],
            "tail": self._tail,
            "seconds": seconds,
            "took": took,
        }

    def _kill(self) -> str:
        """Kill what is to be killed; what it came to be."""
        fleet, kill = self._fleet, self._step.kill
        if kill == "failover" and not fleet.stores.in_step:
            kill = "store"  # nobody would promote that copy
        if kill == "failover":
            self._tail = LostTail(fleet.fail_over(), time.time())
            self._outcome.tails.append(self._tail)
        elif kill in ("serve", "replica"):
            fleet.program(self._step.target).signal(signal.SIGKILL, inner=kill == "replica")
        elif kill == "worker":
            fleet.worker.signal(signal.SIGKILL)
        elif kill == "store":
            fleet.stores.primary.kill()
        elif kill == "copy":
            fleet.stores.copy.kill()
        elif kill == "balancer":
            fleet.balancer.kill()
        else:
            for program in fleet.programs:
                program.signal(signal.SIGKILL)
            fleet.stores.close()
            fleet.balancer.kill()
        return kill

    def _trouble(self, trouble: Trouble) -> None:
        """Something that passes, in a thread of its own."""
        time.sleep(trouble.after)
        if trouble.kind == "stop":
            stopped = self._stopped(trouble.target)
            time.sleep(trouble.seconds)
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            return
        wire = self._fleet.program(trouble.target).wire
        if trouble.kind == "cut":
            wire.cut()
            return
        if trouble.kind == "slow":
            wire.delay = 0.01 + trouble.seconds / 100
        elif trouble.kind == "refuse":
            wire.cut("refusing")
        else:
            wire.state = "holding"
        time.sleep(trouble.seconds)
        wire.delay, wire.state = 0.0, "open"

    def _stopped(self, target: str) -> list[int]:
        """Stop the processes of a program, or the store; their pids."""
        pid = self._fleet.stores.primary.pid
        pids = ([pid] if pid is not None else []) if target == "store" else self._fleet.program(target).pids()
        stopped = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        return stopped

    @contextlib.contextmanager
    def _nothing_may_answer(self, away: bool) -> Iterator[None]:
        for reader in self._readers:
            reader.may_fail = away
        yield
        for reader in self._readers:
            reader.may_fail = False

    def _until_learned(self, killed: float) -> float:
        """Wait until an event that was sent after the kill is acknowledged; seconds since the kill."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        book = self._outcome.book
        while not any(one.began > killed for one in book.newest()):
            if time.monotonic() > deadline or book.wrong:
                raise RuntimeError(f"nothing is learned any more: {self._fleet.state()} {book.wrong[:3]}")
            self._fleet.start()
            time.sleep(0.02)
        return time.time() - killed


def verify(url: str, artifacts: str) -> bool:
    """What `abound verify` says: all digests equal, rebuilt from history and log and in each of three replicas."""
    words = [sys.executable, "-m", "abound", "verify", "--redis-url", url, "--json"]
    environment = os.environ | {"ABOUND_ARTIFACTS_URL": artifacts}
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment, check=False)
    try:
        said = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"abound verify failed: {done.stderr[-2000:]}") from None
    replicas = [len(model["replicas"]) for model in said["models"]]
    return bool(said["good"]) and done.returncode == 0 and min(replicas) >= 3


def texts() -> list[tuple[str, str]]:
    """(text, label) of Jane Austen's novels."""
    rng = random.Random(1)
    found = [
        (" ".join(novel[at : at + TEXT_WORDS]), f"novel {i}")
        for i, novel in enumerate(novels())
        for at in range(0, 20_000, TEXT_WORDS)
    ]
    rng.shuffle(found)
    return found


def _read_notes(path: Path, outcome: Outcome) -> int:
    """Take up what was noted of steps before; the number of the last of them."""
    last = 0
    for line in path.read_text().splitlines() if path.exists() else ():
        note = json.loads(line)
        last = note["number"]
        outcome.kills[note["kill"]] += 1
        outcome.troubles.update(note["troubles"])
        outcome.seconds.append(note["seconds"])
        if note["tail"] is not None:
            outcome.tails.append(LostTail(*note["tail"]))
    return last
