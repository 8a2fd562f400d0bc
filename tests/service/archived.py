"""A model whose log was archived, for the tests of history."""

from __future__ import annotations

from typing import NamedTuple

from core.types import START, Offset
from service import past
from service.archive import Archiving, archive
from service.artifacts import Artifacts
from service.catalog import Living
from service.compaction import compact
from service.history import Contents, History, HistoryParams
from service.lease import take
from service.log import Element
from service.snapshots import SnapshotParams
from service.store import Store
from tests.service.test_snapshots import append

PARTS = SnapshotParams(part_bytes=16_384)
SMALL = HistoryParams(segment_bytes=2000)


class Archived(NamedTuple):
    """A model, its artifact store, and every entry that was ever appended."""

    store: Store
    artifacts: Artifacts
    living: Living
    every: list[Element]

    async def grow(self, n: int, seed: int) -> None:
        """Append entries and make a snapshot."""
        await append(self.store, self.living, n, seed)
        last = Offset.of_entry(self.every[-1][0]) if self.every else START
        self.every.extend(await self.past(last))
        await compact(self.store, self.living, PARTS, artifacts=self.artifacts)

    async def archive(self, params: HistoryParams = SMALL) -> Contents:
        async with take(self.store, self.living.keys) as lease:
            contents = await archive(Archiving(self.store, self.artifacts, self.living, lease, params))
        assert contents is not None
        return contents

    async def contents(self) -> Contents:
        contents = await History(self.store, self.artifacts, self.living.keys).contents()
        assert contents is not None
        return contents

    async def past(self, after: Offset = START, until: Offset | None = None) -> list[Element]:
        reading = past.entries(self.store, self.artifacts, self.living.keys, after, until)
        return [element async for elements in reading for element in elements]

    def offset(self, i: int) -> Offset:
        """Of the i-th entry."""
        return Offset.of_entry(self.every[i][0])
