"""What the tests of versions share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from abound.replica import heartbeat, loaded_versions
from abound_core.model.live_model import warmup
from tests.support.lab import Lab
from tests.support.valkey import Server


@pytest.fixture
async def lab(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A lab whose replicas notice and retry quickly."""
    warmup()
    monkeypatch.setattr(loaded_versions, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(loaded_versions, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "TICK_SECONDS", 0.05)
    lab = Lab(server, tmp_path)
    await lab.open()
    yield lab
    await lab.close()
