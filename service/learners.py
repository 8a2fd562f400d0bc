"""What an estimator learns with: the index in this process, or a model of a running service. Both give the same."""

from __future__ import annotations

import os
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
from service.client import Client, Instance, Labelled, Model, Refused

Row = Mapping[str, float]
Ranked = list[tuple[str, float]]
"""Labels and scores, best first."""

TOGETHER = 256
"""Instances that the index in this process learns at once."""


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
    """

    def __init__(self, url: str, key: str | None, name: str) -> None:
        self._url, self._key, self._name = url, key, name

    def begin(self, config: Mapping[str, Any], anew: bool) -> None:
        """Create the model unless it is there; with ``anew`` what it has learned is deleted."""
        with Client(self._url, key=self._key) as client:
            there = any(model["name"] == self._name for model in client.models()["models"])
            if there and anew:
                client.delete(self._name)
            client.configure(self._name, dict(config))

    def learn(self, rows: Iterable[tuple[Row, str]]) -> None:
        """Learn rows with their labels, in order."""
        instances = (Labelled(features=row, labels=[label]) for row, label in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self._name).learn_many(instances, in_flight=1):
                if isinstance(answer, Refused):
                    raise answer

    def rank(self, rows: Iterable[Row], k: int) -> Iterator[Ranked]:
        """At most ``k`` labels for each row."""
        instances = (Instance(features=row) for row in rows)
        with Client(self._url, key=self._key) as client:
            for answer in Model(client, self._name).classify_many(instances, k=k):
                if isinstance(answer, Refused):
                    raise answer
                yield [(one.label, one.score) for one in answer.labels]


def _secret() -> tuple[int, int]:
    """Where keys lie in memory is nobody's business; it changes no outcome."""
    drawn = os.urandom(16)
    return int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:], "little")
