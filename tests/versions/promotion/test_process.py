"""The gatekeeper: follows what contends and what is small, lets go of the rest, and leaves its standings written."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from abound.core.model.live_model import warmup
from abound.service.api.routes.contenders import contest_of
from abound.service.replica import heartbeat
from abound.service.settings import Settings
from abound.service.versions.promotion import candidates as contenders
from abound.service.versions.promotion import process as promotion_process
from abound.service.versions.promotion import standings
from abound.service.versions.promotion.params import ContendingParams
from abound.service.versions.promotion.process import PromotionRunner, RetrySchedule
from abound.service.versions.promotion.standings import Standings
from tests.support.adoption_house import House
from tests.support.contest_streams import GATE, changed, familiar, n_scored, teach, wise
from tests.support.small_versions import write
from tests.support.valkey import Server


@pytest.fixture
async def house(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    warmup()
    monkeypatch.setattr(promotion_process, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "TICK_SECONDS", 0.05)
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()


@contextlib.asynccontextmanager
async def running(house: House, **fields: object) -> AsyncIterator[PromotionRunner]:
    """A gatekeeper at work; it comes to an end by itself when it is told to stop."""
    params = ContendingParams(**({"keep_seconds": 0.05} | fields))  # type: ignore[arg-type]
    keeper = PromotionRunner(house.store, house.artifacts, params, GATE, prepare_seconds=10.0)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        keeper.stop()
        await asyncio.wait_for(task, 20)


async def kept(house: House) -> Standings | None:
    return await standings.read(house.store, (await house.living()).keys)


async def waited(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once a condition holds."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def is_kept(house: House) -> bool:
    return await kept(house) is not None


async def until_kept(house: House, offset: object) -> Standings:
    """The standing that is written, once it is as far as an offset."""

    async def is_there() -> bool:
        found = await kept(house)
        return found is not None and found.offset == str(offset)

    await waited(is_there)
    found = await kept(house)
    assert found is not None
    return found


async def entered(house: House) -> str:
    keys = (await house.living()).keys
    card = await write(house.artifacts, keys, wise())
    await contenders.enter(house.store, keys, card.id, "a test")
    return card.id


async def test_looks_for_drift_in_what_is_in_the_log_already(house: House) -> None:
    replica = await house.replica()
    await teach(replica, familiar(300))
    await teach(replica, changed(700))
    async with running(house):
        found = await until_kept(house, replica.model("default").offset)
        assert [mark.measure for mark in found.drift.marks] == ["R@1", "MRR"]
        assert all(300 < mark.learned < 700 and mark.after > mark.before for mark in found.drift.marks)
        assert found.contest.scores == {}
        await teach(replica, changed(20))
        await until_kept(house, replica.model("default").offset)


async def test_follows_contenders_alone_when_told_so_and_lets_go_of_them(house: House) -> None:
    replica = await house.replica()
    await teach(replica, familiar(20))
    async with running(house, drift=False):
        version = await entered(house)
        await waited(lambda: is_kept(house))
        await teach(replica, familiar(20, 20))
        found = await until_kept(house, replica.model("default").offset)
        assert n_scored(found, version) == 20
        assert await contenders.withdraw(house.store, (await house.living()).keys, version)

        async def is_gone() -> bool:
            return not await is_kept(house)

        await waited(is_gone)


async def test_what_is_too_large_is_followed_only_when_something_contends(house: House) -> None:
    replica = await house.replica()
    await teach(replica, familiar(20))
    async with running(house, memory=1) as keeper:

        async def is_refused() -> bool:
            return any(one.too_large for one in keeper._followed.values())

        await waited(is_refused)
        assert not await is_kept(house)
        version = await entered(house)
        await waited(lambda: is_kept(house))
        await teach(replica, familiar(20, 20))
        assert n_scored(await until_kept(house, replica.model("default").offset), version) == 20


async def test_one_at_a_time_and_the_next_goes_on_from_what_was_written(house: House) -> None:
    replica = await house.replica()
    version = await entered(house)
    await teach(replica, changed(10))
    async with running(house), running(house):
        await waited(lambda: is_kept(house))
        await teach(replica, changed(20))
    found = await kept(house)
    assert found is not None
    first = n_scored(found, version)
    assert first <= 20
    await teach(replica, changed(10))
    async with running(house):
        again = await until_kept(house, replica.model("default").offset)
    assert n_scored(again, version) == n_scored(again) == 30


async def test_a_version_is_tried_again_until_it_can_be_had(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion_process, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(promotion_process, "AWAY_SECONDS", 0.1)
    replica = await house.replica()
    await teach(replica, familiar(20))
    version = await entered(house)
    away = house.folder.rename(house.folder.with_name("away"))

    async def is_trouble() -> bool:
        found = await kept(house)
        return found is not None and version in found.trouble

    async def is_none() -> bool:
        return not await is_trouble()

    async with running(house):
        await waited(is_trouble)
        found = await kept(house)
        assert found is not None
        told = contest_of(found, Settings())
        assert told is not None, "nobody is scored, and why is told"
        assert told.trouble.keys() == {version}
        away.rename(house.folder)
        await waited(is_none)
        await teach(replica, familiar(20, 20))
        assert n_scored(await until_kept(house, replica.model("default").offset), version) == 20


def test_what_is_away_is_tried_soon_and_then_later_each_time() -> None:
    again, tried = RetrySchedule(0.0), [0.0]
    for now in range(200):
        if again.due(float(now), away=True):
            tried.append(float(now))
    assert [b - a for a, b in itertools.pairwise(tried)] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_what_is_damaged_is_read_a_few_times_a_day() -> None:
    again = RetrySchedule(0.0)
    tried = [now for now in range(24 * 3600) if again.due(float(now), away=False)]
    assert tried[:3] == [2, 6, 14]
    assert len(tried) < 20
    assert max(b - a for a, b in itertools.pairwise(tried)) == 4 * 3600
    assert not again.due(24 * 3600.0, away=True)
    assert again.due(24 * 3600.0 + 60, away=True), "something else is away by now"
