"""Kills every process of a service while it learns, again and again: ``python -m benchmarks.kill [--json]``.

A round: start the service on the directory that the rounds before it left, learn from several clients at once, and
kill all processes in the middle of it. Start again, check that everything acknowledged is there, write down the
answers to fixed questions, and kill all processes at rest. The answers after that must be the same, byte by byte. In
every third round another kill comes during a start, and in every second one a snapshot is made, so that later starts
load it. Learns newsgroup articles where ``ABOUND_DATA`` names the folder of the data sets, else Jane Austen's novels.

Every event carries a label that no other has, so that an event that is lost, or learned twice, shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving import Serving
from core.types import START, Offset
from service.austen import novels
from service.files import read_file

QUESTIONS = 200
FORMS = ("single", "batch", "lines", "single")
"""What each of the clients sends."""

BATCH = 8


@dataclass
class Loss:
    """What the rounds found. All lists stay empty if the product keeps its word.

    Attributes
    ----------
    acknowledged : dict of str to Offset
        The unique label of each acknowledged event and the offset in its answer.
    lost : list of str
        Acknowledged and not there after a kill.
    behind : list of str
        Offsets of models that lie before an acknowledged one.
    twice : list of int
        Events that were learned more often than there are.
    changed : list of str
        Questions whose answers changed over a kill without learning.
    restarts : list of float
        Seconds from the start of the process to ready, after a kill.
    kills, snapshots : int
        How often everything was killed; how many snapshots were asked for and made.
    """

    acknowledged: dict[str, Offset] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    kills: int = 0
    snapshots: int = 0

    @property
    def nothing(self) -> bool:
        """Whether nothing was lost, learned twice or changed."""
        return not (self.lost or self.behind or self.twice or self.changed)

    def figures(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {
            "kills": self.kills,
            "snapshots": self.snapshots,
            "acknowledged": len(self.acknowledged),
            "lost": len(self.lost),
            "behind": len(self.behind),
            "learned_twice": sum(self.twice),
            "answers_changed": len(self.changed),
            "restart_seconds_median": round(statistics.median(self.restarts), 3) if self.restarts else None,
            "restart_seconds_max": round(max(self.restarts), 3) if self.restarts else None,
        }


def instances() -> list[tuple[str, str]]:
    """(text, label) of real text."""
    if data := os.environ.get("ABOUND_DATA"):
        articles = read_file(str(Path(data) / "newsgroups20" / "train.jsonl.gz"))
        return [(article.text or "", article.labels[0]) for article in itertools.islice(articles, 4000)]
    words = [(number, novel) for number, novel in enumerate(novels())]
    return [
        (" ".join(novel[at : at + 60]), f"novel {number}") for number, novel in words for at in range(0, 40_000, 60)
    ]


class Client(threading.Thread):
    """Learns without a pause until the service is gone; keeps what was acknowledged."""

    def __init__(self, url: str, name: str, stream: Iterator[tuple[str, str]], form: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: dict[str, Offset] = {}
        self.failure: str | None = None
        self._url, self._stream, self._form = url, stream, form
        self._numbers = itertools.count()

    def run(self) -> None:
        """Learn: single events, batches, or lines."""
        send = {"single": self._single, "batch": self._batch, "lines": self._lines}[self._form]
        with httpx.Client(base_url=self._url, timeout=30) as http:
            try:
                while True:
                    send(http)
            except httpx.TransportError:
                return
            except AssertionError as error:
                self.failure = str(error)

    def _event(self) -> dict[str, Any]:
        text, label = next(self._stream)
        return {"text": text, "labels": [label, f"{self.name}-{next(self._numbers)}"]}

    def _keep(self, event: dict[str, Any], answer: dict[str, Any]) -> None:
        self.acknowledged[event["labels"][1]] = Offset.parse(answer["offset"])

    def _single(self, http: httpx.Client) -> None:
        event = self._event()
        answer = http.post("/learn", json=event)
        if answer.status_code != 503:  # the service is going; it says so
            assert answer.status_code in (200, 202, 504), answer.text
            if answer.status_code != 504:
                self._keep(event, answer.json())

    def _batch(self, http: httpx.Client) -> None:
        events = [self._event() for _ in range(BATCH)]
        answer = http.post("/learn", json={"instances": events})
        if answer.status_code != 503:
            assert answer.status_code in (200, 202, 504), answer.text
            if answer.status_code != 504:
                for event, result in zip(events, answer.json()["results"], strict=True):
                    self._keep(event, result)

    def _lines(self, http: httpx.Client) -> None:
        events = [self._event() for _ in range(5 * BATCH)]
        body = "\n".join(json.dumps(event) for event in events)
        headers = {"Content-Type": "application/x-ndjson"}
        with http.stream("POST", "/learn", content=body, headers=headers) as answer:
            if answer.status_code == 503:
                return
            assert answer.status_code == 200, answer.read()
            for event, line in zip(events, answer.iter_lines(), strict=False):
                result = json.loads(line)
                if "offset" in result:
                    self._keep(event, result)


def ask(url: str, questions: list[str]) -> list[bytes]:
    """The bodies of the answers, byte for byte."""
    with httpx.Client(base_url=url, timeout=30) as http:
        answers = [http.post("/classify", json={"text": text, "k": 20, "explain": True}) for text in questions]
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.content for answer in answers]


def check(url: str, loss: Loss) -> None:
    """Everything acknowledged is there, and nothing more often than once."""
    with httpx.Client(base_url=url, timeout=30) as http:
        labels: set[str] = set()
        while True:
            page = http.get("/models/default/labels", params={"limit": 1000, "offset": len(labels)}).json()["labels"]
            labels.update(page)
            if not page:
                break
        stats = http.get("/models/default/stats").json()
    loss.lost += sorted(set(loss.acknowledged) - labels - set(loss.lost))
    unique = sum(label.startswith("event ") for label in labels)
    if stats["learned"] != unique:
        loss.twice.append(stats["learned"] - unique)
    if Offset.parse(stats["offset"]) < max(loss.acknowledged.values(), default=START):
        loss.behind.append(stats["offset"])


def make_snapshot(url: str, patience: float = 120.0) -> None:
    """Have the worker make a snapshot; it may still be starting."""
    deadline = time.monotonic() + patience
    while True:
        made = httpx.post(f"{url}/models/default/snapshots", timeout=patience)
        if made.status_code != 503 or time.monotonic() > deadline:
            assert made.is_success, made.text
            return
        time.sleep(0.2)


def kill_rounds(rounds: int, processes: int, work: Path, seed: int, most_events: int = 1000) -> Loss:
    """Run the rounds in the directory ``work``, and at last a start that checks.

    A kill while learning comes after 100 to ``most_events`` acknowledged events of the round.
    """
    rng = random.Random(seed)
    real = instances()
    questions = [text for text, _ in rng.sample(real, QUESTIONS)]
    loss = Loss()

    # So small that the worker makes a snapshot whenever it is there, and is killed in the middle of some.
    environment = os.environ | {"ABOUND_SNAPSHOTS_EVERY_BYTES": "65536", "ABOUND_SNAPSHOTS_PART_BYTES": "65536"}

    def launch() -> Serving:
        options = ("--processes", str(processes))
        return Serving(work / "data", *options, output=work / "output", environment=environment)

    def start() -> Serving:
        serving = launch()
        try:
            loss.restarts.append(serving.until_ready())
            check(serving.url, loss)
        except BaseException:
            serving.kill()
            raise
        return serving

    before: list[bytes] = []

    def compare(serving: Serving) -> None:
        after = ask(serving.url, questions) if before else []
        loss.changed.extend(text[:80] for text, a, b in zip(questions, before, after, strict=False) if a != b)

    for number in range(rounds):
        with start() as serving:
            compare(serving)
            clients = [
                Client(serving.url, f"event {number}-{i}", itertools.cycle(rng.sample(real, len(real))), form)
                for i, form in enumerate(FORMS)
            ]
            for client in clients:
                client.start()
            enough, deadline = rng.randint(100, most_events), time.monotonic() + 60
            while sum(len(client.acknowledged) for client in clients) < enough and time.monotonic() < deadline:
                time.sleep(0.005)
            serving.kill()
            loss.kills += 1
            for client in clients:
                client.join(60)
                assert client.failure is None, client.failure
                loss.acknowledged.update(client.acknowledged)
        if number % 3 == 2:
            with launch() as serving:
                time.sleep(rng.uniform(0.0, 2.0))
                serving.kill()
                loss.kills += 1
        with start() as serving:
            if number % 2:
                make_snapshot(serving.url)
                loss.snapshots += 1
            before = ask(serving.url, questions)
            serving.kill()
            loss.kills += 1
    with start() as serving:
        compare(serving)
        serving.stop()
    return loss


def main() -> int:
    """Print the figures; exit code 1 when anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        loss = kill_rounds(options.rounds, options.processes, Path(work), options.seed)
    figures = loss.figures()
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    return 0 if loss.nothing else 1


if __name__ == "__main__":
    sys.exit(main())
