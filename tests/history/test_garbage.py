"""What nothing needs any more leaves the stores, and nothing that is needed or about to be."""

from __future__ import annotations

import asyncio
import os

from abound.history import garbage
from abound.history.garbage import FileCollector, collect_keys
from abound.history.history import HistoryParams
from abound.log.catalog import read_catalog
from abound.log.closing import append_fenced
from abound.log.events import IncarnationDropped, ReplacementBegun
from abound.state import state_files
from abound.store.key_names import ModelKeys
from abound.store.lease import REPLACEMENT, acquire
from abound.worker import Worker
from abound_core.types import START
from tests.support.lab import Lab, events, model_of, refitted, replace_by


async def swept(lab: Lab, sweep: FileCollector) -> int:
    return await sweep.collect(lab.artifacts, await read_catalog(lab.store))


async def states(lab: Lab) -> set[str]:
    """The ids of the model's state files."""
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
