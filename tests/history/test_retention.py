"""How much of history is deleted, and what stays because somebody needs it."""

from __future__ import annotations

import msgspec
import pytest

from abound.history import pins
from abound.history.archive import ArchiveContext
from abound.history.garbage import FileCollector
from abound.history.history import HistoryManifest, HistoryParams, Segment
from abound.history.replay import replay
from abound.history.retention import deletable_segments, enforce_retention, segments_over_bounds
from abound.log.catalog import read_catalog
from abound.store.lease import acquire
from abound_core.errors import UnknownOffset
from abound_core.types import START, Offset
from tests.support.archived_model import Archived


async def test_retention_leaves_a_base_at_which_history_begins(model: Archived) -> None:
    contents = await model.archive()
    whole = await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    bound = sum(segment.size for segment in contents.segments[3:]) + 5
    async with acquire(model.store, model.living.keys) as lease:
        to = ArchiveContext(model.store, model.artifacts, model.living, lease, HistoryParams(keep_bytes=bound))
        async with pins.hold_pin(model.store, model.living.keys, "a", Offset.of_entry(contents.segments[0].last)):
            await pins.pin(model.store, model.living.keys, "b", Offset.of_entry(contents.segments[2].last))
            first = await enforce_retention(to, contents)
            assert first.segments == contents.segments[1:]
        await pins.unpin(model.store, model.living.keys, "b")
        kept = await enforce_retention(to, first)
        assert await enforce_retention(to, kept) == kept
    assert kept.segments == contents.segments[3:]
    begin = sum(segment.n_entries for segment in contents.segments[:3])
    assert kept.start == model.offset(begin - 1)
    assert await model.past(kept.start) == model.every[begin:]
    with pytest.raises(UnknownOffset, match=str(kept.start)) as caught:
        await model.past()
    assert caught.value.first == kept.start
    with pytest.raises(UnknownOffset):
        await replay(model.store, model.living, model.offset(3), from_start=True, artifacts=model.artifacts)
    again = await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert again.position == whole.position
    assert await again.compute_digest() == await whole.compute_digest()
    catalog, collector = await read_catalog(model.store), FileCollector(model.store)
    for _ in range(2):
        await collector.collect(model.artifacts, catalog)
    left = await model.artifacts.names(model.living.keys.folder)
    assert {name.split("/")[3] for name in left if "/index/" in name} == {kept.base.index if kept.base else ""}
    assert {name for name in left if "/history/" in name} == {segment.name for segment in kept.segments}


def listed(*sizes: int, **given: object) -> HistoryManifest:
    segments = [
        Segment(f"{i}", f"{i * 1000 + 1}-0", f"{i * 1000 + 999}-0", i, i, 1, 1, size, "")
        for i, size in enumerate(sizes)
    ]
    fields = {"format": 1, "model": "m", "incarnation": "1-0", "artifacts": "", "base": None, "segments": segments}
    return msgspec.convert(fields | given, HistoryManifest)


def test_how_much_retention_takes() -> None:
    contents = listed(100, 100, 100, 100)
    for keep_bytes, gone in ((400, 0), (390, 0), (380, 1), (300, 1), (299, 2), (99, 4), (1, 4)):
        assert segments_over_bounds(contents, HistoryParams(keep_bytes=keep_bytes), 0) == gone
    for now, gone in ((10_999, 0), (11_000, 0), (11_600, 1), (11_999, 1), (12_000, 2), (99_999, 4)):
        assert segments_over_bounds(contents, HistoryParams(keep_seconds=10), now) == gone
    assert segments_over_bounds(listed(), HistoryParams(keep_seconds=1, keep_bytes=1), 10**9) == 0


def test_retention_stops_before_what_somebody_needs() -> None:
    contents = listed(*[100] * 6)
    assert deletable_segments(contents, 4, None) == 4
    assert deletable_segments(contents, 4, Offset(2999, 0, 0)) == 3
    assert deletable_segments(contents, 4, Offset(2998, 7, 3)) == 2
    assert deletable_segments(contents, 4, START) == 0
