"""High-water marks: how far a store had got, recorded in the artifact store, so that a store with lost data is noticed.

    <url>/<id>/high-water.json    the end of the catalog, and the end of the log of each model

A store whose files are deleted or truncated starts without an error and has fewer events, or none. Acknowledged events
would be missing, and new events would get offsets that were used before. So a service process refuses to start on a
store that is behind its marks, and so does a command that works on the store directly. ``abound store accept-loss``
continues with what is left.

One replica writes the marks (``HighWaterRecorder``): without a replica nothing is learned, while a worker may be absent
or busy. While an artifact store does not answer, a start is not refused: replicas need the store alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from abound.artifacts.artifact_store import ArtifactStore, recorded_id
from abound.artifacts.timeouts import NO_ANSWER
from abound.log.catalog import Catalog, read_catalog
from abound.log.stream import Trim, trimmed_key
from abound.settings import Settings
from abound.store.client import Store, store_errors
from abound.tasks import wait_for_event
from abound_core.errors import (
    ArtifactsUnavailable,
    CannotStart,
    Corrupted,
    StoreUnavailable,
    UnknownApplyVersion,
    UnknownArtifact,
)
from abound_core.types import START, Offset

log = structlog.get_logger(__name__)

FILE = "high-water.json"

RECORD_SECONDS = 4.0  # of the recorder; marks are one to two intervals behind the store

ARTIFACTS_WAIT_SECONDS = 3.0  # longest wait at a start for an artifact store that does not answer

# A segment of history is named after its first entry.
_OF_MODEL = re.compile(r"(?P<model>[^/]+)/(?P<incarnation>\d+-\d+)/(?:history/(?P<first>\d+-\d+)-)?")

# In one script, because a trim between two commands would be counted twice. It does not send the entry itself. The last
# entry that exists is asked for: `last-generated-id` would hide a deleted one.
_END = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
return {newest[1] and newest[1][1] or '0-0', redis.call('XLEN', KEYS[1]), redis.call('GET', KEYS[2])}
"""


class ModelHighWater(msgspec.Struct, frozen=True):
    """How far a model's log had got: its last entry, and its number of entries since its start."""

    name: str
    last: str
    n_entries: int


class HighWater(msgspec.Struct, frozen=True):
    """How far a store had got: the last entry of the catalog, and a mark for each incarnation of a model."""

    catalog: str = START.entry
    models: dict[str, ModelHighWater] = {}

    def __post_init__(self) -> None:
        for entry in (self.catalog, *(mark.last for mark in self.models.values())):
            Offset.of_entry(entry)

    def behind(self, now: HighWater) -> list[str]:
        """Return a phrase for each mark that the store, now at ``now``, no longer reaches."""
        lacks = []
        is_whole = Offset.of_entry(now.catalog) >= Offset.of_entry(self.catalog)
        if not is_whole:
            lacks.append(f"the catalogue of models ends at {now.catalog} and had reached {self.catalog}")
        for incarnation, had in self.models.items():
            has = now.models.get(incarnation)
            if has is None and is_whole:
                continue  # deleted
            has = has or ModelHighWater(had.name, START.entry, 0)
            if Offset.of_entry(has.last) < Offset.of_entry(had.last) or has.n_entries < had.n_entries:
                reached = f"{had.last} ({had.n_entries:,} entries)" if had.n_entries else had.last
                lacks.append(
                    f"the log of the model {had.name} ends at {has.last} ({has.n_entries:,} entries) and had reached "
                    f"{reached}"
                )
        return lacks


async def read_high_water(store: Store, catalog: Catalog) -> HighWater:
    keys = [one.keys for one in catalog]
    with store_errors():
        async with store.client.pipeline(transaction=False) as pipe:
            for one in keys:
                pipe.eval(_END, 2, one.log, trimmed_key(one.log))
            ends = await pipe.execute() if keys else []
    models = {
        one.incarnation: ModelHighWater(one.name, last.decode(), n_held + Trim.parse(trimmed).n_entries)
        for one, (last, n_held, trimmed) in zip(keys, ends, strict=True)
    }
    return HighWater(catalog.offset.entry, models)


async def check(settings: Settings, store: Store) -> None:
    """Raise CannotStart if the store has lost data, as far as the artifact store of the settings shows.

    A store that does not answer, or whose catalog cannot be read, passes: its next reader reports that.
    """
    place = settings.artifacts_location()
    lacks: list[str] = []
    try:
        lacks = [] if place is None else await losses(store, ArtifactStore(place))
    except ArtifactsUnavailable as error:
        log.warning(
            "the artifact store cannot be used, so its record of how far the store had got is not checked",
            reason=str(error),
        )
    except (StoreUnavailable, Corrupted, UnknownApplyVersion):
        pass
    if lacks:
        raise CannotStart(
            f"the store has lost data, or may have: {'; '.join(lacks)}. Nothing was changed. Restore it from a backup; "
            "or, to continue with what is left and give up the rest: abound store accept-loss. A new store needs an "
            "artifact store (ABOUND_ARTIFACTS_URL), or folder, of its own"
        )


async def losses(store: Store, artifacts: ArtifactStore) -> list[str]:
    """Return a phrase for each loss of the store, or for each reason why one cannot be excluded."""
    lacks: list[str] = []
    try:
        async with asyncio.timeout(ARTIFACTS_WAIT_SECONDS):
            if await recorded_id(store) is None:
                folders = await artifacts.folders()
                # Asked again: the first process of a new service may just have joined, and made the folder.
                if not folders or await recorded_id(store) is not None:
                    return []
                lacks = [f"it is new, and the artifact store has the folder {', '.join(folders)} of another store"]
                if len(folders) > 1:
                    return lacks
                artifacts.id = folders[0]
            else:
                await artifacts.join(store)
            try:
                marks = _parse(await artifacts.get(FILE))
            except UnknownArtifact:
                marks = _implied(await artifacts.names())
    except Corrupted as error:
        return [*lacks, str(error)]
    except TimeoutError:
        raise ArtifactsUnavailable(NO_ANSWER) from None
    # Read after the marks, which a replica may be writing meanwhile: the store is never behind marks of its past.
    return lacks + marks.behind(await read_high_water(store, await read_catalog(store)))


async def accept(store: Store, artifacts: ArtifactStore) -> None:
    """Accept the store as it is: set the marks to what it has."""
    await artifacts.join(store)
    await artifacts.put(FILE, msgspec.json.encode(await read_high_water(store, await read_catalog(store))))


class HighWaterRecorder:
    """Writes the marks of a store while it learns. ``is_writer`` should be true in one process at a time.

    It writes what it read one interval before. So marks hold nothing of the last seconds, which a store may lose by its
    guarantees: at a failover, or without ``appendfsync always``. Such a loss is no reason to refuse a start.
    """

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore,
        catalog: Callable[[], Catalog],
        is_writer: Callable[[], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._catalog = catalog
        self._is_writer = is_writer
        self._stopping = asyncio.Event()
        self._read: HighWater | None = None
        self._written: HighWater | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Record until ``stop`` is called, and then once more what the store has at the end."""
        while not self._stopping.is_set():
            await self._record_or_log(at_end=False)
            await wait_for_event(self._stopping, RECORD_SECONDS)
        await self._record_or_log(at_end=True)

    def stop(self) -> None:
        self._stopping.set()

    async def record(self, at_end: bool = False) -> None:
        """Write the marks read at the call before, or with ``at_end`` those of now, if any has changed."""
        await self._artifacts.join(self._store)
        # A start passes without a check while the artifact store is away. The marks then stay, so that the next start
        # is refused.
        if self._written is None and (lacks := await losses(self._store, self._artifacts)):
            raise Corrupted(
                f"the store has lost data, or may have, and the next start will be refused: {'; '.join(lacks)}"
            )
        due, self._read = self._read, await read_high_water(self._store, self._catalog())
        due = self._read if at_end else due
        if due is not None and due != self._written:
            await self._artifacts.put(FILE, msgspec.json.encode(due))
            self._written = due

    async def _record_or_log(self, at_end: bool) -> None:
        trouble = ""
        try:
            if await self._is_writer():
                await self.record(at_end)
        except StoreUnavailable:
            return  # the follower reports it
        except (ArtifactsUnavailable, Corrupted, UnknownApplyVersion) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.error("how far the store has got cannot be recorded; trying again", reason=trouble)
        self._trouble = trouble


def _implied(names: list[str]) -> HighWater:
    """Return how far a store must have got that refers to these artifacts. Used when there are no marks."""
    catalog = START.entry
    models: dict[str, ModelHighWater] = {}
    for match in filter(None, map(_OF_MODEL.match, names)):
        catalog = max(catalog, match["incarnation"], key=Offset.of_entry)
        if match["first"] is not None:
            known = models.get(match["incarnation"], ModelHighWater(match["model"], START.entry, 0))
            last = max(known.last, match["first"], key=Offset.of_entry)
            models[match["incarnation"]] = ModelHighWater(match["model"], last, 0)
    return HighWater(catalog, models)


def _parse(data: bytes) -> HighWater:
    try:
        return msgspec.json.decode(data, type=HighWater)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupted(
            f"the record of how far it had got, {FILE} in the artifact store, is damaged: {error}"
        ) from None
