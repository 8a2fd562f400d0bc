"""A model whose log was archived, for the tests of history."""

from __future__ import annotations

from typing import NamedTuple

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.archive import ArchiveContext, archive
from abound.history.history import History, HistoryManifest, HistoryParams
from abound.history.replay import compact
from abound.log.catalog import CatalogModel
from abound.log.stream import Element
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store
from abound.store.lease import acquire
from abound_core.types import START, Offset
from tests.state.test_snapshots import append

PARTS = SnapshotParams(part_bytes=16_384)
SMALL = HistoryParams(segment_bytes=2000)


class Archived(NamedTuple):
    """A model, its artifact store, and every entry that was ever appended."""

    store: Store
    artifacts: ArtifactStore
    living: CatalogModel
    every: list[Element]

    async def grow(self, n: int, seed: int) -> None:
        """Append entries and make a snapshot."""
        await append(self.store, self.living, n, seed)
        last = Offset.of_entry(self.every[-1][0]) if self.every else START
        self.every.extend(await self.past(last))
        await compact(self.store, self.living, PARTS, artifacts=self.artifacts)

    async def archive(self, params: HistoryParams = SMALL) -> HistoryManifest:
        async with acquire(self.store, self.living.keys) as lease:
            contents = await archive(ArchiveContext(self.store, self.artifacts, self.living, lease, params))
        assert contents is not None
        return contents

    async def contents(self) -> HistoryManifest:
        contents = await History(self.store, self.artifacts, self.living.keys).manifest()
        assert contents is not None
        return contents

    async def past(self, after: Offset = START, until: Offset | None = None) -> list[Element]:
        reading = full_log.read_entries(self.store, self.artifacts, self.living.keys, after, until)
        return [element async for elements in reading for element in elements]

    def offset(self, i: int) -> Offset:
        """Of the i-th entry."""
        return Offset.of_entry(self.every[i][0])
