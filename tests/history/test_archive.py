"""Entries that no snapshot needs move from the log to history."""

from __future__ import annotations

import random

import pytest

from abound.history import full_log
from abound.history import history as history_manifest
from abound.history.archive import ArchiveContext, archive, restart_history
from abound.history.history import HistoryParams
from abound.history.replay import compact, replay
from abound.log import stream
from abound.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound.log.stream import Trim
from abound.state import snapshots
from abound.state.state_image import MANIFEST
from abound.store.lease import acquire
from abound_core.errors import Corrupted
from abound_core.model.entry_application import Unit
from abound_core.types import START, Offset
from tests.state.test_snapshots import create
from tests.support.archived_model import PARTS, SMALL, Archived
from tests.support.streams import drafts


async def test_what_no_snapshot_needs_moves_from_the_log_to_history(model: Archived) -> None:
    keys, store = model.living.keys, model.store
    before = await replay(store, model.living, from_start=True)
    contents = await model.archive()
    assert len(contents.segments) > 3
    assert (contents.start, contents.end, contents.n_entries) == (START, model.offset(118), 119)
    held = await store.client.xrange(keys.log)
    assert [name for name, _ in held] == [name for name, _ in model.every[119:]]
    trim = await stream.trim_of(store, keys.log)
    assert trim == Trim(model.offset(118), 119, sum(stream.entry_size(fields) for _, fields in model.every[:119]))
    assert (await stream.tail(store, keys.log)).n_removed == 119
    assert await model.past() == model.every
    for first, last in ((0, 5), (100, 130), (118, 119), (119, 120), (150, 179), (118, 118)):
        assert await model.past(model.offset(first), model.offset(last)) == model.every[first + 1 : last + 1]
    for from_start in (True, False):
        again = await replay(store, model.living, from_start=from_start, artifacts=model.artifacts)
        assert again.position == before.position
        assert await again.compute_digest() == await before.compute_digest()
    assert await model.archive() == contents  # there is nothing to do
    names = [name for name in await model.artifacts.names(keys.folder) if "/history/" in name]
    assert sorted(names) == sorted(segment.name for segment in contents.segments)


async def test_small_segments_grow_into_larger_ones(model: Archived) -> None:
    large = HistoryParams(segment_bytes=6000)
    counts = []
    for seed in range(3, 9):
        await model.archive(large)
        await model.grow(10, seed)
        counts.append(len((await model.contents()).segments))
    contents = await model.archive(large)
    assert counts[-1] < counts[0] + 4
    assert all(segment.log_bytes > 3000 for segment in contents.segments[:-1])
    assert await model.past() == model.every
    assert contents.log_bytes == sum(stream.entry_size(fields) for _, fields in model.every[: contents.n_entries])
    await model.artifacts.put(contents.segments[-1].name, b"damaged")
    await model.grow(5, 20)
    again = await model.archive(large)
    assert again.segments[: len(contents.segments)] == contents.segments  # not one that cannot be read


async def test_nothing_leaves_the_log_before_two_snapshots_are_good(model: Archived) -> None:
    store, keys = model.store, model.living.keys
    newest, older = await snapshots.read_manifests(store, keys)
    for key in (snapshots.file_key(keys, newest.id, 0), snapshots.file_key(keys, older.id, MANIFEST)):
        kept = await store.client.get(key)
        await store.client.set(key, kept[:-1])
        async with acquire(store, keys) as lease:
            await_nothing = ArchiveContext(store, model.artifacts, model.living, lease, SMALL)
            assert await history_manifest.History(store, model.artifacts, keys).manifest() is None
            assert await archive(await_nothing) is None
        assert await store.client.xlen(keys.log) == 180
        await store.client.set(key, kept)
    assert (await model.archive()).n_entries == 119


async def test_a_segment_that_does_not_come_back_trims_nothing(
    model: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = model.artifacts.put

    async def careless(name: str, data: bytes) -> None:
        await put(name, data[:-1])

    monkeypatch.setattr(model.artifacts, "put", careless)
    with pytest.raises(Corrupted, match="does not give back"):
        await model.archive()
    assert await model.store.client.xlen(model.living.keys.log) == 180
    assert await history_manifest.History(model.store, model.artifacts, model.living.keys).manifest() is None


async def test_whoever_reads_while_it_moves_misses_nothing(model: Archived) -> None:
    rng = random.Random(1)
    for begin in range(0, 180, 30):
        after = model.offset(begin - 1) if begin else START
        read = []
        pace = stream.LogParams(read_bytes=rng.choice([300, 3000, 10**6]))
        reading = full_log.read_entries(model.store, model.artifacts, model.living.keys, after, params=pace)
        async for elements in reading:
            read += elements
            if rng.random() < 0.07:
                seed = len(model.every)
                await model.grow(rng.randrange(1, 8), seed)
                await model.archive()
        assert read == model.every[begin : begin + len(read)]
        assert begin + len(read) >= 180
    assert len((await model.contents()).segments) > 8


async def test_the_end_of_the_past_is_an_event_and_not_an_entry(model: Archived) -> None:
    store, keys = model.store, model.living.keys
    assert await full_log.newest_offset(store, (await create(store, "empty")).keys) == START
    assert await full_log.newest_offset(store, keys) == model.offset(-1)
    entry = Entry(
        APPLY_VERSION, b"somebody", 9, LearnEvent(b"".join(one.records for one in drafts(5)), 5, [Unit(1), Unit(4)])
    )
    payload, checksum = encode(entry)
    name = await store.client.xadd(keys.log, {"e": payload, "c": checksum})
    assert await full_log.newest_offset(store, keys) == Offset.of_entry(name, 4)
    for seed in range(3, 6):
        await model.grow(2, seed)
        await model.archive()
        assert await full_log.newest_offset(store, keys) == model.offset(-1)


async def test_history_begins_anew_at_a_snapshot_of_an_empty_model(model: Archived) -> None:
    living = await create(model.store, "empty")
    await compact(model.store, living, PARTS)
    async with acquire(model.store, living.keys) as lease:
        begun = await restart_history(ArchiveContext(model.store, model.artifacts, living, lease))
    assert begun.start == START
    empty = Archived(model.store, model.artifacts, living, [])
    for seed in range(3):
        await empty.grow(20, seed)
    contents = await empty.archive()
    assert contents.n_entries == 39
    assert await empty.past() == empty.every
    again = await replay(model.store, living, from_start=True, artifacts=model.artifacts)
    assert again.live.n_learned == 60
