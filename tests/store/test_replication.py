"""Nothing is deleted that a copy of the store would need after a failover to it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from abound.jobs.replace import forget
from abound.replace.forget import ForgetParams
from abound.store.replication import wait_replicated
from abound.versions import activation
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound_core.errors import NotReady
from abound_core.model.active_version import LIVE
from tests.support import small_versions
from tests.support.fixtures import until_copied
from tests.support.lab import Context, Lab, events
from tests.support.replicas import until
from tests.support.valkey import Server


@pytest.fixture
async def lab(servers: tuple[Server, Server], tmp_path: Path) -> AsyncIterator[Lab]:
    async with Lab(servers[0], tmp_path / "artifacts") as lab:
        yield lab


async def test_a_forgetting_that_waits_for_a_copy_leaves_the_model_to_the_worker(servers, lab):
    primary, copy = servers
    await lab.teach(*events(60, 1), *events(60, 2, "bad"), *events(60, 3))
    await lab.archived()
    former = await lab.living()
    folder = f"{former.keys.name}/{former.keys.incarnation}"
    context = Context(lab, former, job="forget")

    def progress(stage: str, fraction: float) -> None:
        if stage.startswith("deleting the replaced model from the store") and stage not in context.stages:
            until_copied(primary)
            copy.pause()
        context.progress(stage, fraction)

    params = ForgetParams(source="bad", reason="r")
    forgetting = asyncio.create_task(forget(cast("Any", context), params, progress))
    await until(lambda: any(stage.startswith("waiting until copies") for stage in context.stages))
    assert await lab.artifacts.names(folder) != []
    before = await lab.contents()
    await lab.teach(*events(60, 4))
    await lab.archived()
    assert await lab.contents() != before
    assert not forgetting.done()
    copy.resume()
    await forgetting
    assert await lab.artifacts.names(folder) == []
    model = await lab.replayed(from_start=True)
    assert model.live.n_learned == 180


async def test_a_version_that_was_active_a_moment_ago_is_not_deleted_yet(servers, lab):
    copy, keys = servers[1], (await lab.living()).keys
    card = await small_versions.write(lab.artifacts, keys, small_versions.fitted("one"))
    place = activation.ActivationContext(lab.store, lab.artifacts, keys, 2.0)
    await activation.activate(place, card.id, "r")
    await wait_replicated(lab.store)
    copy.pause()
    newer = await small_versions.write(lab.artifacts, keys, small_versions.fitted("two"), created=2e9)
    for name in (LIVE, newer.id):  # neither active nor the way back any more
        await activation.activate(place, name, "r")
    with pytest.raises(NotReady):
        await version_retention.delete(lab.store, lab.artifacts, keys, card.id)
    assert await version_retention.retain(lab.store, lab.artifacts, keys, 1) == []
    assert card.id in await versions.ids(lab.artifacts, keys)
    copy.resume()
    await wait_replicated(lab.store)
    assert await version_retention.retain(lab.store, lab.artifacts, keys, 1) == [card.id]
