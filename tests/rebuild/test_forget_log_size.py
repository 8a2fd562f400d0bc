"""What was forgotten still counts in the size of the log as it was appended: so history and log stay within bounds."""

from __future__ import annotations

import pytest

from abound.history.archive import ArchiveContext, archive
from abound.history.history_manifest import History, HistoryManifest, HistoryParams
from abound.history.replay import rebuild
from abound.history.retention import enforce_retention
from abound.jobs.rebuild import RestoreParams, forget, restore
from abound.log.catalog import DEFAULT_MODEL
from abound.rebuild.redaction import ForgetParams
from abound.snapshots import snapshots
from abound.snapshots.state_image import MANIFEST
from abound.store.lease import acquire
from tests.support.adoption_house import House, events
from tests.support.rebuild_context import archived, run, teach


async def forgotten_in_part(house: House) -> HistoryManifest:
    """History of several segments, in which something was forgotten."""
    for seed in range(6):
        await teach(house, *events(40, seed, "bad" if seed % 2 else "good"))
    await archived(house)
    await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    await teach(house, *events(40, 20))
    contents = await History(house.store, house.artifacts, (await house.living()).keys).manifest()
    assert contents is not None
    assert len(contents.segments) > 3
    return contents


async def retained(house: House, params: HistoryParams) -> HistoryManifest:
    async with acquire(house.store, (await house.living()).keys) as lease:
        to = ArchiveContext(house.store, house.artifacts, await house.living(), lease, params)
        contents = await archive(to)
        assert contents is not None
        return await enforce_retention(to, contents)


@pytest.mark.parametrize("keep", [1, 3])
async def test_history_gives_way_where_something_was_forgotten_in_it(house: House, keep: int) -> None:
    before = await house.replica()
    contents = await forgotten_in_part(house)
    sizes = [segment.size for segment in contents.segments]
    kept = await retained(house, HistoryParams(keep_bytes=sum(sizes[keep:]), slack=0.0))
    assert kept.segments == contents.segments[keep:]
    assert kept.base is not None
    assert kept.base.log_bytes == sum(segment.log_bytes for segment in contents.segments[:keep])
    made = await rebuild(house.store, await house.living(), from_start=True, artifacts=house.artifacts)
    await before.wait_for(DEFAULT_MODEL, made.offset, 60)
    assert made.position == before.model(DEFAULT_MODEL).position


async def test_history_gives_way_for_its_indexes_where_something_was_forgotten_in_it(house: House) -> None:
    await house.replica()
    await teach(house, *events(40, 1), *events(40, 2, "bad"))
    for seed in (3, 4):
        await run(house, restore, RestoreParams(to=str(house.past[-1][0]), reason="r"), job=f"restore{seed}")
        await teach(house, *events(40, seed))
    await archived(house)
    await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    kept = await retained(house, HistoryParams(keep_indexes_bytes=1))
    assert kept.base is not None


@pytest.mark.parametrize("part", [0, 1])
async def test_replicas_agree_on_the_size_of_a_log_in_which_something_was_forgotten(house: House, part: int) -> None:
    """Where snapshots are lost, and it is made of history: all of it, or what is past a base."""
    before = (await house.replica()).model(DEFAULT_MODEL)
    contents = await forgotten_in_part(house)
    if part:
        size = sum(segment.size for segment in contents.segments[1:])
        await retained(house, HistoryParams(keep_bytes=size, slack=0.0))
    keys = (await house.living()).keys
    for name in await snapshots.ids(house.store, keys):
        await house.store.client.delete(snapshots.file_key(keys, name, MANIFEST))
    after = (await house.replica()).model(DEFAULT_MODEL)
    await (house.replicas[0]).wait_for(DEFAULT_MODEL, after.offset, 60)
    assert after.position == before.position
    assert after.held_log_bytes > 0
