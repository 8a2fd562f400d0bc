from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound.core.errors import ArtifactsUnavailable, Corrupted, NotReady, UnknownOffset
from abound.core.model.entry_application import Unit
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ARTIFACTS_KEY, ArtifactStore
from abound.service.artifacts.checksums import seal
from abound.service.history import full_log, history_manifest, pins
from abound.service.history.archive import ArchiveContext, archive, restart_history, swap_manifest, write_segment
from abound.service.history.garbage import FileCollector
from abound.service.history.history_manifest import HistoryManifest, HistoryParams, Segment
from abound.service.history.replay import rebuild
from abound.service.history.restore import restore_newest
from abound.service.history.retention import (
    deletable_segments,
    enforce_retention,
    segments_over_bounds,
    segments_over_state_file_bound,
)
from abound.service.log import stream
from abound.service.log.catalog import read_catalog
from abound.service.log.events import APPLY_VERSION, AdoptEvent, Entry, LearnEvent, adoption_after, encode
from abound.service.log.stream import Trim
from abound.service.snapshots import snapshots
from abound.service.snapshots.state_image import MANIFEST
from abound.service.store.client import Store
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import LeaseLost, acquire
from tests.snapshots.test_snapshots import create
from tests.support.archived_model import SMALL, Archived
from tests.support.streams import drafts


@pytest.fixture
async def model(store: Store, tmp_path: Path) -> Archived:
    """A model of 180 entries with two snapshots, after 60 and 120; nothing is archived."""
    artifacts = ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    model = Archived(store, artifacts, await create(store), [])
    for seed in range(2):
        await model.grow(60, seed)
    await model.grow(60, 2)
    assert len(model.every) == 180
    return model


async def test_what_no_snapshot_needs_moves_from_the_log_to_history(model: Archived) -> None:
    keys, store = model.living.keys, model.store
    before = await rebuild(store, model.living, from_start=True)
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
        again = await rebuild(store, model.living, from_start=from_start, artifacts=model.artifacts)
        assert again.position == before.position
        assert await again.compute_digest() == await before.compute_digest()
    assert await model.archive() == contents  # there is nothing to do
    names = [
        name for name in await model.artifacts.names(history_manifest.artifact_folder(keys)) if "/history/" in name
    ]
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


async def test_a_store_that_does_not_count_what_is_removed_is_no_matter(
    model: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = model.store.client.xinfo_stream

    async def as_before_7(key: bytes) -> dict[str, object]:
        answer: dict[str, object] = await ask(key)
        return {name: value for name, value in answer.items() if name not in ("entries-added", "max-deleted-entry-id")}

    monkeypatch.setattr(model.store.client, "xinfo_stream", as_before_7)
    assert (await stream.tail(model.store, model.living.keys.log)).n_removed == 0
    await model.archive()
    assert (await stream.tail(model.store, model.living.keys.log)).n_removed == 119
    assert not await stream.holds(model.store, model.living.keys.log, START, b"")
    with pytest.raises(ArtifactsUnavailable):
        await rebuild(model.store, model.living, from_start=True)
    made = await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert made.live.n_learned == 180


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


async def test_retention_leaves_a_base_at_which_history_begins(model: Archived) -> None:
    contents = await model.archive()
    whole = await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
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
        await rebuild(model.store, model.living, model.offset(3), from_start=True, artifacts=model.artifacts)
    again = await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert again.position == whole.position
    assert await again.compute_digest() == await whole.compute_digest()
    catalog, collector = await read_catalog(model.store), FileCollector(model.store)
    for _ in range(2):
        await collector.collect(model.artifacts, catalog)
    left = await model.artifacts.names(history_manifest.artifact_folder(model.living.keys))
    assert {name.split("/")[3] for name in left if "/index/" in name} == {kept.base.index if kept.base else ""}
    assert {name for name in left if "/history/" in name} == {segment.name for segment in kept.segments}


async def test_a_store_that_loses_its_last_second_still_has_its_history(model: Archived) -> None:
    """Its list names files again that a newer one, which is lost, did not name any more."""
    client, keys = model.store.client, model.living.keys
    params = HistoryParams(keep_bytes=1)
    await model.archive(HistoryParams())
    await model.grow(60, 3)
    names = (history_manifest.history_key(keys), stream.trimmed_key(keys.log), keys.log)
    before = {name: await client.dump(name) for name in names}
    grown = await model.archive(HistoryParams())
    assert len(grown.segments) == 1
    async with acquire(model.store, keys) as lease:
        await enforce_retention(ArchiveContext(model.store, model.artifacts, model.living, lease, params), grown)
    await FileCollector(model.store).collect(model.artifacts, await read_catalog(model.store))
    for name, dumped in before.items():
        await client.restore(name, 0, dumped, replace=True)
    assert (await model.contents()).end < grown.end
    assert await model.past() == model.every
    made = await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert made.live.n_learned == len(model.every)
    assert (await model.archive(HistoryParams())).end == grown.end


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


def test_how_much_retention_takes_for_the_indexes_that_are_needed() -> None:
    for bound, gone in ((300, 0), (290, 0), (280, 2), (200, 2), (199, 4), (1, 4)):
        assert (
            segments_over_state_file_bound([0, 100, 0, 100, 0, 100, 0], HistoryParams(keep_indexes_bytes=bound)) == gone
        )
    assert segments_over_state_file_bound([0, 100, 0], HistoryParams(keep_indexes_bytes=1)) == 0  # the newest stays
    assert segments_over_state_file_bound([0, 0], HistoryParams(keep_indexes_bytes=1)) == 0
    assert segments_over_state_file_bound([], HistoryParams(keep_indexes_bytes=1)) == 0


def test_retention_stops_before_what_somebody_needs() -> None:
    contents = listed(*[100] * 6)
    assert deletable_segments(contents, 4, None, None) == 4
    assert deletable_segments(contents, 4, Offset(2999, 0, 0), None) == 3
    assert deletable_segments(contents, 4, Offset(2998, 7, 3), None) == 2
    assert deletable_segments(contents, 4, None, Offset(1500, 0, 0)) == 1
    assert deletable_segments(contents, 4, START, None) == 0
    adopting = msgspec.structs.replace(contents.segments[4], needs="1999-0.5")
    contents = msgspec.structs.replace(contents, segments=[*contents.segments[:4], adopting, contents.segments[5]])
    assert deletable_segments(contents, 4, None, None) == 2
    assert deletable_segments(contents, 5, None, None) == 5  # the adoption itself goes, and its index is in the base


def test_an_adoption_is_told_from_other_entries() -> None:
    def element(event: AdoptEvent | LearnEvent) -> tuple[bytes, list[bytes]]:
        payload, checksum = encode(Entry(APPLY_VERSION, b"01234567", 2**40, event))
        return b"5-0", [b"e", payload, b"c", checksum]

    assert adoption_after(element(AdoptEvent("a" * 16, "i" * 16, "3-1.4", "d"))) == Offset(3, 1, 4)
    with pytest.raises(Corrupted):
        adoption_after((b"5-0", [b"e", b"adopt", b"c", b""]))


Change = Callable[[Archived, HistoryManifest], Awaitable[None]]


def in_file(change: Callable[[bytes], bytes] | None) -> Change:
    async def damage(model: Archived, contents: HistoryManifest) -> None:
        path = model.artifacts.path(contents.segments[1].name)
        assert path is not None
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))

    return damage


async def exchanged(model: Archived, contents: HistoryManifest) -> None:
    one, other = (model.artifacts.path(segment.name) for segment in contents.segments[1:3])
    assert one is not None
    assert other is not None
    packed = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(packed)


DAMAGES: dict[str, Change] = {
    "flipped": in_file(lambda data: data[:60] + bytes([data[60] ^ 4]) + data[61:]),
    "truncated": in_file(lambda data: data[:-1]),
    "empty": in_file(lambda data: b""),
    "longer": in_file(lambda data: data + b"\0"),
    "missing": in_file(None),
    "exchanged": exchanged,
}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_damaged_segment_is_named_and_snapshots_stand_without_it(model: Archived, kind: str) -> None:
    contents = await model.archive()
    good = await rebuild(model.store, model.living, artifacts=model.artifacts)
    await DAMAGES[kind](model, contents)
    name = contents.segments[1].name
    with pytest.raises(Corrupted, match=rf"{name}.*(damaged|missing).*backup.*begin-anew"):
        await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    again = await rebuild(model.store, model.living, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    async with acquire(model.store, model.living.keys) as lease:  # the way out that the message names
        begun = await restart_history(ArchiveContext(model.store, model.artifacts, model.living, lease))
    assert begun.segments == []
    again = await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    for seed in (5, 6):
        await model.grow(30, seed)
    assert (await model.archive()).n_entries == 209
    assert (await model.contents()).log_bytes == (await stream.trim_of(model.store, model.living.keys.log)).log_bytes
    assert await model.past(begun.start) == model.every[120:]


async def test_an_entry_that_is_not_what_was_written_is_found_in_a_segment(
    model: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is just what was written; what it was made of was not."""
    contents = await model.archive(HistoryParams(segment_bytes=10**6))
    name, fields = model.every[70]
    wrong = (name, [b"e", fields[1][:9] + bytes([fields[1][9] ^ 1]) + fields[1][10:], *fields[2:]])
    async with acquire(model.store, model.living.keys) as lease:
        to = ArchiveContext(model.store, model.artifacts, model.living, lease)
        (old,) = contents.segments
        elements = [*model.every[:70], wrong, *model.every[71:119]]
        segment = await write_segment(to, elements, old.n_before, old.bytes_before, old.log_bytes)
        await swap_manifest(to, msgspec.structs.replace(contents, segments=[segment]))
    with pytest.raises(Corrupted, match=rf"{segment.name}.*{name.decode()} in it.*begin-anew"):
        await model.past()


async def test_any_flipped_bit_of_a_segment_is_found(model: Archived) -> None:
    contents = await model.archive(HistoryParams(segment_bytes=10**6))
    (segment,) = contents.segments
    packed = await model.artifacts.get(segment.name)
    read = history_manifest.History(model.store, model.artifacts, model.living.keys)
    for at in random.Random(3).sample(range(len(packed)), 60):
        await model.artifacts.put(segment.name, packed[:at] + bytes([packed[at] ^ 16]) + packed[at + 1 :])
        with pytest.raises(Corrupted, match="its size or checksum is wrong"):
            await read.elements(segment)
    await model.artifacts.put(segment.name, packed)
    assert await read.elements(segment) == model.every[:119]


async def test_a_list_that_is_not_what_was_written_is_damaged(model: Archived) -> None:
    contents = await model.archive()
    key = history_manifest.history_key(model.living.keys)
    plain = json.loads(await model.store.client.get(key))
    wrong = {
        "cannot be read": [b"\xff", b"[]", b"{}", json.dumps(plain | {"segments": [{}]}).encode()],
        "its checksum is wrong": [json.dumps(plain | {"artifacts": "x"}).encode()],
        "format 2": [json.dumps(plain | {"format": 2}).encode()],
        "that of other": [msgspec.json.encode(seal(msgspec.structs.replace(contents, model="other")))],
    }
    gap = msgspec.structs.replace(contents, segments=[contents.segments[0], *contents.segments[2:]])
    wrong["a gap"] = [msgspec.json.encode(seal(gap))]
    swapped = msgspec.structs.replace(
        contents,
        segments=[
            msgspec.structs.replace(
                contents.segments[0], first=contents.segments[0].last, last=contents.segments[0].first
            ),
            *contents.segments[1:],
        ],
    )
    wrong["out of order"] = [msgspec.json.encode(seal(swapped))]
    for what, packs in wrong.items():
        for packed in packs:
            await model.store.client.set(key, packed)
            with pytest.raises(Corrupted, match=what):
                await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
            assert (await rebuild(model.store, model.living, artifacts=model.artifacts)).live.n_learned == 180
            with pytest.raises(Corrupted, match=what):
                await model.archive()


@given(
    st.binary(max_size=200) | st.dictionaries(st.text(max_size=9), st.integers() | st.text()).map(msgspec.json.encode)
)
def test_garbage_in_the_place_of_a_list_is_damaged(packed: bytes) -> None:
    with pytest.raises(Corrupted):
        history_manifest.parse(packed, ModelKeys("m", "1-0"))


async def test_where_no_snapshot_is_good_history_stands_in(model: Archived) -> None:
    contents = await model.archive()
    good = await rebuild(model.store, model.living, artifacts=model.artifacts)
    for manifest in await snapshots.read_manifests(model.store, model.living.keys):
        await model.store.client.delete(snapshots.file_key(model.living.keys, manifest.id, 0))
    again = await rebuild(model.store, model.living, artifacts=model.artifacts)
    assert await again.compute_digest() == await good.compute_digest()
    with pytest.raises(ArtifactsUnavailable, match=r"none of the snapshots .*part 0 is missing.*ABOUND_ARTIFACTS_URL"):
        await rebuild(model.store, model.living)
    with pytest.raises(NotReady, match="no usable snapshot"):
        async with acquire(model.store, model.living.keys) as lease:
            await restart_history(ArchiveContext(model.store, model.artifacts, model.living, lease))
    await model.artifacts.delete(contents.segments[0].name)
    with pytest.raises(Corrupted, match=contents.segments[0].name):
        await rebuild(model.store, model.living, artifacts=model.artifacts)


async def test_a_damaged_base_is_named(model: Archived) -> None:
    contents = await model.archive()
    async with acquire(model.store, model.living.keys) as lease:
        to = ArchiveContext(model.store, model.artifacts, model.living, lease, HistoryParams(keep_bytes=1))
        kept = await enforce_retention(to, contents)
    assert kept.base is not None
    assert kept.segments == []
    assert (await model.past(kept.start)) == model.every[119:]
    part = f"{history_manifest.artifact_folder(model.living.keys)}/index/{kept.base.index}/0"
    await model.artifacts.delete(part)
    with pytest.raises(Corrupted, match=r"base of the history .*/index/base-[^/]*/0.*begin-anew"):
        await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)


async def test_a_history_whose_list_or_artifact_store_is_lost_begins_anew(model: Archived, tmp_path: Path) -> None:
    await model.archive()
    await model.store.client.delete(history_manifest.history_key(model.living.keys))
    with pytest.raises(Corrupted, match="no history"):
        await rebuild(model.store, model.living, from_start=True, artifacts=model.artifacts)
    begun = await model.archive()
    assert (begun.start[:2], begun.segments) == (model.offset(119)[:2], [])
    await model.store.client.delete(ARTIFACTS_KEY)
    await model.artifacts.join(model.store)
    for seed in (5, 6):
        await model.grow(20, seed)
    again = await model.archive()
    assert again.artifacts == model.artifacts.id != begun.artifacts
    for from_start in (True, False):
        made = await rebuild(model.store, model.living, from_start=from_start, artifacts=model.artifacts)
        assert made.live.n_learned == 220


async def test_a_late_compactor_damages_nothing(model: Archived) -> None:
    store, keys = model.store, model.living.keys

    async def stalls() -> None:
        """It is stopped for so long that another one does the work meanwhile."""
        nonlocal stalled
        if not stalled:
            stalled = True
            await store.client.delete(keys.key("lease"))
            await model.grow(20, 7)
            await model.archive(HistoryParams(segment_bytes=5000))

    stalled = False
    with pytest.raises(LeaseLost):
        async with acquire(store, keys) as late:
            await archive(ArchiveContext(store, model.artifacts, model.living, late, SMALL, between=stalls))
    assert stalled
    contents = await model.contents()
    assert await model.past() == model.every
    files = {
        name for name in await model.artifacts.names(history_manifest.artifact_folder(keys)) if "/history/" in name
    }
    assert len(files - {segment.name for segment in contents.segments}) == 1  # written too late; swept
    for from_start in (True, False):
        made = await rebuild(store, model.living, from_start=from_start, artifacts=model.artifacts)
        assert made.live.n_learned == 200


async def test_the_newest_snapshot_before_an_offset_or_the_beginning(model: Archived) -> None:
    contents = await model.archive()
    early = await rebuild(model.store, model.living, model.offset(30), artifacts=model.artifacts)
    assert early.live.n_learned == 31
    assert await restore_newest(model.store, early, until=model.offset(5), artifacts=model.artifacts) is None
    assert early.offset == START
    async with acquire(model.store, model.living.keys) as lease:
        to = ArchiveContext(model.store, model.artifacts, model.living, lease, HistoryParams(keep_bytes=1))
        await enforce_retention(to, contents)
    with pytest.raises(UnknownOffset):
        await restore_newest(model.store, early, until=model.offset(5), artifacts=model.artifacts)


def test_parameters_out_of_range_are_refused() -> None:
    for wrong in ({"segment_bytes": 10}, {"keep_bytes": 0}, {"keep_seconds": -1}, {"slack": 0.9}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HistoryParams(**wrong)  # type: ignore[arg-type]
