"""What one request to learn may take in: bytes of its records, classes that are new, one way of reading instances.

Each is bounded over the whole request, since its parts are checked before any of them is learned; new classes over all
requests that are on their way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from core.config import ModelConfig
from core.errors import Conflict, NotReady, OutcomeUnknown, TooLarge
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
    """The labels that requests of this replica would add to a model, for ``max_classes`` and what its index can hold.

    They count from when they are checked until they are learned, or until the request is known to have failed. What
    other replicas have on its way is not known here.
    """

    def __init__(self, model: ModelReplica) -> None:
        self.model = model
        self._coming: Counter[str] = Counter()  # how many requests bring each
        self._look_again = LABELS_KEPT
        self._known = -1

    @contextmanager
    def of_request(self, seconds: float) -> Iterator[Brought]:
        """The labels of one request, as long as it is on its way.

        What may be in the log and is not learned yet when the context ends counts for so many ``seconds`` more.
        """
        brought = Brought(self)
        try:
            yield brought
        except (OutcomeUnknown, asyncio.CancelledError):
            self._let_go_later(brought, seconds)
            raise
        except BaseException:
            self._let_go(brought.labels)
            raise
        else:
            self._let_go_later(brought, seconds)

    def bring(self, labels: Collection[str], brought: set[str]) -> None:
        """Count labels for a request that has ``brought`` some. Conflict when they would be too many classes."""
        live = self.model.live
        bounds = [bound for bound in (live.config.max_classes, live.index.most_classes) if bound is not None]
        if not bounds:
            return
        most = min(bounds)
        unknown = {label for label in labels if label not in brought and live.labels.find(label.encode()) < 0}
        if not unknown:
            return
        new = {label for label in unknown if label not in self._coming}
        known = len(live.labels)
        is_over = known + len(self._coming) + len(new) > most
        if (is_over and known != self._known) or len(self._coming) > self._look_again:
            self._coming = Counter({label: n for label, n in self._coming.items() if self._is_unknown(label)})
            self._look_again = max(LABELS_KEPT, 2 * len(self._coming))
            self._known = known
        coming = len(self._coming)
        if new and known + coming + len(new) > most:
            more = f" and {coming} more on their way" if coming else ""
            raise Conflict(f"the model holds {known} classes{more} of at most {most}: {min(new)!r} is new")
        self._coming.update(unknown)
        if len(brought) > self._look_again:
            brought.intersection_update(self._coming)
        brought |= unknown

    def _is_unknown(self, label: str) -> bool:
        return self.model.live.labels.find(label.encode()) < 0

    def _let_go(self, labels: Collection[str]) -> None:
        for label in labels:
            if label in self._coming:
                self._coming[label] -= 1
                if not self._coming[label]:
                    del self._coming[label]

    def _let_go_later(self, brought: Brought, seconds: float) -> None:
        left = {label for label in brought.labels if self._is_unknown(label)}
        self._let_go(brought.labels - left)
        if left:
            asyncio.get_running_loop().call_later(seconds, self._let_go, left)


class Brought:
    """The new labels of one request."""

    def __init__(self, new: NewClasses) -> None:
        self.labels: set[str] = set()
        self._new = new

    def check(self, labels: Collection[str]) -> None:
        """Conflict when these labels would be too many classes, together with all that are on their way."""
        self._new.bring(labels, self.labels)


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
