"""What an estimator learns with: the index in this process, or a model of a running service.

Both learn and rank the same within the bounds of a request: a service refuses a row of more features than it takes, and
ranks no more labels at once than it gives (1,000), where the index in this process takes and ranks all.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from core.applying import Unit
from core.config import ModelConfig
from core.evaluate import LIMITS
from core.live import LiveModel
from core.record import pack_labels
from service.client import Client, ClientError, Instance, Labelled, Model, Refused, Unreachable

Row = Mapping[str, float]
Ranked = list[tuple[str, float]]
"""Labels and scores, best first."""

TOGETHER = 256
"""Instances that the index in this process learns at once."""

LET_GO_SECONDS = 5.0
"""Longest silence of a service while an object that goes deletes its model."""


class Learner(Protocol):
    """Learns rows one after the other, and ranks labels for rows."""

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order."""
        ...

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row."""
        ...


class InProcess:
    """The live index in this process.

    Parameters
    ----------
    config : dict
        As for ``PUT /models/{model}``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._live = LiveModel(ModelConfig.from_dict(dict(config)), _secret(), LIMITS)

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order."""
        at_hand = iter(rows)
        while records := [self._record(row, label) for row, label in islice(at_hand, TOGETHER)]:
            applying = self._live.begin(b"".join(records), len(records), [Unit(n=len(records))])
            while not applying.done:
                applying.step(len(records))

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row."""
        live = self._live
        for row in rows:
            ranking = live.rank(live.vectorizer.vectorize_mapping(row), k)
            yield [
                (live.label(class_id), score)
                for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)
            ]

    def __getstate__(self) -> dict[str, Any]:
        return {"meta": self._live.meta(), "arrays": self._live.to_arrays()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        arrays: Mapping[str, npt.NDArray[Any]] = {name: np.array(array) for name, array in state["arrays"].items()}
        self._live = LiveModel.from_arrays(state["meta"], arrays, _secret(), LIMITS)

    def _record(self, row: Row, label: str) -> bytes:
        return self._live.vectorizer.vectorize_mapping(row) + pack_labels([label], LIMITS)


class OverService:
    """A model of a running service. Refused, Unreachable and Interrupted are those of the client.

    Parameters
    ----------
    url : str
    key : str or None
    name : str
        Of the model.
    owned : bool
        The model goes when this object does. One that was pickled or copied leaves it to whoever calls ``discard``.
    """

    def __init__(self, url: str, key: str | None, name: str, *, owned: bool = False) -> None:
        self.name = name
        self._url, self._key = url, key
        self._offset: str | None = None
        self._going = weakref.finalize(self, _delete_quietly, os.getpid(), url, key, name) if owned else None

    def __getstate__(self) -> dict[str, Any]:
        if self._going is not None:
            self._going.detach()
        return {**self.__dict__, "_going": None}

    def discard(self) -> None:
        """Delete the model."""
        if self._going is not None:
            self._going.detach()
        with Client(self._url, key=self._key) as client:
            client.delete(self.name)

    def begin(self, config: Mapping[str, Any], anew: bool) -> None:
        """Create the model unless it is there; with ``anew`` what it has learned is deleted."""
        with Client(self._url, key=self._key) as client:
            there = any(model["name"] == self.name for model in client.models()["models"])
            if there and anew:
                client.delete(self.name)
            client.configure(self.name, dict(config))

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order; those that the service refuses for now (a rate) come later."""
        instances = (Labelled(features=row, labels=[label]) for row, label in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self.name).learn_many(instances, in_flight=1):
                if isinstance(answer, Refused):
                    raise answer
                self._offset = answer.offset

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row, by all that was learned here."""
        instances = (Instance(features=row) for row in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self.name).classify_many(instances, k=k, min_offset=self._offset):
                if isinstance(answer, Refused):
                    raise answer
                yield [(one.label, one.score) for one in answer.labels]


def _delete_quietly(made_by: int, url: str, key: str | None, name: str) -> None:
    """Delete a model unless the service does not take it now, or the process is a fork of that which made it."""
    if made_by != os.getpid():
        return
    try:
        with Client(url, key=key, timeout=LET_GO_SECONDS, pause=_at_once) as client:
            client.delete(name)
    except ClientError:
        pass


def _at_once(seconds: float) -> None:
    raise Unreachable("there is no time for another attempt")


def _secret() -> tuple[int, int]:
    """Where keys lie in memory is nobody's business; it changes no outcome."""
    drawn = os.urandom(16)
    return int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:], "little")
