"""Heartbeat: what a replica measures and publishes every second."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from abound.log import stream
from abound.log.catalog import CATALOG_KEY
from abound.log.stream import Trim
from abound.replica.follower import Follower
from abound.state import replica_status
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.tasks import forever
from abound.versions.cache_cleanup import CacheCleaner
from abound_core.errors import Corrupted, StoreUnavailable
from abound_core.types import Offset

TICK_SECONDS = 1.0
CLEAR_TICKS = 10  # by then a replica that was killed just before this one started counts as silent


class Heartbeat:
    """Measures the lag, verifies the logs and publishes the status of the models.

    ``classified`` returns the answered ``/classify`` requests of this replica by duration.
    """

    def __init__(
        self,
        store: Store,
        replica: str,
        follower: Follower,
        copies: CacheCleaner,
        classified: Callable[[], list[int]],
    ) -> None:
        self._store = store
        self._replica = replica
        self._follower = follower
        self._models = follower.models
        self._copies = copies
        self._classified = classified
        self._tick = 0
        self._cleared = False
        self._numbering = replica_status.pid_namespace()
        self._published: dict[str, tuple[Any, ...]] = {}
        self._seen: dict[str, Offset] = {}

    async def run(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._publish()  # a replacement waits for all replicas that have published themselves
        await forever(self._beat, TICK_SECONDS, at_once=False)

    async def _beat(self) -> None:
        self._tick += 1
        await self._measure_lag()
        await self._publish()
        if self._tick >= CLEAR_TICKS and not self._cleared:
            models = [model.keys for model in self._models.values()]
            await replica_status.remove_dead(self._store, models, self._replica)
            self._cleared = True

    def forget_model(self, keys: ModelKeys) -> None:
        self._published.pop(keys.incarnation, None)
        self._seen.pop(keys.incarnation, None)

    async def publish_soon(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._publish()

    async def replace_model(self, before: ModelKeys) -> None:
        """Publish that another incarnation is served than ``before``; a replacement waits for it."""
        self.forget_model(before)
        with contextlib.suppress(StoreUnavailable):
            await self._publish()
            await replica_status.withdraw(self._store, [before], self._replica)

    def _all(self) -> list[ReplicatedModel]:
        """Return the models that are served, and those that are loaded beside them."""
        return [*self._models.values(), *self._follower.incoming.models.values()]

    async def withdraw(self) -> None:
        await replica_status.withdraw(self._store, [model.keys for model in self._models.values()], self._replica)

    async def _measure_lag(self) -> None:
        models = self._all()
        catalog, positions = self._follower.catalog, [model.position for model in models]
        with store_errors():
            async with self._store.client.pipeline(transaction=False) as pipe:
                for model in models:
                    pipe.xlen(model.keys.log)
                for model in models:
                    pipe.get(stream.trimmed_key(model.keys.log))
                answers = await pipe.execute()
        held, trims = answers[: len(models)], answers[len(models) :]
        lengths = [length + _n_trimmed(text) for length, text in zip(held, trims, strict=True)]
        for model, length in zip(models, lengths, strict=True):
            model.lag = max(0, length - model.position.n_entries)
        # Emptying the store (FLUSHALL, DEL) does not close connections; the follower would wait forever.
        logs = [(CATALOG_KEY, catalog.offset, catalog.checksum)]
        logs += [
            (model.keys.log, position.offset, position.checksum)
            for model, position, length in zip(models, positions, lengths, strict=True)
            if model.ready and length < position.n_entries
        ]
        for key, offset, checksum in logs:
            if not await stream.holds(self._store, key, offset, checksum):
                self._follower.verify_soon()

    async def _publish(self) -> None:
        """Publish the status of the models that changed, and every other second of all models."""
        said, classified = [], self._classified()
        for model in self._all():
            offset = model.offset
            if self._seen.get(model.incarnation) == offset and model.digest_offset != offset:
                # No entry arrived for a second: a good time to compute the digest, unless one arrives now.
                await model.compute_digest(give_way=True)
            self._seen[model.incarnation] = offset
            loaded, swept = sorted(model.versions or ()), self._copies.done_requests
            now = (offset, model.digest, model.ready, model.lag, loaded, swept)
            if self._tick % 2 and self._published.get(model.incarnation) == now:
                continue
            self._published[model.incarnation] = now
            described = replica_status.PublishedStatus(
                replica=self._replica,
                offset=str(offset),
                digest=model.digest,
                digest_offset=str(model.digest_offset) if model.digest_offset is not None else None,
                host=socket.gethostname(),
                pid=os.getpid(),
                ready=model.ready,
                lag=model.lag,
                log_bytes=model.log_bytes,
                versions=loaded,
                classified=classified,
                swept_for=swept,
                numbering=self._numbering,
            )
            said.append((model.keys, described))
        if said:
            await replica_status.publish(self._store, said)


def _n_trimmed(text: bytes | None) -> int:
    """Return the number of trimmed entries of a log; 0 if the record cannot be read, which the follower reports."""
    try:
        return Trim.parse(text).n_entries
    except Corrupted:
        return 0
