"""Clients as they should be: they send each event until it is acknowledged, with one Idempotency-Key, and note it.

Every event carries a label and a feature that no other has, so that one that is lost, or learned twice, shows.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from abound.store.server_info import LEVELS
from abound_core.types import START, Offset

Form = Literal["single", "batch", "lines"]
Level = Literal["log", "fsync", "replica"]

BATCH = 4
GIVE_UP_SECONDS = 180.0
AGAIN = 0.1
"""The part of the acknowledged requests that are sent once more, to see that they are answered as the first time."""

NOT_NOW = (502, 503, 504)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a client was told of an event.

    Attributes
    ----------
    label : str
        That no other event has.
    offset : str
    rank : int or None
    updated : bool
    level : str
        Durability that was asked for and reached.
    began, at : float
        Seconds since the epoch: of the first attempt, and of the answer.
    """

    label: str
    offset: str
    rank: int | None
    updated: bool
    level: str
    began: float
    at: float


class Book:
    """What all clients were told, in memory and in a file.

    Attributes
    ----------
    acknowledged : dict of str to Acknowledged
    wrong : list of str
        Answers that no client should ever get.
    counts : Counter
    """

    def __init__(self, path: Path) -> None:
        self.acknowledged: dict[str, Acknowledged] = {}
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        if path.exists():
            for line in path.read_text().splitlines():
                one = Acknowledged(**json.loads(line))
                self.acknowledged[one.label] = one
        self._file = path.open("a", buffering=1)

    def keep(self, *told: Acknowledged) -> None:
        """Note events that were acknowledged."""
        with self._lock:
            for one in told:
                if one.label in self.acknowledged:
                    self.wrong.append(f"{one.label} was acknowledged twice")
                self.acknowledged[one.label] = one
                self._file.write(json.dumps(asdict(one)) + "\n")

    def count(self, what: str) -> None:
        """Count something that is no error."""
        with self._lock:
            self.counts[what] += 1

    def complain(self, what: str) -> None:
        """Note something that must not be."""
        with self._lock:
            self.wrong.append(what)

    def newest(self, among: int = 50) -> list[Acknowledged]:
        """Some of the newest events that cannot be lost by a failover either."""
        with self._lock:
            newest = list(itertools.islice(reversed(self.acknowledged.values()), among))
        return [one for one in newest if one.level == "replica"]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Learner(threading.Thread):
    """Learns without a pause until it is told to stop.

    Parameters
    ----------
    url : str
    name : str
        No other learner's, in no run before either.
    form : ``single`` | ``batch`` | ``lines``
    level : str
        An event counts only once this durability is confirmed.
    real : sequence of (text, label)
    pause : float
        Seconds between two requests.
    dimension : int
        Numbers of the vector of each event, which is near that of others with its label; 0: no vectors.
    """

    def __init__(
        self,
        url: str,
        name: str,
        form: Form,
        level: Level,
        real: list[tuple[str, str]],
        book: Book,
        pause: float,
        dimension: int = 0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._form, self._level, self._book, self._pause = url, form, level, book, pause
        self._dimension = dimension
        self._rng = random.Random(name)
        self._real = real
        self._numbers = itertools.count()
        self._over = threading.Event()
        self.tries = 0

    def stop(self) -> None:
        """Come to an end when everything that was sent is acknowledged."""
        self._over.set()

    def run(self) -> None:
        """Learn."""
        send = self._lines if self._form == "lines" else self._request
        with httpx.Client(base_url=self._url, timeout=10) as http:
            while not self._over.is_set():
                try:
                    send(http)
                except Exception as error:
                    self._book.complain(f"{self.name}: {type(error).__name__}: {error}")
                    return
                self._over.wait(self._pause)

    def _event(self) -> dict[str, Any]:
        text, label = self._rng.choice(self._real)
        own = f"{self.name}-{next(self._numbers)}"
        event = {"text": text, "features": {own: 1}, "labels": [label, own]}
        if self._dimension:
            of_label = random.Random(label)
            event["vector"] = [of_label.gauss(0, 1) + self._rng.gauss(0, 0.5) for _ in range(self._dimension)]
        return event

    def _patience(self) -> Iterator[None]:
        """Try again and again; RuntimeError when it takes too long."""
        began = time.time()
        for pause in itertools.chain((0.05, 0.1, 0.2), itertools.repeat(0.4)):
            yield
            if time.time() - began > GIVE_UP_SECONDS:
                raise RuntimeError(f"not acknowledged in {GIVE_UP_SECONDS:g} s")
            self._book.count("retries")
            time.sleep(pause)

    # a request under one key

    def _request(self, http: httpx.Client) -> None:
        events = [self._event() for _ in range(BATCH if self._form == "batch" else 1)]
        body: dict[str, Any] = {"instances": events} if self._form == "batch" else dict(events[0])
        headers = {"Idempotency-Key": f"{self.name}/{events[0]['labels'][1]}"}
        began = time.time()
        answer: dict[str, Any] | None = None
        for _ in self._patience():
            answer = self._ask(http, body, headers)
            if answer is not None:
                break
        assert answer is not None
        results = answer["results"] if self._form == "batch" else [answer]
        at = time.time()
        self._book.keep(
            *(
                Acknowledged(event["labels"][1], told["offset"], told["rank"], told["updated"], self._level, began, at)
                for event, told in zip(events, results, strict=True)
            )
        )
        if self._level == "replica" and self._rng.random() < AGAIN:
            again = self._ask(http, body, headers)
            if again is not None and again != answer:
                self._book.complain(f"{events[0]['labels'][1]} was answered {answer} and then {again}")

    def _ask(self, http: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        """The answer if it acknowledges the request with at least the durability of this client, else None."""
        self.tries += 1
        try:
            answer = http.post("/learn", json=body, headers=headers)
        except httpx.TransportError:
            return None
        if answer.status_code == 200:
            told: dict[str, Any] = answer.json()
            return told if self._counts(told) else None
        if answer.status_code not in NOT_NOW:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
        return None

    def _counts(self, told: dict[str, Any]) -> bool:
        return LEVELS.index(told["durability"]) >= LEVELS.index(self._level)

    # lines, each with a key of its own

    def _lines(self, http: httpx.Client) -> None:
        events = {event["labels"][1]: event for event in (self._event() for _ in range(3 * BATCH))}
        began = time.time()
        for _ in self._patience():
            for label, told in self._ask_lines(http, list(events.values())):
                kept = Acknowledged(
                    label, told["offset"], told["rank"], told["updated"], self._level, began, time.time()
                )
                self._book.keep(kept)
                del events[label]
            if not events:
                return

    def _ask_lines(self, http: httpx.Client, events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """The lines that were acknowledged."""
        lines = [event | {"key": f"{self.name}/{event['labels'][1]}"} for event in events]
        self.tries += 1
        good = []
        try:
            with http.stream(
                "POST",
                "/learn",
                content="\n".join(map(json.dumps, lines)),
                headers={"Content-Type": "application/x-ndjson"},
            ) as answer:
                if answer.status_code != 200:
                    answer.read()
                    if answer.status_code not in NOT_NOW:
                        raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
                    return []
                for event, line in zip(events, answer.iter_lines(), strict=False):
                    told = json.loads(line)
                    if "offset" in told:
                        if told["applied"] and self._counts(told):
                            good.append((event["labels"][1], told))
                    elif told["status"] not in NOT_NOW:
                        raise RuntimeError(f"a line was answered {told}")
        except (httpx.TransportError, json.JSONDecodeError):
            pass
        return good


class Reader(threading.Thread):
    """Classifies without a pause: any text, and what was just learned, which must be there by ``min_offset``."""

    def __init__(self, url: str, name: str, real: list[tuple[str, str]], book: Book, pause: float) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._book, self._pause = url, book, pause
        self._rng = random.Random(name)
        self._real = real
        self._over = threading.Event()
        self.may_fail = False
        self.slowest = 0.0

    def stop(self) -> None:
        """Come to an end."""
        self._over.set()

    def run(self) -> None:
        """Ask."""
        with httpx.Client(base_url=self._url, timeout=20) as http:
            while not self._over.is_set():
                newest = self._book.newest()
                own = self._rng.choice(newest) if newest and self._rng.random() < 0.5 else None
                began = time.monotonic()
                try:
                    self._ask(http, own)
                except httpx.TransportError as error:
                    self._failed(f"{type(error).__name__}: {error}")
                self.slowest = max(self.slowest, time.monotonic() - began)
                self._over.wait(self._pause)

    def _ask(self, http: httpx.Client, own: Acknowledged | None) -> None:
        body: dict[str, Any] = {"text": self._rng.choice(self._real)[0]}
        if own is not None:
            body = {"features": {own.label: 1}, "min_offset": own.offset, "k": 5, "include": [own.label]}
        answer = http.post("/classify", json=body)
        self._book.count("asked to have read its writes" if own is not None else "asked")
        if answer.status_code != 200:
            if own is not None and answer.status_code in NOT_NOW:
                self._book.count("behind min_offset")
            elif answer.status_code in NOT_NOW:
                self._failed(f"{answer.status_code}: {answer.text[:200]}")
            else:
                self._book.complain(f"classify {body} was answered {answer.status_code}: {answer.text[:300]}")
            return
        told = answer.json()
        if own is not None:
            at = Offset.parse(told["offset"])
            if at < Offset.parse(own.offset):
                self._book.complain(f"classify with min_offset {own.offset} was answered from {at}")
            if [one["label"] for one in told["labels"]] != [own.label]:
                self._book.complain(
                    f"{own.label} was learned at {own.offset} and is not found at {at}: {told['labels']}"
                )
        elif not told["labels"] and Offset.parse(told["offset"]) != START:
            self._book.count("answered without a label")

    def _failed(self, what: str) -> None:
        """A classify without an answer: right only when nothing was there to give one."""
        if self.may_fail:
            self._book.count("classify failed, with everything away")
        else:
            self._book.count("classify failed")
            self._book.counts[f"classify failed: {what[:100]}"] += 1
