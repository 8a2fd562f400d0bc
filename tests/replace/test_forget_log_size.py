"""What was forgotten still counts in the size of the log as it was appended: so history and log stay within bounds."""

from __future__ import annotations

import pytest

from abound.history.archive import ArchiveContext, archive
from abound.history.history import History, HistoryManifest, HistoryParams
from abound.history.replay import replay
from abound.history.retention import enforce_retention
from abound.jobs.replace import RestoreParams, forget, restore
from abound.log.catalog import DEFAULT_MODEL
from abound.replace.redaction import ForgetParams
from abound.state import snapshots
from abound.state.state_image import MANIFEST
from abound.store.lease import acquire
from tests.support.lab import Lab, events
from tests.support.replace_context import archived, run, teach


async def forgotten_in_part(lab: Lab) -> HistoryManifest:
    """History of several segments, in which something was forgotten."""
    for seed in range(6):
        await teach(lab, *events(40, seed, "bad" if seed % 2 else "good"))
    await archived(lab)
    await run(lab, forget, ForgetParams(source="bad", reason="asked for"))
    await teach(lab, *events(40, 20))
    contents = await History(lab.store, lab.artifacts, (await lab.living()).keys).manifest()
    assert contents is not None
    assert len(contents.segments) > 3
    return contents


async def retained(lab: Lab, params: HistoryParams) -> HistoryManifest:
    async with acquire(lab.store, (await lab.living()).keys) as lease:
        to = ArchiveContext(lab.store, lab.artifacts, await lab.living(), lease, params)
        contents = await archive(to)
        assert contents is not None
        return await enforce_retention(to, contents)


@pytest.mark.parametrize("keep", [1, 3])
async def test_history_gives_way_where_something_was_forgotten_in_it(lab: Lab, keep: int) -> None:
    before = await lab.replica()
    contents = await forgotten_in_part(lab)
    sizes = [segment.size for segment in contents.segments]
    kept = await retained(lab, HistoryParams(keep_bytes=sum(sizes[keep:]), slack=0.0))
    assert kept.segments == contents.segments[keep:]
    assert kept.base is not None
    assert kept.base.log_bytes == sum(segment.log_bytes for segment in contents.segments[:keep])
    made = await replay(lab.store, await lab.living(), from_start=True, artifacts=lab.artifacts)
    await before.wait_for(DEFAULT_MODEL, made.offset, 60)
    assert made.position == before.model(DEFAULT_MODEL).position


async def test_history_gives_way_for_its_indexes_where_something_was_forgotten_in_it(lab: Lab) -> None:
    await lab.replica()
    await teach(lab, *events(40, 1), *events(40, 2, "bad"))
    for seed in (3, 4):
        await run(lab, restore, RestoreParams(to=str(lab.past[-1][0]), reason="r"), job=f"restore{seed}")
        await teach(lab, *events(40, seed))
    await archived(lab)
    await run(lab, forget, ForgetParams(source="bad", reason="asked for"))
    kept = await retained(lab, HistoryParams(keep_indexes_bytes=1))
    assert kept.base is not None


@pytest.mark.parametrize("part", [0, 1])
async def test_replicas_agree_on_the_size_of_a_log_in_which_something_was_forgotten(lab: Lab, part: int) -> None:
    """Where snapshots are lost, and it is made of history: all of it, or what is past a base."""
    before = (await lab.replica()).model(DEFAULT_MODEL)
    contents = await forgotten_in_part(lab)
    if part:
        size = sum(segment.size for segment in contents.segments[1:])
        await retained(lab, HistoryParams(keep_bytes=size, slack=0.0))
    keys = (await lab.living()).keys
    for name in await snapshots.ids(lab.store, keys):
        await lab.store.client.delete(snapshots.file_key(keys, name, MANIFEST))
    after = (await lab.replica()).model(DEFAULT_MODEL)
    await (lab.replicas[0]).wait_for(DEFAULT_MODEL, after.offset, 60)
    assert after.position == before.position
    assert after.held_log_bytes > 0
