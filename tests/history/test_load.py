"""A model is restored from the newest good snapshot, or from history."""

from __future__ import annotations

import pytest

from abound.history.archive import ArchiveContext, restart_history
from abound.history.history import HistoryParams
from abound.history.load import load_newest
from abound.history.replay import replay
from abound.history.retention import enforce_retention
from abound.state import snapshots
from abound.store.lease import acquire
from abound_core.errors import ArtifactsUnavailable, Corrupted, NotReady, UnknownOffset
from abound_core.types import START
from tests.support.archived_model import Archived
from tests.support.lab import Lab, events, model_of, refitted


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
        async with acquire(model.store, model.living.keys) as lease:
            await restart_history(ArchiveContext(model.store, model.artifacts, model.living, lease))
    await model.artifacts.delete(contents.segments[0].name)
    with pytest.raises(Corrupted, match=contents.segments[0].name):
        await replay(model.store, model.living, artifacts=model.artifacts)


async def test_the_newest_snapshot_before_an_offset_or_the_beginning(model: Archived) -> None:
    contents = await model.archive()
    early = await replay(model.store, model.living, model.offset(30), artifacts=model.artifacts)
    assert early.live.n_learned == 31
    assert await load_newest(model.store, early, until=model.offset(5), artifacts=model.artifacts) is None
    assert early.offset == START
    async with acquire(model.store, model.living.keys) as lease:
        to = ArchiveContext(model.store, model.artifacts, model.living, lease, HistoryParams(keep_bytes=1))
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
