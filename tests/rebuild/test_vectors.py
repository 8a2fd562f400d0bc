"""Models that learn from vectors: replicas agree after a restart, a forget and a refit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from abound.core.config import ModelConfig
from abound.core.instances.dense_vector import quantize
from abound.core.instances.record import add_details, pack_labels
from abound.core.instances.vectorizer import Vectorizer
from abound.core.limits import Limits
from abound.core.model.entry_application import Unit
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.jobs.rebuild import forget, refit
from abound.service.log.catalog import DEFAULT_MODEL
from abound.service.log.events import ConfigureEvent, LearnEvent
from abound.service.rebuild.redaction import ForgetParams
from abound.service.rebuild.refit import RefitParams
from tests.support.adoption_house import House, digest_at, digest_of
from tests.support.rebuild_context import archived, run, same, teach, without


def vectors(n: int, seed: int, d: int, source: str | None = None) -> list[LearnEvent]:
    """Events of an instance each, with a vector, or with a text as well."""
    rng = np.random.default_rng(seed)
    vectorizer = Vectorizer(ModelConfig(), Limits())
    events = []
    for i in range(n):
        numbers = rng.normal(0, 0.3, d)
        numbers[i % 3] += 1
        vector = vectorizer.vectorize(None, f"word{i % 7}" if i % 2 else None, quantize(numbers))
        events.append(LearnEvent(vector + pack_labels([f"class {i % 3}"], Limits()), 1, [Unit(1, source=source)]))
    return events


@pytest.mark.parametrize("changes", [{"rerank": False}, {}], ids=["index", "re-ranked"])
async def test_replicas_agree_after_a_restart_a_forget_and_a_refit(house: House, changes: dict[str, Any]) -> None:
    """The forgotten events have the first vector, which fixed the dimension; without them it is another one.

    By default the first vector also starts the re-ranker.
    """
    one, other = await house.replica(), await house.replica()
    await teach(house, ConfigureEvent({"update": "sls", **changes}), *vectors(5, 1, 3, "bad"), *vectors(20, 2, 8))
    await archived(house)
    assert one.model(DEFAULT_MODEL).live.dimension == 3
    assert one.model(DEFAULT_MODEL).live.reranker.on == (not changes)
    await teach(house, *vectors(5, 3, 3, "bad"), *vectors(5, 4, 8))
    await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    await teach(house, *vectors(5, 5, 8))
    expected = await without(house, lambda unit, at: unit.source == "bad")
    assert expected.dimension == 8
    await same(house, one, expected)
    offset = one.model(DEFAULT_MODEL).offset
    digest = await digest_of(expected)
    assert await digest_at(other, offset) == digest
    assert await digest_at(await house.replica(), offset) == digest
    await run(house, refit, RefitParams(search={}, passes=3), job="refit")
    digest = await house.expected()
    for replica in (one, other, await house.replica()):
        assert await digest_at(replica, one.model(DEFAULT_MODEL).offset) == digest
    assert one.model(DEFAULT_MODEL).live.dimension == 8
    assert one.model(DEFAULT_MODEL).live.reranker.on == (not changes)


async def test_a_refit_to_sls_starts_the_re_ranker(house: House) -> None:
    """Of a model whose log has vectors that its update did not learn."""
    one, other = await house.replica(), await house.replica()
    await teach(house, ConfigureEvent({"update": "sls"}), *vectors(10, 1, 8))
    await archived(house)
    await run(house, refit, RefitParams(search={}, settings={"update": "fsu"}), job="to-fsu")
    assert not one.model(DEFAULT_MODEL).live.reranker.on
    await teach(house, *vectors(10, 2, 8))
    assert one.model(DEFAULT_MODEL).live.dimension == 0
    await run(house, refit, RefitParams(search={}, settings={"update": "sls"}), job="to-sls")
    await teach(house, *vectors(5, 3, 8))
    digest = await house.expected()
    for replica in (one, other, await house.replica()):
        live = replica.model(DEFAULT_MODEL).live
        assert live.config.rerank is None
        assert live.reranker.arrays.counts.sum() == 25
        assert await digest_at(replica, replica.model(DEFAULT_MODEL).offset) == digest


def registrations(n: int, seed: int, source: str | None = None) -> list[LearnEvent]:
    """Registrations of a label each, whose names have vectors, as an encoder makes them."""
    rng, vectorizer = np.random.default_rng(seed), Vectorizer(ModelConfig(), Limits())
    events = []
    for i in range(n):
        vector = vectorizer.vectorize(None, f"name {seed} {i}", quantize(rng.normal(0, 1, 8)))
        record = add_details(vector + pack_labels([f"class {i}"], Limits()), b'{"name":"%d"}' % seed)
        events.append(LearnEvent(record, 1, [Unit(1, source=source)]))
    return events


def remembered(live: LiveModel) -> set[Offset]:
    memory = live.reranker.memory
    return {memory.offset(place) for place in range(len(memory))}


async def test_remembered_instances_are_forgotten_and_replicas_agree(house: House) -> None:
    """With vectors, names of labels, re-ranking, a memory that is full, and one that changes its size."""
    one, other = await house.replica(), await house.replica()
    await teach(house, ConfigureEvent({"update": "sls", "memory_instances": 12}), *registrations(3, 1))
    await teach(house, *vectors(10, 2, 8), *vectors(6, 3, 8, "bad"), *registrations(2, 4, "bad"), *vectors(3, 5, 8))
    await archived(house)
    await teach(house, *vectors(2, 6, 8, "bad"))
    bad = {at for at, event in house.past if isinstance(event, LearnEvent) and event.units[0].source == "bad"}
    offset = house.past[-1][0]
    assert await digest_at(one, offset) == await digest_at(await house.replica(), offset)
    assert remembered(one.model(DEFAULT_MODEL).live) & bad
    await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    expected = await without(house, lambda unit, at: unit.source == "bad")
    await same(house, one, expected)
    live = one.model(DEFAULT_MODEL).live
    assert len(remembered(live)) == 12
    assert not remembered(live) & bad
    await teach(house, ConfigureEvent({"memory_instances": 20}), *vectors(11, 7, 8))
    digest = await house.expected()
    for replica in (one, other, await house.replica()):
        assert await digest_at(replica, house.past[-1][0]) == digest
    before = remembered(one.model(DEFAULT_MODEL).live)
    assert len(before) == 20
    await run(house, refit, RefitParams(search={}, passes=2), job="refit")
    digest = await house.expected()
    for replica in (one, other, await house.replica()):
        live = replica.model(DEFAULT_MODEL).live
        assert await digest_at(replica, replica.model(DEFAULT_MODEL).offset) == digest
        assert remembered(live) == before
