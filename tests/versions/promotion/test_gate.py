"""The gate decides once: what it activated has to come back from the log before it decides again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from abound.versions.promotion import gate as gates
from abound.versions.promotion.gate import Gate
from abound.versions.promotion.standings import Standings
from abound_core.model.active_version import ServingState
from abound_core.promotion_rule import Decision, GateParams
from abound_core.types import Offset

DECISION = Decision("promote", "a" * 8, "live", 400, 0.1, 0.05, 0.15, 1000.0)


async def test_nothing_is_decided_before_an_activation_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    activate = AsyncMock(return_value=Offset.parse("20-0.0"))
    monkeypatch.setattr(gates, "save", AsyncMock())
    monkeypatch.setattr(gates.activation, "activate", activate)
    contest = SimpleNamespace(decide=lambda *given: DECISION)
    standing = Standings(contest=cast(Any, contest), offset="10-0.0")
    place = cast(Any, SimpleNamespace(keys=SimpleNamespace(name="m")))
    gate = Gate(place, cast(Any, None), GateParams())

    async def decide() -> int:
        await gate.decide(standing, ServingState(), ["a" * 8])
        return activate.await_count

    assert await decide() == 1
    for offset in ("10-0.0", "15-0.3"):
        standing.offset = offset
        assert await decide() == 1
    assert len(standing.decisions) == 1
    standing.offset = "20-0.0"
    assert await decide() == 2
