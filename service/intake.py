"""What one request to learn may take in: bytes of its records, classes that are new, one way of reading instances.

Each is bounded over the whole request, since its parts are checked before any of them is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from core.config import ModelConfig
from core.errors import Conflict, NotReady, TooLarge
from service.model_replica import ModelReplica
from service.remembered import reading_of

READ_BY = ("boolean", "analyzer", "negative")
"""Fields of a configuration that decide what vector an instance becomes."""

LABELS_KEPT = 4096
"""So many new labels are kept before those that have been learned meanwhile are let go."""


class Room:
    """Bytes for the vectors and records of one request: they can be many times those of its body."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def take(self, size: int) -> None:
        """Take ``size`` bytes; TooLarge when they are not left."""
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the instances of this request are over {self._limit} bytes once they are vectors; "
                "send fewer or smaller ones at once"
            )


class NewClasses:
    """The labels that one request would add to a model, for ``max_classes`` and what its index can hold."""

    def __init__(self, model: ModelReplica) -> None:
        self._model = model
        self._new: set[str] = set()
        self._look_again = LABELS_KEPT
        self._known = -1

    def check(self, labels: Collection[str]) -> None:
        """Conflict when these labels would be too many classes, together with the ones before them."""
        live = self._model.live
        bounds = [bound for bound in (live.config.max_classes, live.index.most_classes) if bound is not None]
        if not bounds:
            return
        most = min(bounds)
        new = {label for label in labels if label not in self._new and live.labels.find(label.encode()) < 0}
        if not new:
            return
        known = len(live.labels)
        is_over = known + len(self._new) + len(new) > most
        if (is_over and known != self._known) or len(self._new) > self._look_again:
            self._new = {label for label in self._new if live.labels.find(label.encode()) < 0}
            self._look_again = max(LABELS_KEPT, 2 * len(self._new))
            self._known = known
        coming = len(self._new)
        if known + coming + len(new) > most:
            more = f" and {coming} more in this request" if coming else ""
            raise Conflict(f"the model holds {known} classes{more} of at most {most}: {min(new)!r} is new")
        self._new |= new


class Changing:
    """Models whose configuration is being changed in what it makes of instances: nothing is learned meanwhile."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()

    @contextmanager
    def to(self, name: str, changes: Mapping[str, Any]) -> Iterator[None]:
        """While ``changes`` of the model ``name`` are on their way."""
        if not any(field in changes for field in READ_BY):
            yield
            return
        self._names[name] += 1
        try:
            yield
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def check(self, model: ModelReplica, config: ModelConfig) -> None:
        """NotReady unless a vector that was made by ``config`` can be appended now."""
        now = model.live.config
        if self._names and model.name in self._names:
            raise NotReady("the configuration of the model is being changed; nothing was learned")
        if now is not config and reading_of(now) != reading_of(config):
            raise NotReady("the configuration of the model has just been changed; nothing was learned")
