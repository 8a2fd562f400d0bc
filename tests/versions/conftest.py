"""What the tests of versions share: replicas that notice and retry quickly."""

import pytest

from abound.replica import heartbeat, loaded_versions


@pytest.fixture(autouse=True)
def _notice_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_versions, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(loaded_versions, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "TICK_SECONDS", 0.05)
