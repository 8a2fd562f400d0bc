"""Indexes that nothing needs any more leave the artifact store, and none that is needed or about to be."""

from __future__ import annotations

import asyncio

import pytest

from abound.history import garbage
from abound.history.archive import ArchiveContext, archive
from abound.history.garbage import FileCollector
from abound.history.history_manifest import History, HistoryParams
from abound.history.replay import compact, rebuild
from abound.history.retention import enforce_retention
from abound.log.catalog import read_catalog
from abound.log.events import AdoptEvent
from abound.rebuild import adoption
from abound.snapshots import state_files
from abound.snapshots.state_image import StateManifest
from abound.store.lease import ADOPTION, LeaseLost, acquire
from abound.worker import Worker
from abound_core.errors import Conflict
from abound_core.types import START
from tests.support.adoption_house import SMALL, House, events, model_of


async def swept(house: House, sweep: FileCollector) -> int:
    return await sweep.collect(house.artifacts, await read_catalog(house.store))


async def there(house: House) -> set[str]:
    return set(await state_files.ids(house.artifacts, (await house.living()).keys))


async def adopted(house: House, seed: int, n_after: int = 20) -> StateManifest:
    """An index that was adopted, with something before and after it."""
    *_, after = await house.append(*events(20, seed))
    index = await house.index(model_of(20, seed), after)
    await house.append(
        AdoptEvent(f"adoption {seed}", index.id, index.offset, index.digest), *events(n_after, seed + 50)
    )
    return index


async def archived(house: House, params: HistoryParams) -> None:
    """Two snapshots at the log's end, and what is before them in history, within its bounds."""
    living = await house.living()
    for _ in range(2):
        await compact(house.store, living, SMALL, artifacts=house.artifacts)
    async with acquire(house.store, living.keys) as lease:
        to = ArchiveContext(house.store, house.artifacts, living, lease, params)
        contents = await archive(to)
        assert contents is not None
        await enforce_retention(to, contents)


async def test_what_retention_leaves_of_adoptions_goes_and_what_is_needed_stays(house: House) -> None:
    worker = Worker(house.store, artifacts=house.artifacts)
    gone = {(await adopted(house, seed)).id for seed in (1, 2)}
    await archived(house, HistoryParams(segment_bytes=2048))
    for _ in range(3):
        await worker.sweep(await read_catalog(house.store))
        assert gone <= await there(house)  # history begins before them
    await archived(house, HistoryParams(segment_bytes=2048, keep_bytes=1))
    in_history, in_log = await adopted(house, 3), await adopted(house, 4)
    contents = await History(house.store, house.artifacts, (await house.living()).keys).manifest()
    assert contents is not None
    assert contents.base is not None
    kept = {in_history.id, in_log.id, contents.base.index}
    assert await there(house) == gone | kept
    await worker.sweep(await read_catalog(house.store))
    assert await there(house) == gone | kept  # the store may lose its last second
    await worker.sweep(await read_catalog(house.store))
    assert await there(house) == kept
    assert {path.name for path in house.folder.rglob("index/*")} == kept
    await archived(house, HistoryParams(segment_bytes=2048))
    for _ in range(3):
        await worker.sweep(await read_catalog(house.store))
    assert await there(house) == kept
    model = await rebuild(house.store, await house.living(), from_start=True, artifacts=house.artifacts)
    same = await rebuild(house.store, await house.living(), artifacts=house.artifacts)
    assert await model.compute_digest() == await same.compute_digest()


async def test_indexes_that_adoptions_need_are_bounded(house: House) -> None:
    """However many there are in a history that is short itself: the oldest go, and the model is what it was."""
    worker = Worker(house.store, artifacts=house.artifacts)
    made = []
    for seed in range(1, 6):
        made.append(await adopted(house, seed, n_after=1))
        await archived(house, HistoryParams())
    sizes = await state_files.sizes(house.artifacts, (await house.living()).keys)
    contents = await History(house.store, house.artifacts, (await house.living()).keys).manifest()
    assert contents is not None
    assert sum(segment.needs is not None for segment in contents.segments) == 5  # none hides another one
    same = await rebuild(house.store, await house.living(), artifacts=house.artifacts)
    await archived(house, HistoryParams(keep_indexes_bytes=sizes[made[-1].id] + sizes[made[-2].id]))
    for _ in range(3):
        await worker.sweep(await read_catalog(house.store))
    left = {name for name in await there(house) if not name.startswith("base-")}
    assert left == {index.id for index in made[-2:]}
    model = await rebuild(house.store, await house.living(), from_start=True, artifacts=house.artifacts)
    assert await model.compute_digest() == await same.compute_digest()


async def test_what_a_dead_import_left_goes_and_what_is_being_made_stays(house: House) -> None:
    sweep = FileCollector(house.store)
    await house.append(*events(3))
    place = await house.place()
    left = await house.index(model_of(5, 1), START)
    async with adoption.begin(place, "at work"):
        for _ in range(3):
            assert await swept(house, sweep) == 0
    assert await swept(house, sweep) == 0
    assert await there(house) == {left.id}
    async with adoption.begin(place, "at work again"):  # it may be the one that wrote it
        assert await swept(house, sweep) == 0
    assert [await swept(house, sweep) for _ in range(2)] == [0, 1]
    assert await there(house) == set()
    assert await house.store.client.exists(place.keys.key("adoption-lease")) == 0


async def test_a_file_stays_until_it_has_been_unreferenced_for_a_while(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 3600.0)
    sweep = FileCollector(house.store)
    await house.append(*events(3))
    left = await house.index(model_of(5, 1), START)
    assert await swept(house, sweep) == 0
    await asyncio.sleep(0.5)
    assert [await swept(house, sweep) for _ in range(2)] == [0, 0]
    assert await there(house) == {left.id}
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 0.5)  # counted from the first pass, not from the last
    assert await swept(house, sweep) == 1
    assert await there(house) == set()


async def test_who_adopts_waits_for_the_sweep_and_not_for_another_adoption(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await house.place()
    monkeypatch.setattr(adoption, "COLLECT_SECONDS", 60.0)

    async def waits() -> None:
        async with adoption.begin(place, "import"):
            pass

    async with acquire(house.store, place.keys, purpose=ADOPTION):
        waiting = asyncio.create_task(waits())
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
    async with asyncio.timeout(60):
        await waiting
    monkeypatch.setattr(adoption, "COLLECT_SECONDS", 0.3)
    async with adoption.begin(place, "other"):
        with pytest.raises(Conflict, match="another rebuild"):
            await waits()


async def test_who_comes_back_after_his_index_was_swept_adopts_nothing(house: House) -> None:
    """As a process that was stopped right before the adoption, for longer than it is waited for."""
    sweep = FileCollector(house.store)
    await house.append(*events(5))
    place = await house.place()

    async def stopped(*_: str) -> None:
        await house.store.client.delete(place.keys.key("adoption-lease"))
        assert [await swept(house, sweep) for _ in range(2)] == [0, 1]

    place = await house.place(commit=stopped)
    async with adoption.begin(place, "late") as late:
        index = await house.index(model_of(5, 1), late.after)
        with pytest.raises(LeaseLost):
            await late.adopt(index, "late")
    assert not [event for _, event in await house.elements() if isinstance(event, AdoptEvent)]
