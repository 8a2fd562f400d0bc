"""Forget: rebuild a model without some of its events, and erase them from everything stored.

``ForgetPlan`` finds the events and replays the model without them (``abound/replace/redaction.py``); the result is
adopted (``abound/replace/adoption.py``). From the adoption on no replica has learned the events. Then ``Eraser``
(``abound/replace/erase.py``) erases them from versions, snapshots, log, stored predictions and history.

A job that dies after the adoption is repeated by the next one. The records that locate the events are therefore deleted
last. Every deletion is noted in the record before it happens (``ErasureRecord``), so the record is complete after a
crash as well.

A forgotten event leaves its position empty, so no offset changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from abound.history import erasures, full_log
from abound.history.erasures import UnfinishedErasure
from abound.history.lineage import entry_end
from abound.history.replay import ReplaySource, replay
from abound.log.events import LearnEvent
from abound.log.stream import Element
from abound.replace.adoption import AdoptionContext, find_adoption
from abound.replace.redaction import ForgetParams, OnRedacted, Redaction, contains, last_offset
from abound.replica.predictions import PredictionEraser
from abound.state import snapshots, state_files
from abound.state.state_image import StateManifest
from abound.store.key_names import ModelKeys
from abound.tasks import do_nothing
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset


class ForgetPlan(ReplaySource):
    """The events to forget, and the log and history without them, for a replay."""

    def __init__(
        self,
        place: AdoptionContext,
        params: ForgetParams,
        report_progress: Callable[[str, float], None],
        record: ErasureRecord,
    ) -> None:
        super().__init__(place.store, place.artifacts, place.log)
        self.place = place
        self.reason = params.reason
        self.report_progress = report_progress
        self.record = record
        # START until ``find_events`` has run.
        self.what = UnfinishedErasure(str(START), params.key, params.source, params.since, params.until)
        self.first: Offset | None = None  # entry of the first event to forget
        # By id, the rebuilt state files that replace those of restores.
        self.rebuilt: dict[str, StateManifest] = {}
        self.remembered = PredictionEraser(place.store, place.keys)
        self._noted: list[str] = []
        self._others: dict[str, UnfinishedErasure] = {}
        self._keys: set[str] = set()

    async def find_events(self, after: Offset, again: bool = False) -> dict[str, Any]:
        """Find the events up to ``after``; return their counts.

        ``again``: an attempt that died has begun to erase them, so possibly none are left. Raises UnknownOffset if some
        may have been learned in a state whose events are not in history.
        """
        place = self.place
        self.what, self.first = msgspec.structs.replace(self.what, after=str(after)), None
        self.rebuilt.clear()
        snapshot_ids = await snapshots.ids(place.store, place.keys)
        await self.remembered.read()
        self._noted = [*await erasures.unfinished_erasures(place.store, place.keys)]
        self._others = await adopted_erasures(place)
        n = {"requests": 0, "instances": 0}

        def count(event: LearnEvent, gone: list[bool]) -> None:
            units = [unit for unit, is_gone in zip(event.units, gone, strict=True) if is_gone]
            n["requests"] += len(units)
            n["instances"] += sum(unit.n for unit in units)
            self.remembered.compare(event, gone)

        redaction = await self.redaction(count, is_strict=not again)
        async with contextlib.aclosing(self._redacted(redaction, START, after)) as reading:
            async for elements in reading:
                self.report_progress(f"searching: at {elements[-1][0].decode()}", 0.05)
        if redaction.first is None and redaction.missed is not None:
            raise redaction.missed
        self.first, self._keys = redaction.first, redaction.keys
        counts: dict[str, Any] = {"forgotten": n, "from": str(self.first) if self.first else None}
        if redaction.dropped:
            counts["refits_dropped"] = (
                f"the refits {', '.join(redaction.dropped)} had learned forgotten events and were dropped, with their "
                "settings; submit them again"
            )
        if self.first is not None and not again:
            await self.record.add(**counts, snapshots_deleted=snapshot_ids)
        return counts

    async def end_others(self) -> None:
        """Mark unfinished forget jobs as complete, once ``find_events`` has found nothing left.

        This includes jobs that died before their adoption: their notes would make fits and imports of versions fail.
        """
        await erasures.remove_unfinished(self.place.store, self.place.keys, self._noted)

    async def has_repeats(self, until: Offset | None = None) -> bool:
        """Return whether a forgotten key has arrived since ``find_events``, up to ``until`` (default: now).

        Such a request is answered as a repeat, or refused for another body. It would be learned on top of the adopted
        state, which does not have the receipt of the first one. So the attempt fails before its adoption.
        """
        place = self.place
        if not self._keys:
            return False
        after = Offset.parse(self.what.after)
        reading = full_log.read_entries(place.store, place.artifacts, place.keys, after, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    event = full_log.decode_element(element).event
                    if isinstance(event, LearnEvent) and any(one.key in self._keys for one in event.units):
                        return True
        return False

    async def state(self) -> LiveModel:
        self.report_progress("replaying without the events", 0.3)
        return await self._replay(entry_end(Offset.parse(self.what.after)))

    async def redaction(
        self,
        note: OnRedacted = lambda event, gone: None,
        is_strict: bool = False,
        rebuilt: Mapping[str, StateManifest] | None = None,
    ) -> Redaction:
        redaction = Redaction(self.place, self.what, self._others.values(), rebuilt or {}, note, is_strict)
        await redaction.begin()
        return redaction

    async def entries(
        self, keys: ModelKeys, after: Offset, until: Offset | None, checksum: bytes = b""
    ) -> AsyncGenerator[list[Element]]:
        """Each call reads from the beginning of history."""
        reading = super().entries(keys, after, until)
        if until is None or self.first is None or until[:2] >= self.first[:2]:
            reading = self._redacted(await self.redaction(), after, until)
        async for elements in reading:
            yield elements

    async def load(self, keys: ModelKeys, index: str, digest: str, limits: Limits) -> LiveModel:
        """Load an adopted state; one rebuilt without the events if a restore made it and it may contain any of them."""
        if index not in self.rebuilt:
            manifest = await state_files.read_manifest(self.place.artifacts, keys, index)
            if manifest.recipe.get("method") != "restore" or not contains(manifest, self.first):
                return await super().load(keys, index, digest, limits)
            self.report_progress(f"rebuilding the state file {index}", 0.4)
            self.rebuilt[index] = await self._rebuild(manifest)
        new = self.rebuilt[index]
        return await super().load(keys, new.id, new.digest, limits)

    async def _rebuild(self, manifest: StateManifest) -> StateManifest:
        place = self.place
        live = await self._replay(last_offset(manifest))
        name = state_files.new_id()
        await place.will_write(f"{state_files.folder(place.keys)}/{name}")
        return await state_files.write(
            place.artifacts, place.keys, live, Offset.parse(manifest.offset), manifest.recipe, place.checkpoint, name
        )

    async def _replay(self, until: Offset) -> LiveModel:
        place = self.place
        model = await replay(
            place.store,
            place.living,
            until,
            from_start=True,
            between=place.checkpoint,
            artifacts=place.artifacts,
            source=self,
            is_cut=True,
        )
        return model.live

    async def _redacted(
        self, redaction: Redaction, after: Offset, until: Offset | None
    ) -> AsyncGenerator[list[Element]]:
        place = self.place
        first = redaction.beginning
        reading = full_log.read_entries(place.store, place.artifacts, place.keys, first, until, params=place.log)
        async with contextlib.aclosing(reading):
            async for elements in reading:
                rewritten = [await redaction.redact(element) for element in elements]
                wanted = [one for one in rewritten if Offset.of_entry(one[0])[:2] > after[:2]]
                if wanted:
                    yield wanted
                await place.checkpoint()
                await asyncio.sleep(0)


async def adopted_erasures(place: AdoptionContext) -> dict[str, UnfinishedErasure]:
    """Return by job the events that unfinished forget jobs left in history: those whose state is adopted."""
    noted = await erasures.unfinished_erasures(place.store, place.keys)
    return {
        job: what
        for job, what in noted.items()
        if await find_adoption(place, job, Offset.parse(what.after)) is not None
    }


class ErasureRecord:
    """Record of what one forget job erased. It is stored before each step, so that a crashed job can be resumed.

    ``known`` is the record that a job left when it died.
    """

    def __init__(
        self, known: Mapping[str, Any], keep: Callable[[dict[str, Any]], Awaitable[None]] = do_nothing
    ) -> None:
        self._keep = keep
        self.outcome: dict[str, Any] = {
            "versions_deleted": [],
            "snapshots_deleted": [],
            "segments_rewritten": [],
            "indexes_deleted": [],
            "indexes_rewritten": {},
            "remembered_deleted": 0,
        } | dict(known)

    async def add(self, **found: Any) -> None:
        """Add to the lists and mappings in the record, replace other values, and store it."""
        for name, value in found.items():
            before = self.outcome.get(name)
            if isinstance(before, list):
                value = [*dict.fromkeys([*before, *value])]
            elif isinstance(before, dict):
                value = before | value
            self.outcome[name] = value
        await self._keep(self.outcome)
