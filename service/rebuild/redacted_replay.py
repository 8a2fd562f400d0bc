"""Redacted replay: rebuild a model without forgotten events; states adopted meanwhile are rebuilt by their recipes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from abound.core.errors import Conflict
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.history.history import History
from abound.service.history.lineage import Lineage, LineageStart, trace_lineage, truncate_learn
from abound.service.history.replay import ReplaySource, apply
from abound.service.history.restore import restore_first_state
from abound.service.log.events import LearnEvent, decode_entry
from abound.service.log.stream import Element
from abound.service.model.replicated_model import REPLAY_SLICE, ReplicatedModel
from abound.service.rebuild import refit
from abound.service.rebuild.forget import ForgetPlan
from abound.service.rebuild.redaction import element_of
from abound.service.snapshots import state_files
from abound.service.snapshots.state_image import StateManifest


class RedactedReplay:
    """Rebuilds a model without the events of a forget job, after ``find_events``."""

    def __init__(self, forgetting: ForgetPlan) -> None:
        self._forgetting = forgetting
        self._place = forgetting.place
        self._tell = forgetting.report_progress

    async def state(self) -> LiveModel:
        """Return the model at ``after`` without the events."""
        if self._forgetting.after is None:
            raise AssertionError("call find_events first")
        self._tell("replaying without the events", 0.3)
        return (await self._state(self._forgetting.after)).live

    async def _state(self, until: Offset) -> ReplicatedModel:
        place = self._place
        model = ReplicatedModel(place.keys, place.living.config, REPLAY_SLICE, Limits())
        await restore_first_state(place.store, place.artifacts, model)
        source = _Forgetful(self, self._forgetting)
        async for elements in self._forgetting.redacted_entries(model.offset, until):
            for element in elements:
                await apply(model, element, source)
            await place.checkpoint()
        return model

    async def rebuilt_state(self, name: str, digest: str) -> LiveModel | None:
        """Rebuild an adopted state without the forgotten events; return None if it contains none of them."""
        place = self._place
        manifest = await state_files.read_manifest(place.artifacts, place.keys, name)
        until = Offset.parse(manifest.offset)
        method = manifest.recipe.get("method")
        if method == "restore":
            until = min(until, Offset.parse(manifest.recipe["to"]))
        if self._forgetting.first is None or until[:2] < self._forgetting.first[:2] or method in ("base", "import"):
            return None
        known = self._forgetting.rebuilt_states.get(name)
        if known is not None:
            return await state_files.load(place.artifacts, place.keys, known.id, known.digest, Limits())
        self._tell(f"rebuilding the state file {name}", 0.4)
        if method == "forget":
            live = (await self._state(until)).live
        elif method == "restore":
            live = await self._restored(until)
        elif method == "refit":
            live = await self._refitted(manifest, until)
        else:
            raise Conflict(
                f"the state file {name} contains events that are to be forgotten, and has no recipe to rebuild it"
            )
        new = state_files.new_id()
        await place.will_write(f"{state_files.folder(place.keys)}/{new}")
        self._forgetting.rebuilt_states[name] = await state_files.write(
            place.artifacts, place.keys, live, Offset.parse(manifest.offset), manifest.recipe, place.checkpoint, new
        )
        return live

    async def _restored(self, to: Offset) -> LiveModel:
        before = to._replace(position=0)
        model = await self._state(Offset(before.milliseconds, before.sequence - 1, 0) if to.sequence else _back(to))
        source = _Forgetful(self, self._forgetting)
        async for elements in self._forgetting.redacted_entries(model.offset, before):
            for name, fields in elements:
                entry = decode_entry(fields)
                event = truncate_learn(entry.event, to.position) if isinstance(entry.event, LearnEvent) else entry.event
                await apply(model, element_of(name, msgspec.structs.replace(entry, event=event)), source)
        return model.live

    async def _refitted(self, manifest: StateManifest, until: Offset) -> LiveModel:
        place = self._place
        before = (await self._state(until)).live

        def read(after: Offset, to: Offset) -> AsyncGenerator[list[Element]]:
            return self._forgetting.redacted_entries(after, to._replace(position=0))

        contents = await History(place.store, place.artifacts, place.keys).manifest()
        base = contents.base if contents is not None else None
        found: Lineage = await trace_lineage(read, place.artifacts, place.keys, self._forgetting.beginning, until)
        counted = refit.with_base(LineageStart(base.index, base.digest) if base is not None else None, found)
        again = refit.Refit(
            read,
            place.artifacts,
            place.keys,
            before.config,
            counted,
            before.n_learned,
            lambda stage, done: self._tell(stage, 0.4),
        )
        live = await again.fit(manifest.recipe["setting"], manifest.recipe["passes"])
        live.continue_score(before)
        return live


class _Forgetful(ReplaySource):
    """Source of standby states for a replay without the forgotten events."""

    def __init__(self, remaking: RedactedReplay, forgetting: ForgetPlan) -> None:
        place = forgetting.place
        super().__init__(place.store, place.artifacts, place.log)
        self._remaking = remaking
        self._forgetting = forgetting

    async def load(self, keys: Any, index: str, digest: str, limits: Limits, progress: Any = None) -> LiveModel:
        """Load an adopted state, rebuilt if it contained forgotten events."""
        live = await self._remaking.rebuilt_state(index, digest)
        return live if live is not None else await super().load(keys, index, digest, limits)

    async def entries(self, keys: Any, after: Offset, until: Offset | None) -> AsyncGenerator[list[Element]]:
        """Yield the entries without the forgotten events."""
        if until is None:
            raise AssertionError("a standby state is replayed up to a known offset")
        first = self._forgetting.first
        if first is not None and until[:2] < first[:2]:  # nothing is removed up to here
            async for elements in super().entries(keys, after, until):
                yield elements
            return
        async for elements in self._forgetting.redacted_entries(after, until):
            yield elements


def _back(to: Offset) -> Offset:
    return Offset(max(0, to.milliseconds - 1), 2**63 if to.milliseconds else 0, 0)
