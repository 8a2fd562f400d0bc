"""One model of a replica by itself: its tables grow in another thread and nobody can tell."""

import asyncio
import threading

import pytest

from abound.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound.log.stream import Element
from abound.state.replicated_model import ReplicatedModel
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import EnlargedTables, LiveModel
from abound_core.types import Ranking
from tests.support.streams import draft


def elements(n_entries: int, n: int) -> list[Element]:
    """A log in which every instance brings new features and a new label."""
    made = []
    for entry in range(n_entries):
        drafts = [draft(f'{{"a": 1, "b{entry} {i}": 2, "c{entry} {i}": 3}}', f"label {entry} {i}") for i in range(n)]
        event = LearnEvent(b"".join(one.records for one in drafts), n, [Unit(1)] * n)
        payload, checksum = encode(Entry(APPLY_VERSION, b"other", entry, event))
        made.append((b"%d-0" % (entry + 1), [b"e", payload, b"c", checksum]))
    return made


def replica() -> ReplicatedModel:
    return ReplicatedModel(ModelKeys("default", "1-0"), ModelConfig(max_features=3000))


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every time that tables were enlarged, whether it was off the loop."""
    found: list[bool] = []
    enlarged = LiveModel.enlarged

    def seen(self: LiveModel) -> EnlargedTables:
        found.append(threading.current_thread() is not threading.main_thread())
        return enlarged(self)

    monkeypatch.setattr(LiveModel, "enlarged", seen)
    return found


@pytest.mark.parametrize(("n_entries", "n"), [(1200, 1), (5, 400)])
async def test_tables_that_grow_elsewhere_change_nothing(monkeypatch, where, n_entries, n):
    log = elements(n_entries, n)
    inline, ahead = replica(), replica()
    for element in log:
        await inline.apply(element)
    assert where == []
    monkeypatch.setattr("abound_core.instances.vocabulary.LARGE_TABLE", 256)
    over = False
    answers = 0

    async def ask() -> None:
        nonlocal answers
        vector = ahead.live.vectorizer.vectorize(b'{"a": 1, "b0 0": 1, "unknown": 1}', None)
        while not over:
            ranking: Ranking = ahead.live.rank(vector, 5)
            assert all(ahead.live.label(class_id).startswith("label") for class_id in ranking.class_ids.tolist())
            answers += len(ranking.class_ids) > 0
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    for element in log:
        await ahead.apply(element)
    over = True
    await asking
    assert len(where) > 3
    assert all(where)
    assert answers > 0
    assert ahead.position == inline.position
    assert await ahead.compute_digest() == await inline.compute_digest()
    assert ahead.live.stats()["learned"] == inline.live.stats()["learned"] == n_entries * n


async def test_who_waits_for_an_offset_need_not_wait_for_more_than_a_state_that_has_it():
    model, loaded = replica(), replica()
    for element in elements(3, 2):
        await loaded.apply(element)
    waiting = asyncio.create_task(model.wait_for(loaded.offset))
    await asyncio.sleep(0)
    model.restore(loaded.live, loaded.position)
    await asyncio.wait_for(waiting, 30)
