"""Entries that no snapshot needs move from the log to history; a model is restored from a snapshot, or from history."""

import asyncio
import os
import random
from typing import Any

import msgspec
import pytest

from abound.history import full_log, garbage, pins
from abound.history.archive import archive, restart_history
from abound.history.garbage import FileCollector, collect_keys
from abound.history.history import History, HistoryManifest, HistoryParams, Segment
from abound.history.load import load_newest
from abound.history.replay import replay
from abound.history.retention import enforce_retention, segments_over_bounds
from abound.log import stream
from abound.log.catalog import read_catalog
from abound.log.closing import append_fenced
from abound.log.events import IncarnationDropped, ReplacementBegun
from abound.log.stream import Trim
from abound.state import snapshots, state_files
from abound.state.state_image import MANIFEST
from abound.store.key_names import ModelKeys
from abound.store.lease import REPLACEMENT, acquire
from abound.worker import Worker
from abound_core.errors import ArtifactsUnavailable, Corrupted, NotReady, UnknownOffset
from abound_core.types import START, Offset
from tests.support.lab import Archived, Lab, events, model_of, refitted, replace_by


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
        async with model.archiving() as to:
            assert await History(store, model.artifacts, keys).manifest() is None
            assert await archive(to) is None
        assert await store.client.xlen(keys.log) == 180
        await store.client.set(key, kept)
    assert (await model.archive()).n_entries == 119


async def test_a_segment_that_does_not_come_back_trims_nothing(model, monkeypatch):
    put = model.artifacts.put

    async def careless(name: str, data: bytes) -> None:
        await put(name, data[:-1])

    monkeypatch.setattr(model.artifacts, "put", careless)
    with pytest.raises(Corrupted, match="does not give back"):
        await model.archive()
    assert await model.store.client.xlen(model.living.keys.log) == 180
    assert await History(model.store, model.artifacts, model.living.keys).manifest() is None


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


async def test_where_no_snapshot_is_good_history_stands_in(model: Archived) -> None:
    contents = await model.archive()
    good = await replay(model.store, model.living, artifacts=model.artifacts)
    for manifest in await snapshots.read_manifests(model.store, model.living.keys):
        await model.store.client.delete(snapshots.file_key(model.living.keys, manifest.id, 0))
    again = await replay(model.store, model.living, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    with pytest.raises(ArtifactsUnavailable, match=r"none of the snapshots .*part 0 is missing.*ABOUND_ARTIFACTS_URL"):
        await replay(model.store, model.living)
    with pytest.raises(NotReady, match="no usable snapshot"):
        async with model.archiving() as to:
            await restart_history(to)
    await model.artifacts.delete(contents.segments[0].name)
    with pytest.raises(Corrupted, match=contents.segments[0].name):
        await replay(model.store, model.living, artifacts=model.artifacts)


async def test_the_newest_snapshot_before_an_offset_or_the_beginning(model: Archived) -> None:
    contents = await model.archive()
    early = await replay(model.store, model.living, model.offset(30), artifacts=model.artifacts)
    assert early.live.n_learned == 31
    assert await load_newest(model.store, early, until=model.offset(5), artifacts=model.artifacts) is None
    assert early.offset == START
    async with model.archiving(HistoryParams(keep_bytes=1)) as to:
        await enforce_retention(to, contents)
    with pytest.raises(UnknownOffset):
        await load_newest(model.store, early, until=model.offset(5), artifacts=model.artifacts)


async def test_a_replay_begins_with_the_state_of_a_refit_unless_it_is_about_an_earlier_offset(lab: Lab) -> None:
    past = [*await lab.append(*events(20))]
    made = await refitted(lab, model_of(7, 9))
    later = await lab.append(*events(5, 3))
    contents = await lab.contents()
    assert contents is not None
    at = made.position.offset
    for until, first in ((None, made), (later[0], made), (at, made), (past[-1], None), (START, None)):
        assert contents.first_state(until) == first
    for until, learned in ((None, 12), (later[0], 8), (past[9], 10)):
        model = await lab.replayed(until, from_start=True)
        assert model.live.n_learned == learned


async def test_retention_leaves_a_base_at_which_history_begins(model: Archived) -> None:
    contents = await model.archive()
    whole = await replay(model.store, model.living, from_start=True, artifacts=model.artifacts)
    bound = sum(segment.size for segment in contents.segments[3:]) + 5
    async with model.archiving(HistoryParams(keep_bytes=bound)) as to:
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


async def test_a_replay_that_begins_while_the_first_entries_are_archived(model, monkeypatch):
    manifest, archived = History.manifest, False

    async def overtaken(self: History) -> Any:
        nonlocal archived
        found = await manifest(self)
        if not archived:
            archived = True
            await model.archive()
        return found

    monkeypatch.setattr(History, "manifest", overtaken)
    again = await replay(model.store, model.living, artifacts=model.artifacts, from_start=True)
    assert archived
    assert again.offset == model.offset(-1)


async def swept(lab: Lab, sweep: FileCollector) -> int:
    return await sweep.collect(lab.artifacts, await read_catalog(lab.store))


async def states(lab: Lab) -> set[str]:
    folder = state_files.folder((await lab.living()).keys)
    return {name.split("/")[3] for name in await lab.artifacts.names(folder)}


async def test_the_state_of_a_refit_goes_with_the_segments_up_to_it(lab: Lab) -> None:
    worker = Worker(lab.store, artifacts=lab.artifacts)
    await lab.append(*events(20))
    made = await refitted(lab, model_of(20, 9))
    await lab.append(*events(20, 2))
    await lab.archived(HistoryParams(segment_bytes=2048))
    for _ in range(3):
        await worker.sweep(await read_catalog(lab.store))
        assert await states(lab) == {made.index}  # starts begin with it
    await lab.archived(HistoryParams(segment_bytes=2048, keep_bytes=1))
    contents = await lab.contents()
    assert contents.base is not None
    assert contents.refitted is None
    await worker.sweep(await read_catalog(lab.store))
    assert await states(lab) == {made.index, contents.base.index}  # the store may lose its last second
    await worker.sweep(await read_catalog(lab.store))
    assert await states(lab) == {contents.base.index}
    model = await lab.replayed(from_start=True)
    same = await lab.replayed()
    assert await model.compute_digest() == await same.compute_digest()


async def test_a_file_stays_until_it_has_been_unreferenced_for_a_while(lab, monkeypatch):
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 3600.0)
    sweep = FileCollector(lab.store)
    await lab.append(*events(3))
    left = await state_files.write(lab.artifacts, (await lab.living()).keys, model_of(5, 1), START)
    assert await swept(lab, sweep) == 0
    await asyncio.sleep(0.5)
    assert [await swept(lab, sweep) for _ in range(2)] == [0, 0]
    assert await states(lab) == {left.id}
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 0.5)  # counted from the first pass, not from the last
    assert await swept(lab, sweep) > 0
    assert await states(lab) == set()


async def has(lab: Lab, keys: ModelKeys) -> tuple[bool, bool]:
    """Whether an incarnation has keys in the store, and files. A deleted log stays closed and empty for a day."""
    client = lab.store.client
    found = {key async for key in client.scan_iter(match=keys.key("*"), count=1000)}
    if keys.log in found and not await client.xlen(keys.log) and await client.ttl(keys.log) > 0:
        found.remove(keys.log)
    return bool(found), bool(await lab.artifacts.names(f"{keys.name}/{keys.incarnation}"))


async def test_what_an_undo_needs_stays_until_it_is_given_up(lab: Lab) -> None:
    await lab.append(*events(20))
    await lab.archived(HistoryParams())
    first = (await lab.living()).keys
    await replace_by(lab, model_of(5, 1), keep=True)
    worker = Worker(lab.store, artifacts=lab.artifacts, undo_seconds=3600.0)
    for _ in range(3):
        await worker.sweep(await read_catalog(lab.store))
    assert await has(lab, first) == (True, True)
    late = Worker(lab.store, artifacts=lab.artifacts, undo_seconds=0.0)
    await late.sweep(await read_catalog(lab.store))
    catalog = await read_catalog(lab.store)
    assert not catalog.former
    for _ in range(2):
        await late.sweep(catalog)
    assert await has(lab, first) == (False, False)
    assert await has(lab, (await lab.living()).keys) == (True, True)


async def test_a_replacement_at_work_is_left_alone_and_an_abandoned_one_goes(lab: Lab) -> None:
    sweep = FileCollector(lab.store)
    await lab.append(*events(3))
    living = await lab.living()
    async with acquire(lab.store, living.keys, purpose=REPLACEMENT) as lease:
        await append_fenced(lab.store, lease, ReplacementBegun(living.keys.name, living.keys.incarnation))
        coming = (await read_catalog(lab.store)).coming[living.keys.name].keys
        await state_files.write(lab.artifacts, coming, model_of(5, 1), START)
        await lab.store.client.xadd(coming.log, {"e": "x", "c": "y"})
        for _ in range(3):
            assert await swept(lab, sweep) == 0
            assert await collect_keys(lab.store, await read_catalog(lab.store)) == 0
        await append_fenced(lab.store, lease, IncarnationDropped(living.keys.name, coming.incarnation))
    for _ in range(2):
        await swept(lab, sweep)
    await collect_keys(lab.store, await read_catalog(lab.store))
    assert await has(lab, coming) == (False, False)


async def test_files_that_nothing_points_to_go_in_the_second_pass_and_others_stay(lab: Lab) -> None:
    replica = await lab.replica()
    for name in ("gone", "other"):
        await replica.models.create(name, replica.model("default").live.config)
    gone, other, keys = (replica.model(name).keys.folder for name in ("gone", "other", "default"))
    await lab.append(*events(40))
    await lab.archived(HistoryParams(segment_bytes=1024))
    await lab.artifacts.put(f"{gone}/history/1-0.seg", b"x")
    await replica.models.delete("gone")
    assert await lab.artifacts.names("gone") != []  # the store may lose the deletion yet
    kept = await lab.artifacts.names()
    kept = [name for name in kept if not name.startswith(gone)]
    newer, foreign = f"newer/{2**60}-0/history/1-0.seg", f"{keys}/versions/v/x.npy"
    unused = f"{keys}/history/1-0-0.seg", f"{other}/history/1-0-0.seg", f"{keys}/index/base-0123/0", f"{gone}/index/x/0"
    for name in (newer, foreign, *unused):
        await lab.artifacts.put(name, b"x")
    path = lab.artifacts.path(f"{keys}/history/x")
    half = path.with_name(".half.part")
    half.write_bytes(b"x")
    os.utime(half, (1, 1))
    everything, sweep = await lab.artifacts.names(), FileCollector(lab.store)
    assert await swept(lab, sweep) == 1  # half a file
    assert await lab.artifacts.names() == everything
    assert await swept(lab, sweep) == 1 + len(unused)
    assert sorted(await lab.artifacts.names()) == sorted([*kept, newer, foreign])
    assert not half.exists()
