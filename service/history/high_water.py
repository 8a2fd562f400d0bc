"""How far a store had come, kept outside of it: one that has lost its data is not taken for one that is new.

A store whose files are gone, or cut off, starts without a word: it has fewer events, or none. What was acknowledged
would be missing, and what is learned from then on would stand at offsets that are taken. So the worker writes down how
far the catalog and each log had come, with each snapshot and when it stops: in the data directory of an embedded store,
and in the artifact store of any. A process of the service that starts refuses a store that is behind one of the two;
``abound store accept-loss`` is the way to go on with what is left.

The mark of a model is the offset of its snapshot, so a failover that loses what came after that goes unnoticed: within
what the store promises, and nothing here can know better. A model without a mark has been deleted when the catalog
itself is not behind. An empty store that knows no artifact store is behind each one that has a folder in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from abound.core.errors import ArtifactsUnavailable, CannotStart
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts, recorded_id, sync_folder
from abound.service.log.catalog import CATALOG_KEY, Catalog, read_catalog
from abound.service.log.stream import tail
from abound.service.processes.embedded_store import HIGH_WATER, EmbeddedStore
from abound.service.settings import Settings
from abound.service.store.client import Store

log = structlog.get_logger(__name__)

LOOK_SECONDS = 3.0
"""Longest wait, at a start, for an artifact store that does not answer."""


class Mark(msgspec.Struct, frozen=True):
    """How far the log of a model had come: its name, its last entry, and how many entries that were since its start."""

    name: str
    last: str
    n_entries: int


class HighWater(msgspec.Struct, frozen=True):
    """How far a store had come: the last entry of the catalog, and a mark for each incarnation of a model."""

    catalog: str = START.entry
    models: dict[str, Mark] = {}

    def behind(self, now: HighWater) -> list[str]:
        """What a store that has come as far as ``now`` lacks, in words."""
        lacks = []
        is_whole = _place(now.catalog) >= _place(self.catalog)
        if not is_whole:
            lacks.append(f"the catalog of models ends at {now.catalog} and had come to {self.catalog}")
        for incarnation, had in self.models.items():
            has = now.models.get(incarnation)
            if has is None and is_whole:
                continue  # deleted
            has = has or Mark(had.name, START.entry, 0)
            if _place(has.last) < _place(had.last):
                lacks.append(
                    f"the model {had.name} ends at {has.last} ({has.n_entries:,} entries) and had come to {had.last} "
                    f"({had.n_entries:,} entries)"
                )
        return lacks


class Kept(NamedTuple):
    """A place that marks are kept in, and what they are."""

    place: str
    marks: HighWater


class Marks:
    """The marks of one store, wherever they are kept.

    Parameters
    ----------
    data_dir : Path or None
        Of the embedded store; None: it is another one.
    artifacts : Artifacts or None
    """

    def __init__(self, store: Store, data_dir: Path | None, artifacts: Artifacts | None) -> None:
        self._store = store
        self._file = None if data_dir is None else data_dir / HIGH_WATER
        self._artifacts = artifacts

    @classmethod
    def of(cls, settings: Settings, store: Store, artifacts: Artifacts | None) -> Marks:
        """As the settings of a process say."""
        url = None if settings.redis_url is None else settings.redis_url.get_secret_value()
        is_embedded = url in (None, EmbeddedStore(settings.data_dir).url)
        return cls(store, settings.data_dir if is_embedded else None, artifacts)

    async def check(self) -> None:
        """CannotStart when the store is behind its marks; StoreUnavailable, Damaged (the catalog cannot be read)."""
        if lacks := await self.lacking():
            raise CannotStart(
                f"the store has lost what it had: {'; '.join(lacks)}. Nothing was changed. Restore the store from a "
                "backup; or, to go on with what is left and give the rest up: abound store accept-loss. A store that "
                "is meant to be new needs an artifact store (ABOUND_ARTIFACTS_URL), or folder, of its own"
            )

    async def lacking(self) -> list[str]:
        """What the store lacks of what it had, in words, each once."""
        now = await self._now(await read_catalog(self._store))
        return list(
            dict.fromkeys(
                f"{sentence} (says {one.place})" for one in await self._kept(now) for sentence in one.marks.behind(now)
            )
        )

    async def note(self, catalog: Catalog, artifacts: Artifacts | None, marks: dict[str, Mark] | None = None) -> None:
        """Write down how far the store has come: as before but for these ``marks``, or (None) all of it anew.

        ``artifacts``: joined. OSError and ArtifactsUnavailable when it cannot be written; StoreUnavailable.
        """
        now = await self._now(catalog) if marks is None else HighWater(catalog.offset.entry, marks)
        living = {one.keys.incarnation for one in catalog}
        if self._file is not None:
            before = _parsed(self._file.read_bytes()) if self._file.exists() else HighWater()
            await asyncio.to_thread(_write, self._file, _raised(before, now, living))
        if artifacts is not None:
            kept = await artifacts.kept_by(HIGH_WATER, artifacts.id)
            before = _parsed(kept[artifacts.id]) if artifacts.id in kept else HighWater()
            await artifacts.put(HIGH_WATER, _raised(before, now, living))

    async def accept(self) -> None:
        """Take the store as it is: the marks become what it has. Raises as ``note``."""
        if self._artifacts is not None:
            await self._artifacts.join(self._store)
        now = msgspec.json.encode(await self._now(await read_catalog(self._store)))
        if self._file is not None:
            _write(self._file, now)
        if self._artifacts is not None:
            await self._artifacts.put(HIGH_WATER, now)

    async def _now(self, catalog: Catalog) -> HighWater:
        marks = {}
        for one in catalog:
            end = await tail(self._store, one.keys.log)
            marks[one.keys.incarnation] = Mark(one.keys.name, end.last.entry, end.n_entries + end.n_removed)
        return HighWater((await tail(self._store, CATALOG_KEY)).last.entry, marks)

    async def _kept(self, now: HighWater) -> list[Kept]:
        kept = []
        if self._file is not None and self._file.exists():
            kept.append(Kept(str(self._file), _parsed(self._file.read_bytes())))
        owner = await recorded_id(self._store)
        if self._artifacts is None or (owner is None and now.catalog != START.entry):
            return kept
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                found = await self._artifacts.kept_by(HIGH_WATER, owner)
        except (ArtifactsUnavailable, TimeoutError) as error:
            log.warning(
                "whether the store has lost anything is not known from the artifact store, which cannot be used",
                reason=str(error) or "no answer in time",
            )
            return kept
        return kept + [Kept(f"the artifact store, folder {name}", _parsed(data)) for name, data in found.items()]


def _raised(before: HighWater, now: HighWater, living: set[str]) -> bytes:
    """Both in one: models that are gone left out, and of the others what is written now before what was."""
    models = {name: mark for name, mark in (before.models | now.models).items() if name in living}
    return msgspec.json.encode(HighWater(now.catalog, models))


def _parsed(data: bytes) -> HighWater:
    """What is kept; nothing where it cannot be read: it is written anew with the next snapshot."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        kept = msgspec.json.decode(data, type=HighWater)
        for text in (kept.catalog, *(mark.last for mark in kept.models.values())):
            _place(text)
        return kept
    log.warning("what is kept of how far the store had come cannot be read")
    return HighWater()


def _place(entry: str) -> Offset:
    return Offset.of_entry(entry)


def _write(file: Path, data: bytes) -> None:
    """In the place of what the file had, whole or not at all, and on disk."""
    beside = file.with_name(f".{file.name}.part")
    with beside.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)
    sync_folder(file.parent)
