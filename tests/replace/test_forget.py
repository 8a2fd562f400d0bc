"""Forgetting events: as if they had never been, and nothing of them is left."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from abound.history.replay import compact
from abound.history.segment import decode_segment
from abound.jobs.replace import forget, refit
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ConfigureEvent, LearnEvent, MarkEvent
from abound.replace.forget import ForgetParams, delete_others
from abound.replace.refit import RefitParams
from abound.replica.predictions import RememberParams, newest_predictions, recall, remember, vector_fingerprint
from abound.state import snapshots
from abound.store.key_names import ModelKeys
from abound_core.errors import Conflict, InvalidInstance, UnknownOffset
from abound_core.model.entry_application import Unit
from abound_core.types import Offset
from tests.support.lab import SMALL, Lab, digest_at, digest_of, events, keyed, replace_by
from tests.support.streams import drafts, logged, record
from tests.support.valkey import Server


@pytest.mark.parametrize("in_history", [False, True])
async def test_forgetting_a_source_is_as_if_it_had_never_been(lab: Lab, in_history: bool) -> None:
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(*events(20, 1), *events(15, 2, "bad"), *keyed(10, 3, "k"), *keyed(10, 3, "k"))
    await lab.teach(ConfigureEvent({"margin": 0.1}), *keyed(5, 4, "b", "bad"), *keyed(5, 4, "b", "bad"), *events(10, 5))
    if in_history:
        await lab.archived()
    await lab.teach(*events(5, 6, "bad"), *events(5, 7))
    before = await lab.living()
    tried = await lab.run(forget, ForgetParams(source="bad", reason="how many?", dry_run=True), job="try")
    assert await lab.living() == before
    outcome = await lab.run(forget, ForgetParams(source="bad", reason="asked for"))
    assert tried["forgotten"] == outcome["forgotten"] == {"requests": 30, "instances": 30}
    assert outcome["from"] == str(lab.past[20][0])
    await lab.teach(*events(5, 8))
    expected = await lab.without(lambda unit, at: unit.source == "bad")
    await lab.same(one, expected)
    assert await digest_at(other, await lab.end()) == await digest_of(expected)
    assert one.model(DEFAULT_MODEL).live.n_learned == 20 + 10 + 10 + 5 + 5


async def test_forgetting_a_key_or_a_time(lab: Lab) -> None:
    one = await lab.replica()
    await lab.teach(*events(10, 1), *keyed(10, 3, "k"), *events(10, 5), *keyed(10, 3, "k"), *events(3, 6))
    await lab.run(forget, ForgetParams(key="k4", reason="asked for"), job="key")
    expected = await lab.without(lambda unit, at: unit.key == "k4")
    await lab.same(one, expected)
    assert one.model(DEFAULT_MODEL).live.receipts.get("k4") is None
    low, high = lab.past[12][0], lab.past[22][0]  # k2 to k9, whose repeats go too, and some others
    await lab.run(
        forget,
        ForgetParams(since=low.milliseconds / 1000, until=high.milliseconds / 1000, reason="asked for"),
        job="time",
    )
    inside = {
        unit.key
        for at, event in lab.past
        for unit in getattr(event, "units", ())
        if unit.key and low.milliseconds <= at.milliseconds <= high.milliseconds
    }
    expected = await lab.without(
        lambda unit, at: unit.key in inside | {"k4"} or low.milliseconds <= at.milliseconds <= high.milliseconds
    )
    await lab.same(one, expected)


async def test_a_request_is_forgotten_by_an_offset_of_it(lab: Lab) -> None:
    one = await lab.replica()
    plain = [draft.records for draft in drafts(5)]
    await lab.teach(*events(10, 1), LearnEvent(b"".join(plain), 5, [Unit(1, "a"), Unit(3, "b"), Unit(1, "c")]))
    at = lab.past[-1][0]
    await lab.teach(*events(5, 2))
    outcome = await lab.run(forget, ForgetParams(offset=f"{at.entry}.2", reason="r", keep_versions=True), job="undo")
    assert outcome["forgotten"] == {"requests": 1, "instances": 3}
    lab.past[10] = (at, LearnEvent(plain[0] + plain[4], 5, [Unit(1, "a"), Unit(3, emptied=True), Unit(1, "c")]))
    await lab.same(one, await lab.without(lambda unit, at: False))
    await lab.run(refit, RefitParams(passes=2, search={}, settings={"d_max": 9}), job="refit")
    params = ForgetParams(offset=f"{at.entry}.0", reason="r", keep_versions=True)
    with pytest.raises(Conflict, match="a refit has learned the events"):
        await lab.run(forget, params, job="refused")
    await lab.teach(*events(5, 3))
    params = ForgetParams(offset=str(lab.past[-1][0]), reason="r", keep_versions=True)
    assert (await lab.run(forget, params, job="later"))["forgotten"]["instances"] == 1


async def test_a_time_is_not_forgotten_that_offsets_do_not_tell(lab: Lab) -> None:
    """The store's clock was an hour ahead once: what came since it was set back stands there under that hour."""
    one = await lab.replica()
    await lab.teach(*events(5, 1))
    now = lab.past[-1][0].milliseconds
    future = Offset(now + 3_600_000, 0, 0)
    log = (await lab.living()).keys.log
    await lab.store.client.xadd(log, logged(MarkEvent("future")), id=future.entry)
    late = await lab.teach(*events(5, 2, "spy"))
    assert {at.milliseconds for at in late} == {future.milliseconds}
    since = now / 1000 - 60
    for params in (
        ForgetParams(since=since, reason="r"),
        ForgetParams(since=since, until=since + 120, reason="r"),
        ForgetParams(until=since + 120, source="spy", reason="r"),
    ):
        with pytest.raises(InvalidInstance, match=r"set back.* 3\d{3}\.\d{3} s ahead") as refused:
            await lab.run(forget, params, job="refused")
    assert one.model(DEFAULT_MODEL).live.n_learned == 10
    named = float(str(refused.value).rpartition("at least ")[2].partition(";")[0])
    outcome = await lab.run(forget, ForgetParams(since=future.milliseconds / 1000, until=named, reason="r"))
    assert outcome["forgotten"]["requests"] == 5
    outcome = await lab.run(forget, ForgetParams(source="nobody", reason="r"), job="by source")
    assert outcome["forgotten"]["requests"] == 0


async def test_a_batch_that_was_refused_because_of_a_forgotten_key_is_not_learned_after_it(lab: Lab) -> None:
    one = await lab.replica()
    plain = [draft.records for draft in drafts(4)]
    await lab.teach(LearnEvent(plain[0], 1, [Unit(1, "k", b"one")]))
    await lab.append(LearnEvent(plain[1] + plain[2], 2, [Unit(1, "k", b"other", batch=2), Unit(1, "l", b"l")]))
    await lab.teach(LearnEvent(plain[3], 1, [Unit(1)]))
    await lab.run(forget, ForgetParams(key="k", reason="asked for"))
    await lab.same(one, await lab.without(lambda unit, at: unit.key == "k"))
    assert one.model(DEFAULT_MODEL).live.n_learned == 1


async def test_a_refit_that_learned_the_events_is_dropped_and_one_before_them_stays(lab: Lab) -> None:
    one = await lab.replica()
    await lab.teach(*events(30, 1))
    await lab.run(refit, RefitParams(passes=2, search={}, settings={"d_max": 9}), job="early")
    await lab.teach(*events(10, 2, "bad"))
    outcome = await lab.run(forget, ForgetParams(source="bad", reason="asked for"), job="forget")
    assert "refits_dropped" not in outcome
    assert await digest_at(one, await lab.end()) == await lab.replayed_digest()
    await lab.teach(*events(10, 3, "worse"))
    await lab.run(refit, RefitParams(passes=2, search={}, settings={"d_max": 7}), job="late")
    await lab.teach(*events(10, 4))
    outcome = await lab.run(forget, ForgetParams(source="worse", reason="asked for"), job="again")
    assert "had learned forgotten events and was dropped" in outcome["refits_dropped"]
    assert await digest_at(one, await lab.end()) == await lab.replayed_digest()
    assert one.model(DEFAULT_MODEL).live.n_learned == 40


@pytest.fixture
async def own_lab(own_server: Server, tmp_path: Path) -> AsyncIterator[Lab]:
    """A lab whose store's files nobody else writes to."""
    async with Lab(own_server, tmp_path) as lab:
        yield lab


async def test_nothing_of_a_forgotten_event_is_left_anywhere(own_lab: Lab) -> None:
    lab = own_lab
    one = await lab.replica()
    secret = LearnEvent(
        record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, "hidden-key", b"b", "spy")]
    )
    other = LearnEvent(record('{"wheat": 1}', "grain"), 1, [Unit(1, "plain-key", b"b")])
    await lab.append(*events(120, 1), secret, other)
    await lab.archived()
    await lab.append(*events(5, 2))
    await lab.run(refit, RefitParams(search={}), job="refit")
    await lab.append(*events(5, 3), secret)
    model = one.model(DEFAULT_MODEL)
    reading = vector_fingerprint(model.live.config)
    vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
    plain = model.live.vectorizer.vectorize(b'{"wheat": 1}', None)
    remembering = RememberParams()
    gone = await remember(lab.store, model.keys, vector, remembering, reading, b'"Unutterable wheat"')
    kept = await remember(lab.store, model.keys, plain, remembering, reading, b'"Wheat"')
    words = (b"unutterable", b"unspeakable", b"hidden-key", b"Unutterable")
    assert all([await traces(lab, word) for word in words])
    outcome = await lab.run(forget, ForgetParams(source="spy", reason="asked for"), job="forget")
    assert outcome["store_file"] == "rewritten"
    model = one.model(DEFAULT_MODEL)
    assert [await traces(lab, word) for word in words] == [[], [], [], []]
    assert await recall(lab.store, model.keys, kept, remembering, reading) == plain
    [left] = await newest_predictions(lab.store, model.keys, remembering, reading, 2, 1000)
    assert left == (kept, plain, b'"Wheat"')
    assert gone != kept
    await one.learn(DEFAULT_MODEL, drafts(5, 9))
    assert await digest_at(one, model.offset) == await lab.replayed_digest()


async def test_what_those_who_died_have_left_is_forgotten_as_well(own_lab: Lab) -> None:
    lab = own_lab
    secret = LearnEvent(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="spy")])
    await lab.teach(*events(20, 1), secret)
    living = await lab.living()
    died = "1-0.0-00000000"

    class Died(Exception):
        pass

    async def dying() -> None:
        async for key in lab.store.client.scan_iter(match="*:snapshot:*"):
            if b"unspeakable" in await lab.store.client.get(key):
                await lab.store.client.copy(key, living.keys.key(f"snapshot:{died}:0"))  # a killed process's
                raise Died

    with pytest.raises(Died):
        await compact(lab.store, living, SMALL, between=dying, artifacts=lab.artifacts)
    assert list(await snapshots.unlisted_keys(lab.store, living.keys)) == [died]
    await lab.run(forget, ForgetParams(source="spy", reason="asked for"), job="forget")
    assert [await traces(lab, word) for word in (b"unutterable", b"unspeakable")] == [[], []]


async def traces(lab: Lab, word: bytes) -> list[str]:
    """Where a word is found: values of the store, artifacts, the store's own files."""
    found = []
    client = lab.store.client
    async for key in client.scan_iter(count=1000):
        if word in (await client.dump(key) or b""):
            found.append(f"key {key!r}")
    for name in await lab.artifacts.names():
        data = await lab.artifacts.get(name)
        if name.endswith(".seg"):
            data = b"".join(part for _, fields in decode_segment(data) for part in fields)
        if word in data:
            found.append(name)
    for path in lab.server.directory.rglob("*"):
        if path.is_file() and "aof" in path.name and word in path.read_bytes():
            found.append(str(path))
    return found


async def test_a_replacement_that_began_since_is_left_alone(lab: Lab) -> None:
    """Deleting may take longer than its lease lasts; then another process may have begun to write."""
    await lab.teach(*events(5, 1))
    older, newer = "1-0", "9000000000000-0"
    for incarnation in (older, newer):
        await lab.artifacts.put(f"{DEFAULT_MODEL}/{incarnation}/file", b"x")
        await lab.store.client.set(ModelKeys(DEFAULT_MODEL, incarnation).key("snapshot:1"), b"x")
    await delete_others(await lab.context())
    names = await lab.artifacts.names(DEFAULT_MODEL)
    keys = [key async for key in lab.store.client.scan_iter(match="*:snapshot:1")]
    assert [name for name in names if name.endswith("/file")] == [f"{DEFAULT_MODEL}/{newer}/file"]
    assert keys == [ModelKeys(DEFAULT_MODEL, newer).key("snapshot:1")]


@pytest.mark.parametrize("how", ["imported", "lost history"])
async def test_events_before_history_cannot_be_forgotten(lab: Lab, how: str) -> None:
    """Neither by their source, nor by their key or a repeat of it that came since."""
    await lab.teach(*events(5, 1, "bad"), *keyed(3, 2, "early"))
    if how == "imported":
        await replace_by(lab, (await lab.replayed()).live, "import")
    else:
        await lab.archived()
        await lab.store.client.delete((await lab.living()).keys.key("history"))
        await lab.teach(*events(5, 3))
        await lab.archived()
    at = await lab.start()
    await lab.teach(*keyed(3, 2, "early"), *keyed(3, 4, "late", "bad"))
    for params, why in (
        (ForgetParams(source="bad", reason="r"), "give a since"),
        (ForgetParams(key="early1", reason="r"), "has been learned in it: give a since"),
        (ForgetParams(key="never", reason="r"), "give a since"),
    ):
        with pytest.raises(UnknownOffset, match=why) as refused:
            await lab.run(forget, params, job="refused")
        assert refused.value.first == at
    since = (at.milliseconds + 1) / 1000
    for params, n in (
        (ForgetParams(key="late1", reason="r"), 1),
        (ForgetParams(key="early1", since=since, reason="r"), 1),
        (ForgetParams(source="bad", since=since, reason="r"), 2),
    ):
        outcome = await lab.run(forget, params, job=f"{params.key}")
        assert outcome["forgotten"]["requests"] == n


async def test_forgetting_what_never_was_changes_nothing(lab: Lab) -> None:
    one = await lab.replica()
    await lab.teach(*events(5))
    outcome = await lab.run(forget, ForgetParams(key="never", reason="r"))
    assert outcome["forgotten"] == {"requests": 0, "instances": 0}
    assert await digest_at(one, await lab.end()) == await lab.expected()
    assert (await lab.living()).keys == one.model(DEFAULT_MODEL).keys


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"key": "k"},
        {"reason": "r"},
        {"reason": "r", "since": 2.0, "until": 1.0},
        {"reason": "r", "since": 1e300},
        {"reason": "r", "offset": "yesterday"},
        {"reason": "r", "until": -1.0},
        {"reason": "r", "source": "x" * 513},
    ],
)
def test_forgetting_needs_a_reason_and_a_choice(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ForgetParams(**wrong)
