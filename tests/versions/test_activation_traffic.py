"""Requests while versions come and go: every answer is held against the log."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest

from abound.api.classify import Classify
from abound.replica import rankers as ranking_pool
from abound.replica.predictions import RememberParams
from abound.replica.replica import Replica
from abound.security.rate_limits import RateLimiter, RateParams
from abound.settings import Settings
from abound.tasks import TimeSlice
from abound.versions.activation import activate
from abound.versions.ranking import rank_all
from abound_core.errors import NotReady
from abound_core.model.active_version import LIVE
from abound_core.types import Offset
from tests.support.lab import Lab, learning
from tests.support.replicas import until
from tests.support.small_versions import FEATURES, fitted, place, write
from tests.support.streams import drafts
from tests.versions.test_activation import truth


def active_at(switches: list[tuple[Offset, str]], offset: Offset) -> str:
    return ([LIVE] + [version for at, version in switches if at[:2] <= offset[:2]])[-1]


class RouteCaller:
    """What a replica answers over HTTP, without HTTP."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.rankers = ranking_pool.Rankers(replica.loaded_versions, replica.params.serving)
        rates = RateLimiter(replica.store, RateParams())
        self.work = Classify(replica, Settings(), RememberParams(), rates, self.rankers)

    async def ask(self, **request: Any) -> dict[str, Any] | None:
        """An answer; None when there is none for now."""
        body = json.dumps(request).encode()
        try:
            answer = self.work.answer(self.replica.models.trusted("default"), body, {}, None)
            if not isinstance(answer, bytes):
                _, answer = await answer
        except NotReady:
            return None
        found: dict[str, Any] = json.loads(answer)
        return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_answer_is_by_another_version_than_was_active_at_its_offset(
    lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)

    def rank_slowly(asked: Any) -> Any:
        time.sleep(rng.random() * 0.01)  # an activation may come meanwhile
        return rank_all(asked)

    monkeypatch.setattr(ranking_pool, "rank_all", rank_slowly)
    monkeypatch.setattr(TimeSlice, "due", lambda self: rng.random() < 0.2)
    replicas = [await lab.replica() for _ in range(3)]
    callers = [RouteCaller(replica) for replica in replicas]
    await replicas[0].learn("default", drafts(50))
    keys = (await lab.living()).keys
    made = {(await write(lab.artifacts, keys, one)).id: one for one in (fitted("one"), fitted("two", 7))}
    told: list[tuple[str, str, list[str]]] = []
    stop = False

    def note(answer: dict[str, Any]) -> None:
        told.append((answer["offset"], answer["version"], [one["label"] for one in answer.get("labels", [])]))

    async def classify(caller: RouteCaller) -> None:
        while not stop:
            features = rng.choice(FEATURES)
            alone = await caller.ask(features=features, k=3)
            if alone is not None:
                note(alone)
            batch = await caller.ask(instances=[{"features": rng.choice(FEATURES)} for _ in range(8)])
            if batch is not None:
                for result in [*batch["results"], {**batch, "labels": []}]:
                    note(result)
            await asyncio.sleep(0)

    asking = [asyncio.create_task(classify(caller)) for caller in callers]
    async with learning(replicas[0]), learning(replicas[1], 5000):
        for name in rng.choices([*made, LIVE], k=5):
            at = await activate(place(lab.store, lab.artifacts, keys), name, "a test")
            await until(lambda at=at: all(replica.model("default").offset > at for replica in replicas))
    stop = True
    await asyncio.gather(*asking)
    switches = await truth(lab)
    assert {version for _, version, _ in told} >= {version for _, version in switches}
    known = {version: set(one.labels) for version, one in made.items()}
    for offset, version, labels in told:
        assert version == active_at(switches, Offset.parse(offset)), offset
        if version != LIVE:
            assert set(labels) <= known[version]
    for caller in callers:
        caller.rankers.close()
