"""Instances remembered for labels that come later: by id, in a bounded stream."""

import asyncio

import pytest

from abound.replica.predictions import RememberParams, recall, remember
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.errors import UnknownPrediction
from abound_core.types import Offset

KEYS = ModelKeys("news", "1-0")
PARAMS = RememberParams()


async def test_an_instance_is_remembered_and_can_be_recalled_again(store: Store) -> None:
    ids = [await remember(store, KEYS, bytes([i]) * 100, PARAMS) for i in range(20)]
    assert len(set(ids)) == 20
    for i in (7, 0, 19, 7):
        assert await recall(store, KEYS, ids[i], PARAMS) == bytes([i]) * 100
    assert 0 < await store.client.ttl(KEYS.key("remembered")) <= PARAMS.seconds


async def test_an_id_that_was_not_given_out_is_unknown(store: Store) -> None:
    given = await remember(store, KEYS, b"vector", PARAMS)
    entry, token = given[:-23], given[-22:]
    other = "A" if token[0] != "A" else "B"
    for wrong in (
        "",
        "x",
        entry,
        f"{entry}-{other}{token[1:]}",
        f"0-1-{token}",
        f"{2**64}-0-{token}",
        given + "x",
        "é",
    ):
        with pytest.raises(UnknownPrediction):
            await recall(store, KEYS, wrong, PARAMS)
    with pytest.raises(UnknownPrediction):
        await recall(store, ModelKeys("other", "1-0"), given, PARAMS)
    assert await recall(store, KEYS, given, PARAMS) == b"vector"


async def test_what_is_remembered_is_bounded(store: Store) -> None:
    few = RememberParams(most=100)
    ids = []
    for _ in range(8):
        ids += await asyncio.gather(*(remember(store, KEYS, b"vector", few) for _ in range(50)))
    assert await store.client.xlen(KEYS.key("remembered")) <= 200
    with pytest.raises(UnknownPrediction):
        await recall(store, KEYS, min(ids, key=lambda name: Offset.of_entry(name[:-23])), few)
    newest = max(ids, key=lambda name: Offset.of_entry(name[:-23]))
    assert await recall(store, KEYS, newest, few) == b"vector"


async def test_what_is_too_old_is_forgotten(store: Store) -> None:
    seconds, _ = await store.client.time()
    token = "t" * 22
    for age in (50, 70):
        await store.client.xadd(KEYS.key(f"{age}"), {"t": token, "v": b"v"}, id=f"{(seconds - age) * 1000}-0")
    await store.client.rename(KEYS.key("50"), KEYS.key("remembered"))
    minute = RememberParams(seconds=60)
    assert await recall(store, KEYS, f"{(seconds - 50) * 1000}-0-{token}", minute) == b"v"
    await store.client.rename(KEYS.key("70"), KEYS.key("remembered"))
    with pytest.raises(UnknownPrediction, match="any more"):
        await recall(store, KEYS, f"{(seconds - 70) * 1000}-0-{token}", minute)


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RememberParams(most=0)
