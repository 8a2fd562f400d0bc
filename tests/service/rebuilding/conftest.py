"""A store with replicas and an artifact store, for the tests of rebuilds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.live import warmup
from tests.service.adopting import House
from tests.service.valkey import Server


@pytest.fixture
async def house(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    warmup()
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()
