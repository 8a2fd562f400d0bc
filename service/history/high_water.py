"""High-water marks: how far a store had got, recorded outside of it, so that a store with lost data is noticed.

A store whose files are deleted or truncated starts without an error and has fewer events, or none. Acknowledged events
would be missing, and new events would get offsets that were used before. So the worker records the last entry of the
catalog and of each log, with each snapshot and when it stops. It writes them to the data directory of an embedded
store and to the artifact store of any store. A service process refuses to start on a store that is behind one of the
records, and so does a command that works on the store directly; ``abound store accept-loss`` continues with what is
left.

The mark of a model is the offset of its snapshot. A failover that loses later events goes unnoticed; the store's
guarantees allow this loss, and nothing here could detect it. A missing model with a mark counts as deleted if the
catalog is not behind. An empty store without the id of an artifact store is behind every store that has a folder
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from abound.core.errors import ArtifactsUnavailable, CannotStart, Corrupted, StoreUnavailable, UnknownApplyVersion
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ArtifactStore, recorded_id, sync_folder
from abound.service.log.catalog import CATALOG_KEY, Catalog, read_catalog
from abound.service.log.stream import tail
from abound.service.processes.embedded_store import HIGH_WATER_FILE, EmbeddedStore
from abound.service.settings import Settings
from abound.service.store.client import Store

log = structlog.get_logger(__name__)

ARTIFACTS_WAIT_SECONDS = 3.0
"""Longest wait at a start for an artifact store that does not answer."""


class ModelHighWater(msgspec.Struct, frozen=True):
    """How far a model's log had got: the model's name, its last entry, and its number of entries since its start."""

    name: str
    last: str
    n_entries: int


class HighWater(msgspec.Struct, frozen=True):
    """How far a store had got: the last entry of the catalog, and a mark for each incarnation of a model."""

    catalog: str = START.entry
    models: dict[str, ModelHighWater] = {}

    def behind(self, now: HighWater) -> list[str]:
        """Compare with the marks ``now``, and return a phrase for each mark that the store no longer reaches."""
        lacks = []
        is_whole = Offset.of_entry(now.catalog) >= Offset.of_entry(self.catalog)
        if not is_whole:
            lacks.append(f"the catalog of models ends at {now.catalog} and had reached {self.catalog}")
        for incarnation, had in self.models.items():
            has = now.models.get(incarnation)
            if has is None and is_whole:
                continue  # deleted
            has = has or ModelHighWater(had.name, START.entry, 0)
            if Offset.of_entry(has.last) < Offset.of_entry(had.last):
                lacks.append(
                    f"the model {had.name} ends at {has.last} ({has.n_entries:,} entries) and had reached {had.last} "
                    f"({had.n_entries:,} entries)"
                )
        return lacks


class RecordedHighWater(NamedTuple):
    """The marks read from one place, and that place in words."""

    place: str
    marks: HighWater


class HighWaterMarks:
    """The high-water marks of one store, in all places that they are recorded in.

    Parameters
    ----------
    data_dir : Path or None
        Data directory of the embedded store; None for any other store.
    artifacts : ArtifactStore or None
    """

    def __init__(self, store: Store, data_dir: Path | None, artifacts: ArtifactStore | None) -> None:
        self._store = store
        self._file = None if data_dir is None else data_dir / HIGH_WATER_FILE
        self._artifacts = artifacts

    @classmethod
    def from_settings(cls, settings: Settings, store: Store) -> HighWaterMarks:
        """Create the marks of the store that the settings name. Only an embedded store has a local file."""
        url = None if settings.redis_url is None else settings.redis_url.get_secret_value()
        is_embedded = url in (None, EmbeddedStore(settings.data_dir).url)
        place = settings.artifacts_location()
        return cls(store, settings.data_dir if is_embedded else None, None if place is None else ArtifactStore(place))

    async def check(self) -> None:
        """Raise CannotStart if the store is behind its marks.

        A store that does not answer, or whose catalog cannot be read, passes: its next reader reports that.
        """
        lacks: list[str] = []
        with contextlib.suppress(StoreUnavailable, Corrupted, UnknownApplyVersion):
            lacks = await self.losses()
        if lacks:
            raise CannotStart(
                f"the store has lost data: {'; '.join(lacks)}. Nothing was changed. Restore the store from a backup; "
                "or, to continue with what is left and give up the rest: abound store accept-loss. A new store "
                "needs an artifact store (ABOUND_ARTIFACTS_URL), or folder, of its own"
            )

    async def losses(self) -> list[str]:
        """Return a phrase for each loss of the store, without duplicates.

        Raise Corrupted or UnknownApplyVersion if the catalog cannot be read, or StoreUnavailable.
        """
        now = await self._now(await read_catalog(self._store))
        return list(
            dict.fromkeys(
                f"{sentence} (recorded in {one.place})"
                for one in await self._kept(now)
                for sentence in one.marks.behind(now)
            )
        )

    async def record(
        self, catalog: Catalog, artifacts: ArtifactStore | None, marks: dict[str, ModelHighWater] | None = None
    ) -> None:
        """Record how far the store has got. ``marks`` are the models to update; None: all models, read from the store.

        ``artifacts`` must be joined. Raise OSError or ArtifactsUnavailable if the record cannot be written, or
        StoreUnavailable.
        """
        now = await self._now(catalog) if marks is None else HighWater(catalog.offset.entry, marks)
        living = {one.keys.incarnation for one in catalog}
        if self._file is not None:
            before = _parsed(self._file.read_bytes()) if self._file.exists() else HighWater()
            await asyncio.to_thread(_write, self._file, _raised(before, now, living))
        if artifacts is not None:
            kept = await artifacts.read_by_owner(HIGH_WATER_FILE, artifacts.id)
            before = _parsed(kept[artifacts.id]) if artifacts.id in kept else HighWater()
            await artifacts.put(HIGH_WATER_FILE, _raised(before, now, living))

    async def accept(self) -> None:
        """Accept the store as it is: set the marks to what it has. Raises what ``record`` raises."""
        if self._artifacts is not None:
            await self._artifacts.join(self._store)
        now = msgspec.json.encode(await self._now(await read_catalog(self._store)))
        if self._file is not None:
            _write(self._file, now)
        if self._artifacts is not None:
            await self._artifacts.put(HIGH_WATER_FILE, now)

    async def _now(self, catalog: Catalog) -> HighWater:
        marks = {}
        for one in catalog:
            end = await tail(self._store, one.keys.log)
            marks[one.keys.incarnation] = ModelHighWater(one.keys.name, end.last.entry, end.n_entries + end.n_removed)
        return HighWater((await tail(self._store, CATALOG_KEY)).last.entry, marks)

    async def _kept(self, now: HighWater) -> list[RecordedHighWater]:
        kept = []
        if self._file is not None and self._file.exists():
            kept.append(RecordedHighWater(str(self._file), _parsed(self._file.read_bytes())))
        owner = await recorded_id(self._store)
        if self._artifacts is None or (owner is None and now.catalog != START.entry):
            return kept
        try:
            async with asyncio.timeout(ARTIFACTS_WAIT_SECONDS):
                found = await self._artifacts.read_by_owner(HIGH_WATER_FILE, owner)
        except (ArtifactsUnavailable, TimeoutError) as error:
            log.warning(
                "the artifact store cannot be used, so its record of how far the store had got is not checked",
                reason=str(error) or "no answer in time",
            )
            return kept
        return kept + [
            RecordedHighWater(f"the artifact store, folder {name}", _parsed(data)) for name, data in found.items()
        ]


def _raised(before: HighWater, now: HighWater, living: set[str]) -> bytes:
    """Return both merged: marks of deleted models are dropped, and marks of ``now`` override those of ``before``."""
    models = {name: mark for name, mark in (before.models | now.models).items() if name in living}
    return msgspec.json.encode(HighWater(now.catalog, models))


def _parsed(data: bytes) -> HighWater:
    """Parse a record. If it cannot be read, return an empty one; the next snapshot writes it again."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        kept = msgspec.json.decode(data, type=HighWater)
        for text in (kept.catalog, *(mark.last for mark in kept.models.values())):
            Offset.of_entry(text)
        return kept
    log.warning("a record of how far the store had got cannot be read; the next snapshot writes it again")
    return HighWater()


def _write(file: Path, data: bytes) -> None:
    """Replace the content of a file atomically and flush it to disk."""
    beside = file.with_name(f".{file.name}.part")
    with beside.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)
    sync_folder(file.parent)
