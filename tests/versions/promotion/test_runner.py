"""The runner of contests: follows contested models, releases the rest, and leaves its standings written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from abound.api.routes.challengers import contest_of
from abound.replica.replica import Replica
from abound.settings import Settings
from abound.versions.promotion import challengers, runner, standings
from abound.versions.promotion.runner import PromotionRunner
from abound.versions.promotion.standings import Standings
from tests.support.contest_streams import GATE, familiar, n_scored, teach, wise
from tests.support.lab import Lab
from tests.support.small_versions import write


@pytest.fixture(autouse=True)
def _run_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def running(lab: Lab) -> AsyncIterator[PromotionRunner]:
    """A runner at work; it ends when it is stopped."""
    stopping = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABOUND_GATE_MIN_EVENTS", str(GATE.min_events))
        keeper = PromotionRunner(Settings(prepare_seconds=10.0), lab.store, lab.artifacts, stopping)
        task = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            stopping.set()
            await asyncio.wait_for(task, 60)


async def kept(lab: Lab) -> Standings | None:
    return await standings.read(lab.store, (await lab.living()).keys)


async def until(lab: Lab, condition: Callable[[Standings | None], object]) -> Standings | None:
    """The standing that is written, once a condition holds of it."""
    async with asyncio.timeout(60):
        while not condition(found := await kept(lab)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def until_kept(lab: Lab, replica: Replica) -> Standings:
    """The standing that is written, once it is as far as a replica."""
    offset = str(replica.model("default").offset)
    found = await until(lab, lambda found: found is not None and found.offset == offset)
    assert found is not None
    return found


async def entered(lab: Lab) -> str:
    keys = (await lab.living()).keys
    card = await write(lab.artifacts, keys, wise())
    await challengers.enter(lab.store, keys, card.id, "a test")
    return card.id


async def test_a_version_is_tried_again_until_it_can_be_had(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "AWAY_SECONDS", 0.1)
    replica = await lab.replica()
    await teach(replica, familiar(20))
    version = await entered(lab)
    away = lab.folder.rename(lab.folder.with_name("away"))
    async with running(lab):
        found = await until(lab, lambda found: found is not None and version in found.trouble)
        assert found is not None
        told = contest_of(found, Settings())
        assert told is not None, "nobody is scored, and why is told"
        assert told.trouble.keys() == {version}
        away.rename(lab.folder)
        await until(lab, lambda found: found is not None and not found.trouble)
        await teach(replica, familiar(20, 20))
        assert n_scored(await until_kept(lab, replica), version) == 20
        assert await challengers.withdraw(lab.store, (await lab.living()).keys, version)
        await until(lab, lambda found: found is None)
