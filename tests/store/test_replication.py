"""Nothing is deleted that a copy of the store would need after a failover to it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from abound.replace.erase import delete_unreferenced, delete_versions
from abound.replace.redaction import ForgetParams

from abound.history.history import History
from abound.history.replay import replay
from abound.jobs.replace import forget
from abound.state import state_files
from abound.store.client import Store
from abound.store.replication import is_replicated, wait_replicated
from abound.versions import activation
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound_core.errors import NotReady, StoreUnavailable
from abound_core.model.active_version import LIVE
from abound_core.model.live_model import warmup
from abound_core.types import START
from benchmarks.serving import free_port
from tests.support import small_versions
from tests.support.lab import Lab, events, model_of
from tests.support.proxy import Proxy
from tests.support.replace_context import Context, archived, teach
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
def servers() -> Iterator[tuple[Server, Server]]:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    yield primary, copy
    copy.close()
    primary.close()


@pytest.fixture
async def pair(servers: tuple[Server, Server], tmp_path: Path) -> AsyncIterator[Pair]:
    primary, copy = servers
    with copy.client() as client:
        async with asyncio.timeout(60):
            while client.info("replication")["master_link_status"] != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
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


@pytest.mark.parametrize("stage", ["making snapshots", "rewriting"])
async def test_a_failover_while_it_is_forgotten_loses_nothing(pair: Pair, lab: Lab, stage: str) -> None:
    await teach(lab, *events(60, 1), *events(60, 2, "bad"), *events(60, 3))
    await archived(lab)
    living = await lab.living()
    context = Context(lab, living, job="forget")

    def progress(now: str, fraction: float) -> None:
        context.progress(now, fraction)
        if now.startswith(stage) and sum(one.startswith(stage) for one in context.stages) == 1:
            with pair.primary.client() as client:  # it has the adoption before it is paused
                client.set("word", "written")
                while not client.wait(1, 100):
                    pass
            pair.copy.pause()

    forgetting = asyncio.create_task(forget(cast("Any", context), BAD, progress))
    await reached(context, "waiting until copies")
    assert not await is_replicated(lab.store)
    assert not forgetting.done()
    pair.fail_over()
    with pytest.raises(StoreUnavailable):
        await forgetting
    model = await replay(lab.store, living, from_start=True, artifacts=lab.artifacts)
    assert model.live.n_learned == 120  # by the adoption, which the copy had
    assert (await History(lab.store, lab.artifacts, living.keys).manifest()) is not None
    again = Context(lab, living, "forget", committed=True, outcome=context.job.outcome)
    outcome = await forget(cast("Any", again), BAD, again.progress)
    assert outcome["forgotten"] == {"requests": 60, "instances": 60}
    contents = await History(lab.store, lab.artifacts, living.keys).manifest()
    assert contents is not None
    names = await lab.artifacts.names(f"{living.keys.name}/{living.keys.incarnation}/history")
    assert sorted(names) == sorted(one.name for one in contents.segments)
    model = await replay(lab.store, living, from_start=True, artifacts=lab.artifacts)
    assert model.live.n_learned == 120


async def test_a_forgetting_that_waits_for_a_copy_leaves_the_model_to_the_worker(pair: Pair, lab: Lab) -> None:
    await teach(lab, *events(60, 1), *events(60, 2, "bad"), *events(60, 3))
    await archived(lab)
    living = await lab.living()
    context = Context(lab, living, job="forget")

    def progress(now: str, fraction: float) -> None:
        context.progress(now, fraction)
        if now.startswith("rewriting"):
            pair.copy.pause()

    forgetting = asyncio.create_task(forget(cast("Any", context), BAD, progress))
    await reached(context, "waiting until copies")
    before = await History(lab.store, lab.artifacts, living.keys).manifest()
    await teach(lab, *events(60, 4))
    await archived(lab)
    contents = await History(lab.store, lab.artifacts, living.keys).manifest()
    assert contents != before
    assert not forgetting.done()
    pair.copy.resume()
    outcome = await forgetting
    assert outcome["segments_rewritten"]
    assert contents is not None
    names = await lab.artifacts.names(f"{living.keys.name}/{living.keys.incarnation}/history")
    assert sorted(names) == sorted(one.name for one in contents.segments)
    model = await replay(lab.store, living, from_start=True, artifacts=lab.artifacts)
    assert model.live.n_learned == 180


async def test_what_a_failover_took_back_of_an_adoption_is_not_taken_out_of_history(lab: Lab) -> None:
    """The connection is another server's all of a sudden, and its log has no adoption."""
    await teach(lab, *events(20, 1), *events(20, 2, "bad"))
    await archived(lab)
    living = await lab.living()
    keys = living.keys
    context = Context(lab, living, job="forget")
    client = lab.store.client
    before = {key: await client.dump(key) for key in await client.keys(keys.key("*")) if not key.endswith(b"fence")}

    def progress(now: str, fraction: float) -> None:
        context.progress(now, fraction)
        if now.startswith("making snapshots"):
            with lab.server.client() as direct:
                for key in [*direct.scan_iter(match=keys.key("*"))]:
                    if not key.endswith((b"fence", b"lease")):
                        direct.delete(key)
                for key, dumped in before.items():
                    direct.restore(key, 0, dumped, replace=True)

    with pytest.raises(StoreUnavailable, match="has lost the adoption"):
        await forget(cast("Any", context), BAD, progress)
    model = await replay(lab.store, living, from_start=True, artifacts=lab.artifacts)
    assert model.live.n_learned == 40


async def test_a_version_stays_as_long_as_a_failover_would_make_it_active(pair: Pair, lab: Lab) -> None:
    keys = (await lab.living()).keys
    card = await small_versions.write(lab.artifacts, keys, small_versions.fitted("bad"))
    place = activation.ActivationContext(lab.store, lab.artifacts, keys, 2.0)
    await activation.activate(place, card.id, "r")
    await wait_replicated(lab.store)
    pair.copy.pause()
    taking = asyncio.create_task(delete_versions(await lab.place(), [card.id], "asked for", _quietly))
    async with asyncio.timeout(60):
        while (await activation.read_active(lab.store, keys)).version != LIVE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _ in range(2):
        assert not await is_replicated(lab.store)
    assert await versions.ids(lab.artifacts, keys) == [card.id]
    assert not taking.done()
    pair.copy.resume()
    await taking
    assert await versions.ids(lab.artifacts, keys) == []


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


async def test_an_index_stays_as_long_as_a_copy_is_behind(pair: Pair, lab: Lab) -> None:
    place = await lab.place()
    index = await lab.index(model_of(5, 1), START)
    deleted: list[str] = []

    async def note(names: list[str]) -> None:
        deleted.extend(names)

    pair.copy.pause()
    with pytest.raises(NotReady):
        await delete_unreferenced(place, note)
    assert not deleted
    pair.copy.resume()
    await wait_replicated(lab.store)
    await delete_unreferenced(place, note)
    assert deleted == [index.id]
    assert await state_files.ids(lab.artifacts, place.keys) == []


async def test_one_copy_may_be_enough(store: Store) -> None:
    assert await is_replicated(store)
    assert await is_replicated(store, 1)


async def _quietly(names: list[str]) -> None:
    """Nobody is told."""
