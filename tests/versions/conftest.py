"""What the tests of versions share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from abound.replica import announcements, heartbeat, loaded_versions
from abound_core.model.live_model import warmup
from tests.support.adoption_house import House
from tests.support.valkey import Server


@pytest.fixture
async def house(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """A house whose replicas notice and retry quickly."""
    warmup()
    monkeypatch.setattr(loaded_versions, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(announcements, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "TICK_SECONDS", 0.05)
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()
