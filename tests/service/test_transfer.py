"""An import by one replica while another one teaches the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import Conflict, NotReady
from core.live import warmup
from service.transfer import import_model
from tests.service.adopting import House, until
from tests.service.streams import drafts
from tests.service.test_model_file import FILE, LIMIT, in_pieces
from tests.service.valkey import Server


@pytest.fixture
async def house(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    warmup()
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()


async def test_what_another_replica_was_taught_is_not_put_aside(house: House) -> None:
    behind, ahead = await house.replica(), await house.replica()
    await ahead.models.create("m", ahead.model("default").live.config)
    await until(lambda: "m" in behind.models.names())
    async with behind.model("m").at_rest():  # it is busy, and has not come to what the other one was taught
        await ahead.learn("m", drafts(5))
        with pytest.raises(NotReady):
            await import_model(behind, "m", in_pieces(FILE, 10_000), LIMIT, 0.3)
        importing = asyncio.create_task(import_model(behind, "m", in_pieces(FILE, 10_000), LIMIT, 10))
        await asyncio.sleep(0.3)
    with pytest.raises(Conflict, match="has learned 5 instances"):
        await importing
    assert [replica.model("m").live.n_learned for replica in house.replicas] == [5, 5]
