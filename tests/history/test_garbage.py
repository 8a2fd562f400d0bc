"""Indexes that nothing needs any more leave the artifact store, and none that is needed or about to be."""

from __future__ import annotations

import asyncio

import pytest

from abound.history import garbage
from abound.history.archive import ArchiveContext, archive
from abound.history.garbage import FileCollector
from abound.history.history import History, HistoryParams
from abound.history.replay import compact, replay
from abound.history.retention import enforce_retention
from abound.log.catalog import read_catalog
from abound.log.events import AdoptEvent
from abound.replace import adoption
from abound.state import state_files
from abound.state.state_image import StateManifest
from abound.store.lease import ADOPTION, LeaseLost, acquire
from abound.worker import Worker
from abound_core.errors import Conflict
from abound_core.types import START
from tests.support.lab import SMALL, Lab, events, model_of


async def swept(lab: Lab, sweep: FileCollector) -> int:
    return await sweep.collect(lab.artifacts, await read_catalog(lab.store))


async def there(lab: Lab) -> set[str]:
    return set(await state_files.ids(lab.artifacts, (await lab.living()).keys))


async def adopted(lab: Lab, seed: int, n_after: int = 20) -> StateManifest:
    """An index that was adopted, with something before and after it."""
    *_, after = await lab.append(*events(20, seed))
    index = await lab.index(model_of(20, seed), after)
    await lab.append(AdoptEvent(f"adoption {seed}", index.id, index.offset, index.digest), *events(n_after, seed + 50))
    return index


async def archived(lab: Lab, params: HistoryParams) -> None:
    """Two snapshots at the log's end, and what is before them in history, within its bounds."""
    living = await lab.living()
    for _ in range(2):
        await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
    async with acquire(lab.store, living.keys) as lease:
        to = ArchiveContext(lab.store, lab.artifacts, living, lease, params)
        contents = await archive(to)
        assert contents is not None
        await enforce_retention(to, contents)


async def test_what_retention_leaves_of_adoptions_goes_and_what_is_needed_stays(lab: Lab) -> None:
    worker = Worker(lab.store, artifacts=lab.artifacts)
    gone = {(await adopted(lab, seed)).id for seed in (1, 2)}
    await archived(lab, HistoryParams(segment_bytes=2048))
    for _ in range(3):
        await worker.sweep(await read_catalog(lab.store))
        assert gone <= await there(lab)  # history begins before them
    await archived(lab, HistoryParams(segment_bytes=2048, keep_bytes=1))
    in_history, in_log = await adopted(lab, 3), await adopted(lab, 4)
    contents = await History(lab.store, lab.artifacts, (await lab.living()).keys).manifest()
    assert contents is not None
    assert contents.base is not None
    kept = {in_history.id, in_log.id, contents.base.index}
    assert await there(lab) == gone | kept
    await worker.sweep(await read_catalog(lab.store))
    assert await there(lab) == gone | kept  # the store may lose its last second
    await worker.sweep(await read_catalog(lab.store))
    assert await there(lab) == kept
    assert {path.name for path in lab.folder.rglob("index/*")} == kept
    await archived(lab, HistoryParams(segment_bytes=2048))
    for _ in range(3):
        await worker.sweep(await read_catalog(lab.store))
    assert await there(lab) == kept
    model = await replay(lab.store, await lab.living(), from_start=True, artifacts=lab.artifacts)
    same = await replay(lab.store, await lab.living(), artifacts=lab.artifacts)
    assert await model.compute_digest() == await same.compute_digest()


async def test_indexes_that_adoptions_need_are_bounded(lab: Lab) -> None:
    """However many there are in a history that is short itself: the oldest go, and the model is what it was."""
    worker = Worker(lab.store, artifacts=lab.artifacts)
    made = []
    for seed in range(1, 6):
        made.append(await adopted(lab, seed, n_after=1))
        await archived(lab, HistoryParams())
    sizes = await state_files.sizes(lab.artifacts, (await lab.living()).keys)
    contents = await History(lab.store, lab.artifacts, (await lab.living()).keys).manifest()
    assert contents is not None
    assert sum(segment.needs is not None for segment in contents.segments) == 5  # none hides another one
    same = await replay(lab.store, await lab.living(), artifacts=lab.artifacts)
    await archived(lab, HistoryParams(keep_indexes_bytes=sizes[made[-1].id] + sizes[made[-2].id]))
    for _ in range(3):
        await worker.sweep(await read_catalog(lab.store))
    left = {name for name in await there(lab) if not name.startswith("base-")}
    assert left == {index.id for index in made[-2:]}
    model = await replay(lab.store, await lab.living(), from_start=True, artifacts=lab.artifacts)
    assert await model.compute_digest() == await same.compute_digest()


async def test_what_a_dead_import_left_goes_and_what_is_being_made_stays(lab: Lab) -> None:
    sweep = FileCollector(lab.store)
    await lab.append(*events(3))
    place = await lab.place()
    left = await lab.index(model_of(5, 1), START)
    async with adoption.begin(place, "at work"):
        for _ in range(3):
            assert await swept(lab, sweep) == 0
    assert await swept(lab, sweep) == 0
    assert await there(lab) == {left.id}
    async with adoption.begin(place, "at work again"):  # it may be the one that wrote it
        assert await swept(lab, sweep) == 0
    assert [await swept(lab, sweep) for _ in range(2)] == [0, 1]
    assert await there(lab) == set()
    assert await lab.store.client.exists(place.keys.key("adoption-lease")) == 0


async def test_a_file_stays_until_it_has_been_unreferenced_for_a_while(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 3600.0)
    sweep = FileCollector(lab.store)
    await lab.append(*events(3))
    left = await lab.index(model_of(5, 1), START)
    assert await swept(lab, sweep) == 0
    await asyncio.sleep(0.5)
    assert [await swept(lab, sweep) for _ in range(2)] == [0, 0]
    assert await there(lab) == {left.id}
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 0.5)  # counted from the first pass, not from the last
    assert await swept(lab, sweep) == 1
    assert await there(lab) == set()


async def test_who_adopts_waits_for_the_sweep_and_not_for_another_adoption(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await lab.place()
    monkeypatch.setattr(adoption, "COLLECT_SECONDS", 60.0)

    async def waits() -> None:
        async with adoption.begin(place, "import"):
            pass

    async with acquire(lab.store, place.keys, purpose=ADOPTION):
        waiting = asyncio.create_task(waits())
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
    async with asyncio.timeout(60):
        await waiting
    monkeypatch.setattr(adoption, "COLLECT_SECONDS", 0.3)
    async with adoption.begin(place, "other"):
        with pytest.raises(Conflict, match="another rebuild"):
            await waits()


async def test_who_comes_back_after_his_index_was_swept_adopts_nothing(lab: Lab) -> None:
    """As a process that was stopped right before the adoption, for longer than it is waited for."""
    sweep = FileCollector(lab.store)
    await lab.append(*events(5))
    place = await lab.place()

    async def stopped(*_: str) -> None:
        await lab.store.client.delete(place.keys.key("adoption-lease"))
        assert [await swept(lab, sweep) for _ in range(2)] == [0, 1]

    place = await lab.place(commit=stopped)
    async with adoption.begin(place, "late") as late:
        index = await lab.index(model_of(5, 1), late.after)
        with pytest.raises(LeaseLost):
            await late.adopt(index, "late")
    assert not [event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]
