"""An index rebuilt from history and log: refit, restore and forget, as a job does them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.applying import Unit
from core.config import ModelConfig
from core.errors import Cancelled, Conflict, Damaged, InvalidInstance, UnknownOffset
from core.live import LiveModel, warmup
from core.types import START, Offset
from service import forgotten, indexes, past
from service import manifest as manifests
from service.adoption import Adoption, begin
from service.archive import Archiving, archive
from service.catalog import DEFAULT_MODEL
from service.compaction import compact, rebuild
from service.events import APPLY_VERSION, Adopt, Configure, Entry, Learn, Mark, decode_entry, encode
from service.history import History, HistoryParams
from service.lease import take
from service.log import mended_key
from service.rebuild import MOST_ROUNDS, ForgetParams, RefitParams, RestoreParams, forget, refit, restore
from service.remembered import RememberParams, reading_of, recall, remember
from service.replica import Replica
from service.store import Store
from service.verify import verify
from tests.service.adopting import SMALL, House, apply, digest_at, digest_of, events, learning, model_of
from tests.service.conftest import QUICK
from tests.service.proxy import Proxy
from tests.service.streams import drafts, flip, record
from tests.service.valkey import Server


def _group(kind: Any) -> Any:
    return SMALL if kind is type(SMALL) else kind()


class Context:
    """What a job is given, without jobs."""

    def __init__(
        self,
        house: House,
        living: Any,
        job: str = "job",
        committed: bool = False,
        outcome: dict[str, Any] | None = None,
        kept: list[str] | None = None,
    ) -> None:
        self.store, self.artifacts, self.living = house.store, house.artifacts, living
        self.job = SimpleNamespace(id=job, committed=committed, kept=kept or [], outcome=outcome or {})
        self.settings = SimpleNamespace(
            prepare_seconds=10.0, group=lambda kind: SMALL if kind is type(SMALL) else kind()
        )
        self.ranges: list[tuple[Offset | None, Offset | None]] = []
        self.stages: list[str] = []
        self.wrote: set[str] = set()
        self.stop_at: str | None = None

    def check(self) -> None:
        if self.stop_at is not None and self.stages and self.stages[-1].startswith(self.stop_at):
            raise Cancelled("the job was told to stop")

    async def will_write(self, prefix: str) -> None:
        self.stages.append(f"will write {prefix}")
        self.wrote.add(prefix)

    async def range(self, after: Offset | None, until: Offset | None) -> None:
        self.ranges.append((after, until))

    async def so_far(self, outcome: dict[str, Any]) -> None:
        self.job.outcome = outcome

    async def commit(self, *prefixes: str) -> None:
        self.stages.append("commit")
        self.wrote -= set(prefixes)
        self.job.kept = [*prefixes]

    def progress(self, stage: str, fraction: float) -> None:
        assert 0 <= fraction <= 1
        self.stages.append(stage)
        self.check()


@pytest.fixture
async def house(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    warmup()
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()


async def run(house: House, method: Any, params: Any, **given: Any) -> dict[str, Any]:
    context = Context(house, await house.living(), **given)
    async with asyncio.timeout(60):
        try:
            return cast("dict[str, Any]", await method(context, params, context.progress))
        finally:
            for prefix in context.wrote:  # as is done with what a job did not commit
                await house.artifacts.clear(prefix)


async def without(house: House, gone: Any, until: Offset | None = None) -> LiveModel:
    """A model that never saw what ``gone`` says of a unit and its offset, told as plainly as can be."""
    live = LiveModel((await house.living()).config, (8, 8))
    for at, event in house.past:
        if until is not None and at > until:
            break
        if isinstance(event, Learn):
            units = [Unit(unit.n, batch=unit.batch, emptied=True) if gone(unit, at) else unit for unit in event.units]
            assert len(units) == 1
            records = b"" if units[0].emptied else event.records
            apply(live, at, Learn(records, event.n, units))
        else:
            apply(live, at, event)
    return live


async def same(house: House, replica: Replica, expected: LiveModel) -> None:
    """The replica, and all that can be made of what is kept, is the expected model."""
    digest = await digest_of(expected)
    assert await digest_at(replica, (await house.elements())[-1][0]) == digest
    for from_start in (True, False):
        model = await rebuild(house.store, await house.living(), from_start=from_start, artifacts=house.artifacts)
        assert await model.take_digest() == digest


def keyed(n: int, seed: int, prefix: str, source: str | None = None) -> list[Learn]:
    return [Learn(one.records, 1, [Unit(1, f"{prefix}{i}", b"body", source)]) for i, one in enumerate(drafts(n, seed))]


async def teach(house: House, *learned: Any) -> list[Offset]:
    """Append events, and keep what they were."""
    offsets = await house.append(*learned)
    house.past += list(zip(offsets, learned, strict=True))
    return offsets


async def archived(house: House) -> None:
    """Two snapshots, and all that is before them in history."""
    living = await house.living()
    for _ in range(2):
        await compact(house.store, living, SMALL, artifacts=house.artifacts)
    async with take(house.store, living.keys) as lease:
        await archive(Archiving(house.store, house.artifacts, living, lease, HistoryParams(segment_bytes=4096)))


# restore


async def test_restore_takes_the_index_back_and_goes_on_from_there(house: House) -> None:
    one = await house.replica()
    early = await teach(house, *events(30, 1))
    await teach(house, Configure({"d_max": 9}), *events(20, 2))
    await teach(house, *events(10, 3))
    outcome = await run(house, restore, RestoreParams(to=str(early[-1]), reason="a bad batch"))
    await teach(house, *events(5, 4))
    expected = LiveModel((await house.living()).config, (8, 8))
    for at, event in [*house.past[:30], *house.past[-5:]]:
        apply(expected, at, event)
    assert outcome["learned"] == 30
    assert outcome["reason"] == "a bad batch"
    assert [event.reason for _, event in await house.elements() if isinstance(event, Adopt)] == ["a bad batch"]
    await same(house, one, expected)


async def test_restore_into_the_middle_of_an_entry(house: House) -> None:
    one = await house.replica()
    records = [draft.records for draft in drafts(6)]
    units = [Unit(1), Unit(2), Unit(1, batch=2), Unit(1), Unit(1)]
    (at,) = await teach(house, Learn(b"".join(records), 6, units))
    for position, n in ((0, 1), (1, 3), (3, 5), (5, 6)):
        await run(house, restore, RestoreParams(to=str(at._replace(position=position)), reason="r"), job=f"j{position}")
        last = (await house.elements())[-1][0]
        await digest_at(one, last)
        assert one.model(DEFAULT_MODEL).live.n_learned == n


async def test_restore_to_the_offset_of_an_adoption(house: House) -> None:
    one = await house.replica()
    early = await teach(house, *events(10, 1), *events(3, 2, "bad"))
    await teach(house, *events(5, 3))
    first = await run(house, restore, RestoreParams(to=str(early[-1]), reason="back"), job="first")
    await teach(house, *events(5, 4))
    await run(house, restore, RestoreParams(to=first["adopted"], reason="back again"), job="second")
    late = await teach(house, *events(5, 5))
    expected = LiveModel((await house.living()).config, (8, 8))
    for at, event in [*house.past[:13], *house.past[-5:]]:
        apply(expected, at, event)
    await same(house, one, expected)
    await run(house, forget, ForgetParams(source="bad", reason="asked for"), job="forget")
    expected = LiveModel((await house.living()).config, (8, 8))
    for at, event in [*house.past[:10], *house.past[-5:]]:
        apply(expected, at, event)
    assert late[-1] == house.past[-1][0]
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await digest_of(expected)


async def test_restore_past_the_log_or_before_history_is_refused(house: House) -> None:
    await teach(house, *events(5))
    with pytest.raises(InvalidInstance, match="ends at"):
        await run(house, restore, RestoreParams(to=f"{2**50}-0.0", reason="r"))
    living = await house.living()
    await archived(house)
    await house.store.client.delete(living.keys.of("history"))  # lost
    await teach(house, *events(5))
    await archived(house)
    contents = await History(house.store, house.artifacts, living.keys).contents()
    assert contents is not None
    with pytest.raises(UnknownOffset, match=str(contents.beginning)) as refused:
        await run(house, restore, RestoreParams(to=str(house.past[1][0]), reason="r"))
    assert refused.value.first == contents.beginning
    assert not [event for _, event in await house.elements() if isinstance(event, Adopt)]
    one = await house.replica()
    outcome = await run(house, restore, RestoreParams(to=str(contents.beginning), reason="r"), job="first")
    assert outcome["learned"] == len([at for at, _ in house.past if at <= contents.beginning])
    assert one.model(DEFAULT_MODEL).live.n_learned == outcome["learned"]
    assert (await verify(house.store, DEFAULT_MODEL, artifacts=house.artifacts)).good


async def test_an_empty_model_can_be_restored(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(5))
    await run(house, restore, RestoreParams(to=str(START), reason="begin anew"))
    await digest_at(one, (await house.elements())[-1][0])
    assert one.model(DEFAULT_MODEL).live.n_learned == 0


# refit


async def test_refit_learns_all_again_with_the_chosen_setting(house: House) -> None:
    one, other = await house.replica(), await house.replica()
    await teach(house, *events(300, 1), *keyed(20, 2, "k"), *keyed(20, 2, "k"))
    before = await rebuild(house.store, await house.living())
    async with learning(other):
        outcome = await run(
            house,
            refit,
            RefitParams(passes=3, settings={"leak": False, "d_max": 12}, search={"margin": [0.0, 0.3]}),
        )
    last = max(replica.model(DEFAULT_MODEL).offset for replica in (one, other))
    assert await digest_at(one, last) == await digest_at(other, last) == await house.expected()
    config = one.model(DEFAULT_MODEL).live.config
    assert (config.leak, config.d_max) == (False, 12)
    assert config.margin == outcome["setting"]["margin"]
    assert 1 <= outcome["passes"] <= 3
    assert 0 < outcome["metrics"]["MRR"] <= 1
    assert outcome["metrics"]["held_out"] >= 32
    assert len(one.model(DEFAULT_MODEL).live.receipts) == 20
    assert one.model(DEFAULT_MODEL).live.n_learned > before.live.n_learned == 320


@pytest.mark.parametrize(
    ("given", "margin", "tried"),
    [
        ({}, 0.0, [0.0, 0.1, 0.5]),
        ({}, 7.0, [0.0, 0.1, 0.5, 7.0]),
        ({"settings": {"margin": 0.3}}, 7.0, [0.3]),
        ({"settings": {"update": "sls"}}, 7.0, [None]),
        ({"search": {}}, 7.0, [None]),
        ({"search": {"margin": [1.0]}}, 7.0, [1.0]),
    ],
)
def test_what_a_refit_tries(given: dict[str, Any], margin: float, tried: list[float | None]) -> None:
    settings = RefitParams(**given).tried(ModelConfig(margin=margin))
    assert [setting.get("margin") for setting in settings] == tried
    assert all(setting.items() >= given.get("settings", {}).items() for setting in settings)


def test_a_field_has_one_value_or_several() -> None:
    with pytest.raises(ValueError, match="margin has a value in settings and others in search"):
        RefitParams(settings={"margin": 0.3}, search={"margin": [0.1]})


async def test_a_refit_keeps_the_margin_that_it_is_told(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(120, 1))
    outcome = await run(house, refit, RefitParams(passes=2, settings={"margin": 0.3}))
    assert outcome["setting"] == {"margin": 0.3}
    await digest_at(one, one.model(DEFAULT_MODEL).offset)
    assert one.model(DEFAULT_MODEL).live.config.margin == 0.3


async def test_refit_of_one_pass_without_a_search_is_a_replay(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(40, 1), *keyed(5, 2, "k"), *keyed(5, 2, "k"), *events(10, 3))
    expected = await rebuild(house.store, await house.living())
    outcome = await run(house, refit, RefitParams(passes=1, search={}, reason="the same again"))
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await expected.take_digest()
    assert outcome["passes"] == 1
    assert outcome["metrics"] == {"MRR": None, "held_out": 0}


async def test_refit_leaves_out_what_was_taken_back(house: House) -> None:
    one = await house.replica()
    early = await teach(house, *events(30, 1))
    await teach(house, *events(30, 2))
    await run(house, restore, RestoreParams(to=str(early[-1]), reason="bad"), job="restore")
    await teach(house, *events(10, 3))
    expected = await rebuild(house.store, await house.living(), artifacts=house.artifacts)
    assert expected.live.n_learned == 40
    await run(house, refit, RefitParams(passes=1, search={}), job="refit")
    assert await digest_at(one, (await house.elements())[-1][0]) == await expected.take_digest()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"settings": {"boolean": True}}, "normalised already"),
        ({"search": {"analyzer": [{}]}}, "not the texts"),
        ({"settings": {"negative": "split"}}, "below 0"),
        ({"settings": {"d_max": 0}}, "d_max"),
        ({"search": {"margin": []}}, "at least one value"),
        ({"search": {"margin": list(range(20)), "d_max": list(range(1, 20))}}, "at most 100"),
        ({"search": {name: [1] * 1000 for name in ("margin", "d_max", "w_min")}}, "at most 100"),
        ({"passes": 0}, "passes"),
        ({"held_out": 0.0}, "held_out"),
        ({"held_out": 0.9}, "held_out"),
        ({"settings": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_what_a_refit_cannot_do_is_refused_with_the_reason(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        RefitParams(**wrong)


async def test_a_refit_that_is_cancelled_leaves_nothing(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(50))
    living = await house.living()
    for stage in ("replaying", "trying", "fitting", "writing", "waiting"):
        context = Context(house, living, job=stage)
        context.stop_at = stage
        with pytest.raises(Cancelled):
            await refit(cast("Any", context), RefitParams(), context.progress)
    assert await indexes.ids(house.artifacts, living.keys) == []
    assert not [event for _, event in await house.elements() if isinstance(event, Adopt)]
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await house.expected()
    await run(house, refit, RefitParams(search={}), job="another")


async def test_a_job_that_died_after_its_commit_comes_to_the_same_end(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(50))
    living = await house.living()

    class Died(Exception):
        pass

    class Dying(Context):
        async def commit(self, *prefixes: str) -> None:
            raise Died

    first = Dying(house, living, job="job")
    with pytest.raises(Died):  # before the adoption; the index is the model's, so it is put back
        await refit(cast("Any", first), RefitParams(search={}), first.progress)
    outcome = await run(house, refit, RefitParams(search={}), job="job")
    again = await run(house, refit, RefitParams(search={}), job="job", committed=True)
    assert again["adopted"] == outcome["adopted"]
    assert len([event for _, event in await house.elements() if isinstance(event, Adopt)]) == 1
    assert await digest_at(one, (await house.elements())[-1][0]) == await house.expected()


@pytest.mark.parametrize("kept", [True, False])
async def test_a_restore_that_died_after_its_commit_is_not_done_twice_whatever_clocks_say(
    house: House, kept: bool
) -> None:
    """The clock by which it was recorded is far ahead of the store's."""
    one = await house.replica()
    offsets = await teach(house, *events(20, 1))
    context = Context(house, await house.living())
    params = RestoreParams(to=str(offsets[9]), reason="r")
    outcome = await restore(cast("Any", context), params, context.progress)
    (last,) = await teach(house, *events(1, 3))
    again = Context(house, await house.living(), committed=True, kept=context.job.kept if kept else [])
    again.job.created = time.time() + 3600
    assert (await restore(cast("Any", again), params, again.progress))["adopted"] == outcome["adopted"]
    assert len([event for _, event in await house.elements() if isinstance(event, Adopt)]) == 1
    await one.wait_for(DEFAULT_MODEL, last, 10)
    assert one.model(DEFAULT_MODEL).live.n_learned == 11


async def test_a_committed_job_whose_index_cannot_be_adopted_any_more_makes_it_anew(house: House) -> None:
    """It died before its adoption came to the store, and another index was adopted then."""
    one = await house.replica()
    await teach(house, *events(20, 1), *events(5, 2, "bad"))

    class Died(Exception):
        pass

    class Dying(Context):
        async def commit(self, *prefixes: str) -> None:
            await super().commit(*prefixes)
            raise Died

    living = await house.living()
    context = Dying(house, living, job="forget")
    params = ForgetParams(source="bad", reason="r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexes, "delete", _left_there)  # it was the model's by then
        with pytest.raises(Died):
            await forget(cast("Any", context), params, context.progress)
    assert len(await indexes.ids(house.artifacts, living.keys)) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexes, "delete", _left_there)
        await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    outcome = await run(house, forget, params, job="forget", committed=True, kept=context.job.kept)
    assert outcome["forgotten"]["instances"] == 5
    assert not any(unit.source == "bad" for unit in _learned(await house.elements()))
    await one.wait_for(DEFAULT_MODEL, Offset.parse(outcome["adopted"]), 10)
    assert one.model(DEFAULT_MODEL).live.n_learned == 20


async def _left_there(*given: Any) -> None:
    """Delete nothing."""


# forget


@pytest.mark.parametrize("in_history", [False, True])
async def test_forgetting_a_source_is_as_if_it_had_never_been(house: House, in_history: bool) -> None:
    one, other = await house.replica(), await house.replica()
    await teach(house, *events(20, 1), *events(15, 2, "bad"), *keyed(10, 3, "k"), *keyed(10, 3, "k"))
    await teach(house, Configure({"margin": 0.1}), *keyed(5, 4, "b", "bad"), *keyed(5, 4, "b", "bad"), *events(10, 5))
    if in_history:
        await archived(house)
    await teach(house, *events(5, 6, "bad"), *events(5, 7))
    outcome = await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    assert outcome["forgotten"] == {"requests": 30, "instances": 30}
    assert outcome["from"] == str(house.past[20][0])
    await teach(house, *events(5, 8))
    expected = await without(house, lambda unit, at: unit.source == "bad")
    await same(house, one, expected)
    assert await digest_at(other, one.model(DEFAULT_MODEL).offset) == await digest_of(expected)
    assert one.model(DEFAULT_MODEL).live.n_learned == 20 + 10 + 10 + 5 + 5


async def test_probabilities_are_forgotten_with_what_taught_them(house: House) -> None:
    """Nothing is left in what scores are worth, and what a refit learns of it is what its first pass would have."""
    one, other = await house.replica(), await house.replica()
    await teach(house, Configure({"calibrate": True}), *events(30, 1), *events(15, 2, "bad"), *events(10, 3))
    await run(house, forget, ForgetParams(source="bad", reason="asked for"))
    await teach(house, *events(5, 4))
    expected = await without(house, lambda unit, at: unit.source == "bad")
    assert expected.calibration.arrays.bins[0, :, 0].sum() > 30
    await same(house, one, expected)
    assert await digest_at(other, one.model(DEFAULT_MODEL).offset) == await digest_of(expected)
    await run(house, refit, RefitParams(search={}, passes=3), job="refit")
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await house.expected()
    refitted = one.model(DEFAULT_MODEL).live.calibration
    assert refitted.digest_bytes() == expected.calibration.digest_bytes()


async def test_forgetting_a_key_or_a_time(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(10, 1), *keyed(10, 3, "k"), *events(10, 5), *keyed(10, 3, "k"), *events(3, 6))
    await run(house, forget, ForgetParams(key="k4", reason="asked for"), job="key")
    expected = await without(house, lambda unit, at: unit.key == "k4")
    await same(house, one, expected)
    assert one.model(DEFAULT_MODEL).live.receipts.get("k4") is None
    low, high = house.past[12][0], house.past[22][0]  # k2 to k9, whose repeats go too, and some others
    await run(
        house,
        forget,
        ForgetParams(since=low.milliseconds / 1000, until=high.milliseconds / 1000, reason="asked for"),
        job="time",
    )
    inside = {
        unit.key
        for at, event in house.past
        for unit in getattr(event, "units", ())
        if unit.key and low.milliseconds <= at.milliseconds <= high.milliseconds
    }
    expected = await without(
        house,
        lambda unit, at: unit.key in inside | {"k4"} or low.milliseconds <= at.milliseconds <= high.milliseconds,
    )
    await same(house, one, expected)


async def test_a_time_is_not_forgotten_that_offsets_do_not_tell(house: House) -> None:
    """The store's clock was an hour ahead once: what came since it was set back stands there under that hour."""
    one = await house.replica()
    await teach(house, *events(5, 1))
    now = house.past[-1][0].milliseconds
    payload, checksum = encode(Entry(APPLY_VERSION, b"somebody", 1, Mark("future")))
    future = Offset(now + 3_600_000, 0, 0)
    log = (await house.living()).keys.log
    await house.store.client.xadd(log, {"e": payload, "c": checksum}, id=future.entry)
    late = await teach(house, *events(5, 2, "spy"))
    assert {at.milliseconds for at in late} == {future.milliseconds}
    since = now / 1000 - 60
    for params in (
        ForgetParams(since=since, reason="r"),
        ForgetParams(since=since, until=since + 120, reason="r"),
        ForgetParams(until=since + 120, source="spy", reason="r"),
    ):
        with pytest.raises(InvalidInstance, match=r"set back.* 3\d{3}\.\d{3} s ahead") as refused:
            await run(house, forget, params, job="refused")
    assert one.model(DEFAULT_MODEL).live.n_learned == 10
    named = float(str(refused.value).rpartition("at least ")[2].partition(",")[0])
    outcome = await run(house, forget, ForgetParams(since=future.milliseconds / 1000, until=named, reason="r"))
    assert outcome["forgotten"]["requests"] == 5
    outcome = await run(house, forget, ForgetParams(source="nobody", reason="r"), job="by source")
    assert outcome["forgotten"]["requests"] == 0


async def test_a_batch_that_was_refused_because_of_a_forgotten_key_is_not_learned_after_it(house: House) -> None:
    one = await house.replica()
    plain = [draft.records for draft in drafts(4)]
    await teach(house, Learn(plain[0], 1, [Unit(1, "k", b"one")]))
    await house.append(Learn(plain[1] + plain[2], 2, [Unit(1, "k", b"other", batch=2), Unit(1, "l", b"l")]))
    await teach(house, Learn(plain[3], 1, [Unit(1)]))
    await run(house, forget, ForgetParams(key="k", reason="asked for"))
    await same(house, one, await without(house, lambda unit, at: unit.key == "k"))
    assert one.model(DEFAULT_MODEL).live.n_learned == 1


async def test_what_was_adopted_since_is_made_anew_without_the_events(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(30, 1), *events(10, 2, "bad"))
    early = (await teach(house, *keyed(10, 3, "k")))[-1]
    await run(house, refit, RefitParams(passes=2, search={}, settings={"d_max": 7}), job="refit")
    await teach(house, *events(10, 4), *events(5, 5, "bad"))
    await run(house, restore, RestoreParams(to=str(early), reason="back"), job="restore")
    await teach(house, *events(10, 6), *events(5, 7, "bad"))
    await archived(house)
    outcome = await run(house, forget, ForgetParams(source="bad", reason="asked for"), job="forget")
    assert len(outcome["indexes_rewritten"]) == 2
    assert set(outcome["indexes_rewritten"]) <= set(outcome["indexes_deleted"])
    assert outcome["forgotten"]["requests"] == 20
    last = (await house.elements())[-1][0]
    expected = LiveModel((await house.living()).config, (8, 8))
    for at, event in house.past:
        if (at <= early or at >= house.past[-15][0]) and event.units[0].source != "bad":
            apply(expected, at, event)
    assert await digest_at(one, last) == await digest_of(expected)
    await same(house, one, expected)


async def test_nothing_of_a_forgotten_event_is_left_anywhere(own_server: Server, tmp_path: Path) -> None:
    warmup()
    house = House(own_server, tmp_path)
    await house.open()
    try:
        one = await house.replica()
        client = house.store.client
        secret = Learn(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, "hidden-key", b"b", "spy")])
        other = Learn(record('{"wheat": 1}', "grain"), 1, [Unit(1, "plain-key", b"b")])
        await house.append(*events(120, 1), secret, other)
        await archived(house)
        await house.append(*events(5, 2))
        await run(house, refit, RefitParams(search={}), job="refit")
        await house.append(*events(5, 3), secret)
        model = one.model(DEFAULT_MODEL)
        reading = reading_of(model.live.config)
        vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
        plain = model.live.vectorizer.vectorize(b'{"wheat": 1}', None)
        remembering = RememberParams()
        gone = await remember(house.store, model.keys, vector, remembering, reading)
        kept = await remember(house.store, model.keys, plain, remembering, reading)
        words = (b"unutterable", b"unspeakable", b"hidden-key")
        assert all([await traces(house, word) for word in words])
        snapshots = await manifests.ids(house.store, model.keys)
        assert len(snapshots) == 2
        outcome = await run(house, forget, ForgetParams(source="spy", reason="asked for"), job="forget")
        assert outcome["remembered_deleted"] == 1
        assert outcome["store_file"] == "rewritten"
        assert set(snapshots) <= set(outcome["snapshots_deleted"])
        assert outcome["segments_rewritten"]
        assert [await traces(house, word) for word in words] == [[], [], []]
        assert await recall(house.store, model.keys, kept, remembering, reading) == plain
        assert await client.xlen(model.keys.of("remembered")) == 1
        assert gone != kept
        await one.learn(DEFAULT_MODEL, drafts(5, 9))
        assert await digest_at(one, model.offset) == (
            await (
                await rebuild(house.store, await house.living(), from_start=True, artifacts=house.artifacts)
            ).take_digest()
        )
    finally:
        await house.close()


async def test_what_those_who_died_have_left_is_forgotten_as_well(own_server: Server, tmp_path: Path) -> None:
    warmup()
    house = House(own_server, tmp_path)
    await house.open()
    try:
        secret = Learn(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="spy")])
        await teach(house, *events(20, 1), secret)
        living = await house.living()
        written: set[bytes] = set()

        class Died(Exception):
            pass

        async def dying() -> None:
            async for key in house.store.client.scan_iter(match="*:snapshot:*"):
                if b"unspeakable" in await house.store.client.get(key):
                    written.add(key)
                    raise Died

        with pytest.raises(Died):
            await compact(house.store, living, SMALL, between=dying, artifacts=house.artifacts)
        [part] = written
        died = part.decode().rpartition(":snapshot:")[2].rpartition(":")[0]
        assert died not in await manifests.ids(house.store, living.keys)
        await house.store.client.copy(living.keys.log, mended_key(living.keys.log))  # as a mend that dies leaves it
        outcome = await run(house, forget, ForgetParams(source="spy", reason="asked for"), job="forget")
        assert died in outcome["snapshots_deleted"]
        assert not await house.store.client.exists(mended_key(living.keys.log))
        assert [await traces(house, word) for word in (b"unutterable", b"unspeakable")] == [[], []]
        kept = set(await manifests.ids(house.store, living.keys))
        assert len(kept) == 2
        assert not kept & set(outcome["snapshots_deleted"])
    finally:
        await house.close()


async def traces(house: House, word: bytes) -> list[str]:
    """Where a word is found: values of the store, artifacts, the store's own files."""
    found = []
    client = house.store.client
    async for key in client.scan_iter(count=1000):
        if word in (await client.dump(key) or b""):
            found.append(f"key {key!r}")
    for name in await house.artifacts.names():
        data = await house.artifacts.get(name)
        if name.endswith(".seg"):
            from service.segment import decode

            data = b"".join(part for _, fields in decode(data) for part in fields)
        if word in data:
            found.append(name)
    for path in house.server.directory.rglob("*"):
        if path.is_file() and "aof" in path.name and word in path.read_bytes():
            found.append(str(path))
    return found


async def test_events_before_history_cannot_be_forgotten(house: House) -> None:
    living = await house.living()
    await teach(house, *events(5, 1, "bad"), *keyed(3, 2, "early"))
    await archived(house)
    await house.store.client.delete(living.keys.of("history"))
    await teach(house, *events(5, 3))
    await archived(house)
    await teach(house, *keyed(3, 4, "late", "bad"))
    await archived(house)
    contents = await History(house.store, house.artifacts, living.keys).contents()
    assert contents is not None
    for params in (ForgetParams(source="bad", reason="r"), ForgetParams(key="early1", reason="r")):
        with pytest.raises(UnknownOffset) as refused:
            await run(house, forget, params, job="refused")
        assert refused.value.first == contents.beginning
    outcome = await run(house, forget, ForgetParams(key="late1", reason="r"), job="late")
    assert outcome["forgotten"]["requests"] == 1


async def test_events_of_an_imported_index_cannot_be_forgotten(house: House) -> None:
    await teach(house, *events(5, 1))
    async with begin(await house.place(), "import") as adoption:
        index = await house.index(model_of(30, 9), adoption.after, {"method": "import"})
        at = await adoption.adopt(index, "imported")
    await teach(house, *keyed(3, 4, "late", "bad"))
    for params in (ForgetParams(source="bad", reason="r"), ForgetParams(key="early", reason="r")):
        with pytest.raises(UnknownOffset, match="give a since") as refused:
            await run(house, forget, params, job="refused")
        assert refused.value.first == at
    since = (at.milliseconds + 1) / 1000
    for one in (ForgetParams(key="late1", reason="r"), ForgetParams(source="bad", since=since, reason="r")):
        assert (await run(house, forget, one, job=str(one.key)))["forgotten"]["requests"] > 0


async def test_a_key_that_an_imported_index_has_learned_cannot_be_forgotten_by_its_repeat(house: House) -> None:
    await teach(house, *keyed(3, 2, "early"))
    living = await house.living()
    live = (await rebuild(house.store, living)).live
    async with begin(await house.place(), "import") as adoption:
        index = await house.index(live, adoption.after, {"method": "import"})
        at = await adoption.adopt(index, "imported")
    await teach(house, *keyed(3, 2, "early"), *keyed(2, 5, "late"))
    with pytest.raises(UnknownOffset, match="has been learned in it: give a since") as refused:
        await run(house, forget, ForgetParams(key="early1", reason="r"), job="refused")
    assert refused.value.first == at
    assert (await run(house, forget, ForgetParams(key="late1", reason="r"), job="late"))["forgotten"]["requests"] == 1
    since = (at.milliseconds + 1) / 1000
    later = ForgetParams(key="early1", since=since, reason="r")
    assert (await run(house, forget, later, job="later"))["forgotten"]["requests"] == 1


async def test_one_that_is_cancelled_when_it_is_to_commit_says_nothing_of_what_it_forgets(house: House) -> None:
    await teach(house, *events(10, 1), *events(5, 2, "bad"))
    context = Context(house, await house.living(), job="forget")

    async def commit(*prefixes: str) -> None:
        raise Cancelled("the job was told to stop")

    context.commit = commit  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), context.progress)
    assert not await forgotten.unfinished(house.store, (await house.living()).keys)


async def test_forgetting_what_never_was_changes_nothing(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(5))
    outcome = await run(house, forget, ForgetParams(key="never", reason="r"))
    assert outcome["forgotten"] == {"requests": 0, "instances": 0}
    assert len(await house.elements()) == 5
    assert await digest_at(one, house.past[-1][0]) == await house.expected()


async def test_a_key_that_was_learned_before_history_cannot_be_forgotten_by_its_repeat(house: House) -> None:
    living = await house.living()
    await teach(house, *keyed(3, 2, "early"))
    await archived(house)
    await house.store.client.delete(living.keys.of("history"))
    await teach(house, *events(5, 3))
    await archived(house)
    (at, *_) = await teach(house, *keyed(3, 2, "early"))
    with pytest.raises(UnknownOffset, match="has been learned"):
        await run(house, forget, ForgetParams(key="early0", reason="r"), job="refused")
    params = ForgetParams(key="early0", since=at.milliseconds / 1000, reason="r")
    assert (await run(house, forget, params, job="repeat"))["forgotten"]["requests"] == 1


class Repeating(Context):
    """Requests come again right before an adoption, as their answers were lost; ``times`` in all."""

    def __init__(self, house: House, living: Any, times: int, **given: Any) -> None:
        super().__init__(house, living, "forget", **given)
        self.house = house
        self.times = times

    async def commit(self, *prefixes: str) -> None:
        await super().commit(*prefixes)
        if self.times:
            self.times -= 1
            await teach(self.house, *keyed(10, 3, "k", "bad"), *events(2, self.times))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_repeat_that_comes_while_it_is_forgotten_is_forgotten_as_well(
    house: House, times: int, by_time: bool
) -> None:
    """It was answered as a repeat, and learned on top of the index that was adopted."""
    one = await house.replica()
    offsets = await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"), *keyed(5, 4, "good"))
    async with asyncio.timeout(10):
        while int((await house.store.client.time())[0]) <= offsets[-1].milliseconds / 1000 + 0.001:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    params = ForgetParams(source=None if by_time else "bad", until=offsets[-1].milliseconds / 1000, reason="r")
    context = Repeating(house, await house.living(), times)
    outcome = await forget(cast("Any", context), params, context.progress)
    assert "sent_again" not in outcome
    assert outcome["forgotten"]["requests"] == (35 if by_time else 10) + 10 * times
    await teach(house, *events(3, 9))
    by = offsets[-1] if by_time else offsets[29]
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" or (by_time and at <= by)))
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is None
    await teach(house, *keyed(10, 3, "k", "bad"))  # what comes now is sent anew
    last = house.past[-1][0]
    await one.wait_for(DEFAULT_MODEL, last, 10)
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is not None


class Coming(Context):
    """What comes after the end up to which each round looks, before its adoption: one list a round."""

    def __init__(self, house: House, living: Any, *rounds: list[Learn], **given: Any) -> None:
        super().__init__(house, living, "forget", **given)
        self.house = house
        self.rounds = [*rounds]

    async def commit(self, *prefixes: str) -> None:
        await super().commit(*prefixes)
        if self.rounds:
            await teach(self.house, *self.rounds.pop(0))


def one_of(seed: int, key: str, body: bytes) -> Learn:
    return Learn(drafts(1, seed)[0].records, 1, [Unit(1, key, body)])


@pytest.mark.parametrize("by_key", [False, True])
async def test_what_is_refused_while_its_key_is_forgotten_is_not_learned_by_the_adoption(
    house: House, by_key: bool
) -> None:
    """Another body under the key, alone or in a batch: refused by the live state, new to the index that is adopted."""
    one = await house.replica()
    plain = [draft.records for draft in drafts(2, 7)]
    await teach(house, *events(10, 1), *keyed(3, 3, "k", "bad"), *events(5, 4))
    batch = Learn(b"".join(plain), 2, [Unit(1, "k1", b"other", batch=2), Unit(1, "l", b"l")])
    refused = [one_of(5, "k0", b"other"), batch]
    context = Coming(house, await house.living(), [*refused, *keyed(2, 6, "new")])
    params = ForgetParams(key="k0", reason="r") if by_key else ForgetParams(source="bad", reason="r")
    await forget(cast("Any", context), params, context.progress)
    await teach(house, *events(3, 9))
    house.past = [(at, event) for at, event in house.past if event not in refused]
    gone = {"k0"} if by_key else {"k0", "k1", "k2"}
    await same(house, one, await without(house, lambda unit, at: unit.key in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + (2 if by_key else 0) + 5 + 2 + 3


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_was_refused_and_then_answered_as_a_repeat_stays(
    house: House, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """After the first adoption, which has learned what was refused; before the end of the second round, or after it."""
    one = await house.replica()
    await teach(house, *events(10, 1), *keyed(3, 3, "k", "bad"), *events(5, 4))
    other, third = one_of(5, "k0", b"other"), one_of(6, "k0", b"third")
    answered = [other, third, *keyed(1, 3, "k", "bad"), other]  # a repeat, refused, refused, a repeat
    context = Coming(house, await house.living(), [other], *([answered] if is_late else []))
    go_on = Adoption.go_on

    async def later(self: Adoption) -> None:
        if not is_late:
            await teach(house, *answered)
        await go_on(self)

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "go_on", later)
        await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), context.progress)
    at = [at for at, event in house.past if event == other]
    assert len(at) == 3
    await same(
        house,
        one,
        await without(house, lambda unit, where: unit.source == "bad" or (unit.key == "k0" and where != at[1])),
    )
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + 5 + 1


@pytest.mark.parametrize("body", [b"body", b"other"])
async def test_what_came_while_one_forgot_that_died_is_left_out_by_the_next(house: House, body: bytes) -> None:
    """Under a key that it forgot: answered as a repeat, or refused."""
    one = await house.replica()
    await teach(house, *events(10, 1), *keyed(3, 3, "k", "bad"), *events(5, 4, "other"))
    context = Coming(house, await house.living(), [one_of(5, "k0", body)])

    class Died(Exception):
        pass

    def dying(now: str, fraction: float) -> None:
        if now.startswith("looking: at") and not context.rounds:
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), dying)
    await run(house, forget, ForgetParams(source="other", reason="r"), job="next")
    await same(house, one, await without(house, lambda unit, at: unit.source is not None or unit.key == "k0"))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10


async def test_what_comes_again_all_the_time_does_not_keep_a_forgetting_for_ever(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"))
    context = Repeating(house, await house.living(), MOST_ROUNDS)
    outcome = await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), context.progress)
    assert "forget it once more" in outcome["sent_again"]
    last = house.past[-3][0]
    again = [at for at, event in house.past if isinstance(event, Learn) and event.units[0].source == "bad"][-10]
    await teach(house, *events(3, 9))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" and at < again))
    assert last >= again
    await run(house, forget, ForgetParams(source="bad", reason="r"), job="once more")
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


@pytest.mark.parametrize(
    "stage", ["looking: at", "writing the index", "making a snapshot", "looking through", "letting the store"]
)
async def test_what_came_again_is_forgotten_by_the_one_who_goes_on(house: House, stage: str) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"))
    context = Repeating(house, await house.living(), 1)

    class Died(Exception):
        pass

    def dying(now: str, fraction: float) -> None:
        if now.startswith(stage) and not context.times:
            raise Died

    params = ForgetParams(source="bad", reason="r")
    with pytest.raises(Died):
        await forget(cast("Any", context), params, dying)
    again = Repeating(
        house, await house.living(), 0, committed=True, outcome=context.job.outcome, kept=context.job.kept
    )
    outcome = await forget(cast("Any", again), params, again.progress)
    assert outcome["forgotten"] == {"requests": 20, "instances": 20}
    await teach(house, *events(3, 9))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))
    assert not any(unit.source == "bad" for unit in _learned(await house.elements()))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (refit, RefitParams(passes=1, search={})),
        (refit, RefitParams(passes=2)),
        (forget, ForgetParams(source="bad", reason="r")),
    ],
)
async def test_what_cannot_be_read_of_the_past_is_named_with_the_way_out(
    house: House, method: Any, params: Any
) -> None:
    one = await house.replica()
    lost = (await teach(house, *events(10, 1), *events(5, 2, "bad"), *events(5, 3)))[12]
    await digest_at(one, house.past[-1][0])
    await flip(house.store, (await house.living()).keys.log, lost)
    with pytest.raises(Damaged, match=f"entry {lost.entry} .*its checksum is wrong. `abound mend`"):
        await run(house, method, params)


async def test_a_retry_of_what_a_restore_took_back_stays_when_something_earlier_is_forgotten(house: House) -> None:
    one = await house.replica()
    early = (await teach(house, *events(10, 1), *events(5, 2, "bad"), *keyed(3, 4, "before")))[-1]
    taken_back = await teach(house, *keyed(5, 3, "k"), *keyed(2, 6, "l", "bad"))
    context = Context(house, await house.living(), job="restore")

    async def commit(*prefixes: str) -> None:  # after the index's end, before it is adopted
        await teach(house, *keyed(5, 3, "k"), *keyed(3, 4, "before"))

    context.commit = commit  # type: ignore[method-assign]
    await restore(cast("Any", context), RestoreParams(to=str(early), reason="back"), context.progress)
    await teach(house, *keyed(5, 3, "k"), *events(3, 5))  # all of these came before
    assert [one.key for one in _learned(await house.elements())].count("k0") == 3
    await run(house, forget, ForgetParams(source="bad", reason="r"), job="forget")
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is not None
    gone = {at.entry for at in taken_back}
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" or at.entry in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + 3 + 5 + 3


def _learned(elements: list[tuple[Offset, Any]]) -> list[Unit]:
    return [unit for _, event in elements if isinstance(event, Learn) for unit in event.units]


async def died_forgetting(
    house: House, params: ForgetParams, stage: str, outcome: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A job to forget that comes to a stage and no further; what its record has by then."""
    context = Context(house, await house.living(), job="forget", committed=outcome is not None, outcome=outcome)

    class Died(Exception):
        pass

    def dying(now: str, fraction: float) -> None:
        if now.startswith(stage):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", context), params, dying)
    return cast("dict[str, Any]", context.job.outcome)


async def test_forgetting_goes_on_when_the_reply_to_its_adoption_was_lost(house: House, tmp_path: Path) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *events(15, 2, "bad"))
    await archived(house)
    proxy = Proxy(tmp_path / "proxy", house.server.socket)
    await proxy.start()
    direct, house.store = house.store, Store(proxy.url, QUICK)
    try:
        proxy.lose_replies_to = b"\xa5adopt"
        outcome = await run(house, forget, ForgetParams(source="bad", reason="r"), job="forget")
        assert proxy.lose_replies_to is None
    finally:
        await house.store.close()
        house.store = direct
        await proxy.stop()
    assert outcome["segments_rewritten"]
    assert not any(unit.source == "bad" for unit in _learned(await house.elements()))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


async def test_the_record_of_a_forgetting_lists_what_those_who_died_have_done(house: House) -> None:
    one = await house.replica()
    model = one.model(DEFAULT_MODEL)
    vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
    await remember(house.store, model.keys, vector, RememberParams(), reading_of(model.live.config))
    secret = Learn(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="bad")])
    first = (await teach(house, *events(20, 1), secret, *events(50, 2, "bad")))[20]
    await archived(house)
    await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    before = await manifests.ids(house.store, model.keys)
    params = ForgetParams(source="bad", reason="r")
    contents = await History(house.store, house.artifacts, model.keys).contents()
    assert contents is not None
    segments = {segment.name for segment in contents.segments}
    index = (await indexes.ids(house.artifacts, model.keys))[0]
    record_so_far: dict[str, Any] | None = None
    for stage in ("making snapshots", "looking through", "rewriting", "letting the store", "clearing up"):
        record_so_far = await died_forgetting(house, params, stage, record_so_far)
    assert not any("bad" in str(event) for _, event in await house.elements())
    outcome = await run(house, forget, params, job="forget", committed=True, outcome=record_so_far)
    assert outcome["forgotten"] == {"requests": 51, "instances": 51}
    assert outcome["from"] == str(first)
    assert set(before) <= set(outcome["snapshots_deleted"])
    assert segments & set(outcome["segments_rewritten"])
    assert [*outcome["indexes_rewritten"]] == [index]
    assert index in outcome["indexes_deleted"]
    assert outcome["remembered_deleted"] == 1
    assert outcome["store_file"] == "rewritten"
    kept = set(await manifests.ids(house.store, model.keys))
    assert not kept & set(outcome["snapshots_deleted"])
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


async def test_remembered_instances_are_forgotten_by_the_one_who_goes_on(house: House) -> None:
    one = await house.replica()
    model = one.model(DEFAULT_MODEL)
    vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
    await remember(house.store, model.keys, vector, RememberParams(), reading_of(model.live.config))
    secret = Learn(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="bad")])
    await teach(house, *events(20, 1), secret, *events(5, 2))
    await archived(house)
    params = ForgetParams(source="bad", reason="r")
    so_far: dict[str, Any] | None = None
    for stage in ("looking through", "letting the store"):
        so_far = await died_forgetting(house, params, stage, so_far)
    await run(house, forget, params, job="forget", committed=True)
    assert await house.store.client.xlen(model.keys.of("remembered")) == 0
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


async def test_forgetting_goes_on_where_history_has_nothing_of_it_any_more(house: House) -> None:
    living = await house.living()
    await teach(house, *events(5, 1))
    await archived(house)
    await house.store.client.delete(living.keys.of("history"))
    await teach(house, *events(5, 3))
    await archived(house)
    await teach(house, *keyed(3, 4, "late"))
    params = ForgetParams(key="late1", reason="r")
    await died_forgetting(house, params, "letting the store")
    outcome = await run(house, forget, params, job="forget", committed=True)
    assert outcome["store_file"] == "rewritten"


async def test_forgetting_goes_on_where_it_died(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *events(15, 2, "bad"), *events(5, 3))
    await archived(house)
    await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    context = Context(house, await house.living(), job="forget")

    class Died(Exception):
        pass

    def dying(stage: str, fraction: float) -> None:
        if stage.startswith("rewriting"):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), dying)
    outcome = await run(house, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True)
    assert outcome["segments_rewritten"]
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"key": "k"},
        {"reason": "r"},
        {"reason": "r", "since": 2.0, "until": 1.0},
        {"reason": "r", "since": 1e300},
        {"reason": "r", "until": -1.0},
        {"reason": "r", "source": "x" * 513},
    ],
)
def test_forgetting_needs_a_reason_and_a_choice(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ForgetParams(**wrong)


async def test_of_two_rebuilds_at_one_time_one_waits_and_can_be_cancelled(house: House) -> None:
    await teach(house, *events(5))
    living = await house.living()
    await house.store.client.set(living.keys.of("adopting"), b'{"adoption":"one that died"}', px=1500)
    context = Context(house, living)
    context.stop_at = "waiting until another index"
    with pytest.raises(Cancelled):
        await refit(cast("Any", context), RefitParams(), context.progress)
    await run(house, refit, RefitParams(), job="another")
    assert [type(event) for _, event in await house.elements()][-1] is Adopt


async def test_a_rebuild_says_which_events_it_reads(house: House) -> None:
    offsets = await teach(house, *events(5))
    context = Context(house, await house.living())
    await refit(cast("Any", context), RefitParams(), context.progress)
    await restore(cast("Any", context), RestoreParams(to=str(offsets[2]), reason="r"), context.progress)
    assert [(after, until and until.entry) for after, until in context.ranges] == [
        (None, offsets[4].entry),
        (None, offsets[2].entry),
    ]


async def _of_history(house: House) -> list[Any]:
    """The events in history and log, as they are there by now."""
    keys = (await house.living()).keys
    found = []
    async for elements in past.entries(house.store, house.artifacts, keys, START):
        found += [decode_entry(fields).event for _, fields in elements]
    return found


async def test_forgetting_costs_as_much_however_many_were_before_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, load, loaded = await house.replica(), indexes.load, [0]

    async def counted(*given: Any) -> LiveModel:
        loaded[-1] += 1
        return await load(*given)

    gone: set[str | None] = set()
    middle = START
    for n in range(4):
        at = await teach(house, *keyed(8, n, f"{n}a", "stays"), *events(8, n + 10, f"{n}"), *events(5, n + 20))
        await teach(house, *keyed(8, n, f"{n - 1}a", "stays"))  # once more, in vain
        middle = at[10] if n == 2 else middle
        await archived(house)
        gone.add(f"{n}")
        with monkeypatch.context() as patch:
            patch.setattr(indexes, "load", counted)
            outcome = await run(house, forget, ForgetParams(source=f"{n}", reason="asked for"), job=f"forget {n}")
        loaded.append(0)
        assert outcome["forgotten"]["requests"] == 8
        assert not outcome["indexes_rewritten"]
        (kept,) = await indexes.ids(house.artifacts, (await house.living()).keys)
        said = await _of_history(house)
        assert [event.index for event in said if isinstance(event, Adopt)] == [kept]
        assert [event.token for event in said if isinstance(event, Mark)] == [f"adopted forget {i}" for i in range(n)]
        await same(house, one, await without(house, lambda unit, at: unit.source in gone))
    assert max(loaded[2:4]) <= loaded[1], loaded
    await run(house, restore, RestoreParams(to=str(middle), reason="back"), job="restore")
    await same(house, one, await without(house, lambda unit, at: unit.source in gone, middle))
    await house.stop(one)
    await same(house, await house.replica(), await without(house, lambda unit, at: unit.source in gone, middle))


@pytest.mark.parametrize("given_up", [False, True])
async def test_what_a_forgetting_has_left_in_history_does_not_come_back(house: House, given_up: bool) -> None:
    """As where a process died before history was written anew, and another job came first."""
    one, gone = await house.replica(), ("bad", "other")
    at = await teach(house, *events(20, 1), *events(10, 2, "other"), *events(15, 3, "bad"), *events(5, 4))
    await archived(house)
    await died_forgetting(house, ForgetParams(source="bad", reason="r"), "rewriting")
    await teach(house, *events(10, 5, "other"), *events(5, 6))
    for method, params in (
        (refit, RefitParams(search={}, passes=1)),
        (restore, RestoreParams(to=str(at[-1]), reason="back")),
    ):
        with pytest.raises(Conflict, match="the job forget has not taken"):
            await run(house, method, params, job="between")
    await teach(house, *events(5, 7, "bad"))  # sent anew, after it was forgotten
    await run(house, forget, ForgetParams(source="other", reason="r"), job="next")
    expected = await without(
        house, lambda unit, where: unit.source == "other" or (unit.source == "bad" and where <= at[-1])
    )
    await same(house, one, expected)
    if not given_up:
        await run(house, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True)
        await same(house, one, expected)
    learned = _learned([(START, event) for event in await _of_history(house)])
    assert [unit.source for unit in learned if unit.source in gone] == ["bad"] * 5
    await run(house, forget, ForgetParams(source="bad", reason="r"), job="last")
    assert [event.adoption for event in await _of_history(house) if isinstance(event, Adopt)] == ["last"]
    await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    await same(house, one, await without(house, lambda unit, at: unit.source in gone))


async def test_a_forgetting_goes_on_after_the_next_has_put_a_mark_in_its_adoption_s_place(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *events(15, 2, "bad"), *events(10, 3, "other"))
    await archived(house)
    so_far = await died_forgetting(house, ForgetParams(source="bad", reason="r"), "letting the store")
    await run(house, forget, ForgetParams(source="other", reason="r"), job="next")
    adopted = [event.adoption for event in await _of_history(house) if isinstance(event, Adopt)]
    assert adopted == ["next"]
    outcome = await run(
        house, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True, outcome=so_far
    )
    assert (outcome["forgotten"]["requests"], bool(outcome["segments_rewritten"])) == (15, True)
    assert [event.adoption for event in await _of_history(house) if isinstance(event, Adopt)] == ["next"]
    await same(house, one, await without(house, lambda unit, at: unit.source in ("bad", "other")))


@pytest.mark.parametrize("rounds", [1, 2])
async def test_who_goes_on_with_a_prepared_index_says_what_it_forgets(
    house: House, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """One died before it adopted, with what it said lost by the store; or in its second round, before it said it."""
    one = await house.replica()
    await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"), *events(5, 4, "other"))
    await archived(house)
    params, keys = ForgetParams(source="bad", reason="r"), (await house.living()).keys
    context = Repeating(house, await house.living(), rounds - 1)

    class Died(Exception):
        pass

    append, n_appended = Adoption._append, [0]

    async def dying_append(self: Adoption, entry: Entry, adopts: str = "", index: Any = None) -> Offset:
        n_appended[0] += 1
        if adopts and rounds == 1:
            raise Died
        at = await append(self, entry, adopts, index)
        if not adopts and n_appended[0] > 2:
            raise Died
        return at

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "_append", dying_append)
        with pytest.raises(Died):
            await forget(cast("Any", context), params, context.progress)
    assert "forget" in await forgotten.unfinished(house.store, keys)
    if rounds == 1:
        await house.store.client.delete(keys.of("forgetting"))
    again = Repeating(
        house, await house.living(), 0, committed=True, outcome=context.job.outcome, kept=context.job.kept
    )

    def dying(now: str, fraction: float) -> None:
        if now.startswith("making snapshots"):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", again), params, dying)
    adopted = [event for event in await _of_history(house) if isinstance(event, Adopt)]
    assert len(adopted) == rounds
    assert (await forgotten.unfinished(house.store, keys))["forget"].after == adopted[-1].after
    with pytest.raises(Conflict, match="the job forget has not taken"):
        await run(house, refit, RefitParams(search={}, passes=1), job="between")
    await run(house, forget, ForgetParams(source="other", reason="r"), job="next")
    await same(house, one, await without(house, lambda unit, at: unit.source in ("bad", "other")))
    assert not any(unit.source == "bad" for unit in _learned([(START, said) for said in await _of_history(house)]))


@pytest.mark.parametrize("says_complete", [False, True])
async def test_a_forgetting_that_older_code_has_finished_does_not_stop_the_others_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch, says_complete: bool
) -> None:
    """As where workers are replaced one by one: the older code does not know what was said before the adoption."""
    one = await house.replica()
    await teach(house, *events(20, 1), *events(10, 2, "bad"), *events(10, 3))
    await archived(house)
    keys, saying = (await house.living()).keys, forgotten.saying
    with monkeypatch.context() as patch:
        patch.setattr(forgotten, "saying", lambda keys, adoptions, jobs: saying(keys, adoptions, []))
        await run(house, forget, ForgetParams(source="bad", reason="r"), job="forget")
    if not says_complete:
        await house.store.client.delete(keys.of("forgotten"))
    with pytest.raises(Conflict, match="the job forget has not taken"):
        await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    await run(house, forget, ForgetParams(source="bad", reason="r"), job="the same once more")
    assert not await forgotten.unfinished(house.store, keys)
    await run(house, refit, RefitParams(search={}, passes=1), job="refit")
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))
