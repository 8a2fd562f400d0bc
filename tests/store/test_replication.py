"""Nothing is deleted that a copy of the store would need after a failover to it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from abound.jobs.replace import forget
from abound.replace.forget import ForgetParams
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.store.replication import is_replicated, wait_replicated
from abound.versions import activation
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound_core.errors import NotReady, StoreUnavailable
from abound_core.model.active_version import LIVE
from abound_core.model.live_model import warmup
from tests.support import small_versions
from tests.support.fixtures import until_copied
from tests.support.lab import Context, Lab, events
from tests.support.proxy import Proxy
from tests.support.valkey import Server

BAD = ForgetParams(source="bad", reason="r")


class Pair:
    """A store behind a proxy, and its copy."""

    def __init__(self, primary: Server, copy: Server, proxy: Proxy) -> None:
        self.primary = primary
        self.copy = copy
        self.proxy = proxy

    def fail_over(self) -> None:
        """Let the copy be the store, with what it had when it was paused."""
        os.kill(self.copy.pid, signal.SIGKILL)  # while it is stopped: what lies in its socket is not read any more
        self.copy.kill()
        del self.copy.settings["replicaof"]
        self.copy.start()
        self.proxy.target = self.copy.socket
        self.proxy.cut()
        self.primary.kill()


@pytest.fixture
async def pair(servers: tuple[Server, Server], tmp_path: Path) -> AsyncIterator[Pair]:
    primary, copy = servers
    proxy = Proxy(tmp_path / "proxy", primary.socket)
    await proxy.start()
    yield Pair(primary, copy, proxy)
    await proxy.stop()


@pytest.fixture
async def lab(pair: Pair, tmp_path: Path) -> AsyncIterator[Lab]:
    warmup()
    lab = Lab(pair.primary, tmp_path / "artifacts")
    await lab.store.close()
    lab.store = Store(pair.proxy.url, pair.primary.store_params)
    await lab.open()
    yield lab
    await lab.close()


async def reached(context: Context, stage: str) -> None:
    async with asyncio.timeout(60):
        while not any(one.startswith(stage) for one in context.stages):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def pausing(pair: Pair, context: Context, stage: str) -> Callable[[str, float], None]:
    """A report of progress that stops the copy at a stage; it has everything before it."""

    def progress(now: str, fraction: float) -> None:
        context.progress(now, fraction)
        if now.startswith(stage) and sum(one.startswith(stage) for one in context.stages) == 1:
            until_copied(pair.primary)
            pair.copy.pause()

    return progress


async def files(lab: Lab, keys: ModelKeys) -> list[str]:
    return await lab.artifacts.names(f"{keys.name}/{keys.incarnation}")


@pytest.mark.parametrize(
    ("paused_at", "learned"),
    [("waiting until the replicas are ready", 180), ("deleting the replaced model from the store", 120)],
    ids=["before the replacement", "after the replacement"],
)
async def test_a_failover_while_it_is_forgotten_loses_nothing(
    pair: Pair, lab: Lab, paused_at: str, learned: int
) -> None:
    await lab.teach(*events(60, 1), *events(60, 2, "bad"), *events(60, 3))
    await lab.archived()
    living = await lab.living()
    context = Context(lab, living, job="forget")
    pause = pausing(pair, context, paused_at)

    def progress(stage: str, fraction: float) -> None:
        pause(stage, fraction)
        if stage.startswith("making the store rewrite"):
            pair.fail_over()

    [ended] = await asyncio.gather(forget(cast("Any", context), BAD, progress), return_exceptions=True)
    if learned == 180:
        assert isinstance(ended, NotReady | StoreUnavailable), ended  # the job is tried again
    model = await lab.replayed(from_start=True)
    assert model.live.n_learned == learned
    again = Context(lab, living, "forget", committed=True, outcome=context.job.outcome)
    outcome = await forget(cast("Any", again), BAD, again.progress)
    assert outcome["forgotten"] == {"requests": 60, "instances": 60}
    assert await files(lab, living.keys) == []
    model = await lab.replayed(from_start=True)
    assert model.live.n_learned == 120


async def test_a_forgetting_that_waits_for_a_copy_leaves_the_model_to_the_worker(pair: Pair, lab: Lab) -> None:
    await lab.teach(*events(60, 1), *events(60, 2, "bad"), *events(60, 3))
    await lab.archived()
    former = await lab.living()
    context = Context(lab, former, job="forget")
    progress = pausing(pair, context, "deleting the replaced model from the store")
    forgetting = asyncio.create_task(forget(cast("Any", context), BAD, progress))
    await reached(context, "waiting until copies")
    assert await files(lab, former.keys) != []
    before = await lab.contents()
    await lab.teach(*events(60, 4))
    await lab.archived()
    assert await lab.contents() != before
    assert not forgetting.done()
    pair.copy.resume()
    await forgetting
    assert await files(lab, former.keys) == []
    model = await lab.replayed(from_start=True)
    assert model.live.n_learned == 180


async def test_a_version_that_was_active_a_moment_ago_is_not_deleted_yet(pair: Pair, lab: Lab) -> None:
    keys = (await lab.living()).keys
    card = await small_versions.write(lab.artifacts, keys, small_versions.fitted("one"))
    place = activation.ActivationContext(lab.store, lab.artifacts, keys, 2.0)
    await activation.activate(place, card.id, "r")
    await wait_replicated(lab.store)
    pair.copy.pause()
    newer = await small_versions.write(lab.artifacts, keys, small_versions.fitted("two"), created=2e9)
    for name in (LIVE, newer.id):  # neither active nor the way back any more
        await activation.activate(place, name, "r")
    with pytest.raises(NotReady):
        await version_retention.delete(lab.store, lab.artifacts, keys, card.id)
    assert await version_retention.retain(lab.store, lab.artifacts, keys, 1) == []
    assert card.id in await versions.ids(lab.artifacts, keys)
    pair.copy.resume()
    await wait_replicated(lab.store)
    assert await version_retention.retain(lab.store, lab.artifacts, keys, 1) == [card.id]


async def test_one_copy_may_be_enough(store: Store) -> None:
    assert await is_replicated(store)
    assert await is_replicated(store, 1)
