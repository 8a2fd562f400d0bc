"""Follow one model's log, score its challengers, and let the gate promote one.

None of this is replicated state. If the worker dies, replicas learn and answer as before, and the next worker
continues from the saved standings and reaches the same decisions. A contest that falls behind reads from history and
catches up later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.load import load_newest
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import ActivateEvent, LearnEvent, decode_entry
from abound.log.stream import Element, LogParams
from abound.store.client import Store
from abound.store.lease import Lease, LeaseLost
from abound.tasks import TimeSlice
from abound.versions.activation import ActivationContext
from abound.versions.promotion import challengers
from abound.versions.promotion import standings as standing
from abound.versions.promotion.challengers import LoadedChallengers
from abound.versions.promotion.gate import Gate
from abound.versions.promotion.params import ChallengerParams
from abound.versions.promotion.scoring import (
    LearnedInstance,
    ScoredModel,
    rank_by_version,
)
from abound.versions.promotion.standings import Standings
from abound.versions.ranking import fitted_until, named_at
from abound_core.errors import ArtifactsUnavailable, Corrupted, UnknownOffset
from abound_core.model.active_version import LIVE, ServingState
from abound_core.promotion_rule import Contest, GateParams
from abound_core.rank_sums import rank_in
from abound_core.types import Offset

AT_ONCE = 256  # instances that the versions rank in one call

SLICE_EVENTS = 64


class ContestFollower:
    """Contest of one model, followed while the lease is held."""

    standing: Standings

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore | None,
        living: CatalogModel,
        lease: Lease,
        params: ChallengerParams | None = None,
        gate: GateParams | None = None,
        log_params: LogParams | None = None,
        prepare_seconds: float = 300.0,
    ) -> None:
        self.model = ScoredModel(living.keys, living.config, SLICE_EVENTS)
        self._store = store
        self._artifacts = artifacts
        self._keys = living.keys
        self._lease = lease
        self._params = params or ChallengerParams()
        self._log_params = log_params or LogParams()
        self._saved = b""
        self._challengers = LoadedChallengers(store, artifacts, living.keys, self._params.loaded_bytes)
        self._gate = Gate(
            ActivationContext(store, artifacts, living.keys, prepare_seconds), lease, gate or GateParams()
        )

    # opening

    async def open(self) -> None:
        """Restore the saved standings and the model at their offset; without standings, at the end of the log."""
        found = None
        with contextlib.suppress(Corrupted):  # written by another release: start a new contest
            found = await standing.read(self._store, self._keys)
        until = Offset.parse(found.offset) if found is not None else None
        try:
            # A snapshot at or before the standings: the entries between are learned without scoring, so no instance is
            # scored twice.
            await load_newest(self._store, self.model, until=until, artifacts=self._artifacts)
        except (UnknownOffset, Corrupted, ArtifactsUnavailable):
            if until is None:
                raise
            # Only newer snapshots are left: the instances between are never scored, and the standings count a gap.
            await load_newest(self._store, self.model, artifacts=self._artifacts)
        alpha = self._gate.params.alpha
        if found is None or until is None:
            until = (await stream.tail(self._store, self._keys.log)).last
            found = Standings(since=str(until), contest=Contest(served=LIVE, alpha=alpha))
        elif self.model.offset[:2] > until[:2]:
            found.gaps += 1
        if found.contest.alpha != alpha:
            found.contest.alpha, found.contest.comparisons = alpha, {}
        self.standing = found
        await self._learn_up_to(until)
        found.contest.set_served(self.model.live.serving.version)
        await self.reload_challengers()

    async def _learn_up_to(self, until: Offset) -> None:
        if self.model.offset[:2] >= until[:2]:
            return
        reading = full_log.read_entries(
            self._store, self._artifacts, self._keys, self.model.offset, until, params=self._log_params
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    await self.model.apply(element)
                self._check()

    def _check(self) -> None:
        if self._lease.lost:
            raise LeaseLost

    # challengers

    async def reload_challengers(self) -> None:
        """Reload the challengers. Versions that fail to load are listed in ``standing.trouble``."""
        serving = self.model.live.serving
        await self._challengers.reload([serving.version, *self._gate.fallback(self.standing, serving)])
        self.standing.trouble = self._challengers.load_errors
        # A version that failed to load may load later; keep its scores.
        self.standing.contest.retain([*self._challengers.loaded, *self._challengers.load_errors, LIVE])
        self.model.recording = bool(self._challengers.loaded)

    @property
    def is_store_away(self) -> bool:
        return self._challengers.is_store_away

    # following

    async def follow_log(self) -> bool:
        """Follow the log to its end, or for ``keep_seconds``; return whether the end was reached.

        Raises LeaseLost if another worker follows the model.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        reading = full_log.read_entries(
            self._store,
            self._artifacts,
            self._keys,
            self.model.offset,
            params=self._log_params,
            checksum=self.model.position.checksum,
        )
        reached = True
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    await self._apply_element(element)
                self._check()
                if loop.time() - began > self._params.keep_seconds:
                    reached = False
                    break
        await self._flush()
        return reached

    async def _apply_element(self, element: Element) -> None:
        event = decode_entry(element[1]).event
        if type(event) is LearnEvent:
            await self.model.apply(element)
            if len(self.model.recorded) >= AT_ONCE:
                await self._flush()
            return
        await self._flush()
        before = self.model.live.serving
        await self.model.apply(element)
        serving = self.model.live.serving
        # Only the log decides which version is served: a decision counts when its entry is read back.
        if type(event) is ActivateEvent and serving.activation != before.activation:
            await self._served(before, serving, event.reason)

    async def _served(self, before: ServingState, serving: ServingState, reason: str) -> None:
        """Handle the activation of another version in the log."""
        if serving.version == before.version:
            return
        if not self._gate.on_activated(self.standing, serving, reason) and not before.is_live:
            # An operator replaced this version: withdraw it, so that the gate does not promote it again. A version
            # that was entered after its deactivation stays.
            at = Offset.parse(serving.at).milliseconds / 1000
            await challengers.withdraw(self._store, self._keys, before.version, at)
        self.standing.contest.set_served(serving.version)
        await self.reload_challengers()

    async def _flush(self) -> None:
        """Let the versions rank the instances collected so far, and record all ranks."""
        seen, self.model.recorded = self.model.recorded, []
        for first in range(0, len(seen), AT_ONCE):
            await self._note(seen[first : first + AT_ONCE])
        self.standing.offset = str(self.model.offset)
        if seen:
            serving = self.model.live.serving
            loaded = [name for name in self._challengers.challengers if name in self._challengers.loaded]
            await self._gate.decide(self.standing, serving, loaded)

    async def _note(self, seen: Sequence[LearnedInstance]) -> None:
        loaded = self._challengers.loaded
        vectors = [one.vector for one in seen]
        live = self.model.live
        listed = {
            name: await asyncio.to_thread(rank_by_version, version, live.renamed(named_at(version)), vectors)
            for name, version in loaded.items()
        }
        knows = {name: fitted_until(version)[:2] for name, version in loaded.items()}
        time_slice = TimeSlice()
        for i, one in enumerate(seen):
            ranks = {LIVE: rank_in(one.live, one.true_labels)}
            for name, lists in listed.items():
                if one.at[:2] > knows[name]:
                    ranks[name] = rank_in(lists[i], one.true_labels)
            self.standing.contest.add(ranks)
            if time_slice.due():
                await time_slice.pause()

    # saving

    async def save(self) -> None:
        """Write the standings if they changed since the last call."""
        await self._flush()
        self._check()
        self._saved = await standing.save(self._lease, self.standing, self._saved)
