"""What comes while its key is forgotten, or came before and comes again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from abound.core.errors import Corrupted
from abound.core.model.entry_application import Unit
from abound.service.jobs.rebuild import forget, refit
from abound.service.log.catalog import DEFAULT_MODEL
from abound.service.log.events import LearnEvent
from abound.service.rebuild.forget import MAX_ROUNDS
from abound.service.rebuild.redaction import ForgetParams
from abound.service.rebuild.refit import RefitParams
from tests.support.adoption_house import House, digest_at, events
from tests.support.rebuild_context import Context, Repeating, keyed, learned_units, one_of, run, same, teach, without
from tests.support.streams import drafts, flip


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_repeat_that_comes_while_it_is_forgotten_is_forgotten_as_well(
    house: House, times: int, by_time: bool
) -> None:
    """It was answered as a repeat, and would be learned on top of the index that is adopted."""
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

    def __init__(self, house: House, living: Any, *rounds: list[LearnEvent], **given: Any) -> None:
        super().__init__(house, living, "forget", **given)
        self.house = house
        self.rounds = [*rounds]

    async def commit(self, *prefixes: str) -> None:
        await super().commit(*prefixes)
        if self.rounds:
            await teach(self.house, *self.rounds.pop(0))


@pytest.mark.parametrize("by_key", [False, True])
async def test_what_is_refused_while_its_key_is_forgotten_is_not_learned_by_the_adoption(
    house: House, by_key: bool
) -> None:
    """Another body under the key, alone or in a batch: refused by the live state, new to the index that is adopted."""
    one = await house.replica()
    plain = [draft.records for draft in drafts(2, 7)]
    await teach(house, *events(10, 1), *keyed(3, 3, "k", "bad"), *events(5, 4))
    batch = LearnEvent(b"".join(plain), 2, [Unit(1, "k1", b"other", batch=2), Unit(1, "l", b"l")])
    refused = [one_of(5, "k0", b"other"), batch]
    context = Coming(house, await house.living(), [*refused, *keyed(2, 6, "new")])
    params = ForgetParams(key="k0", reason="r") if by_key else ForgetParams(source="bad", reason="r")
    await forget(cast("Any", context), params, context.progress)
    await teach(house, *events(3, 9))
    house.past = [(at, event) for at, event in house.past if event not in refused]
    gone = {"k0"} if by_key else {"k0", "k1", "k2"}
    await same(house, one, await without(house, lambda unit, at: unit.key in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + (2 if by_key else 0) + 5 + 2 + 3


async def test_what_comes_again_all_the_time_does_not_keep_a_forgetting_for_ever(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"))
    context = Repeating(house, await house.living(), MAX_ROUNDS)
    outcome = await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), context.progress)
    assert "run forget once more" in outcome["sent_again"]
    last = house.past[-3][0]
    again = [at for at, event in house.past if isinstance(event, LearnEvent) and event.units[0].source == "bad"][-10]
    await teach(house, *events(3, 9))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" and at < again))
    assert last >= again
    await run(house, forget, ForgetParams(source="bad", reason="r"), job="once more")
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


@pytest.mark.parametrize(
    "stage",
    ["searching: at", "writing the state file", "making a snapshot", "deleting stored predictions", "making the store"],
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
    again = Repeating(house, await house.living(), 0, committed=True, outcome=context.job.outcome)
    outcome = await forget(cast("Any", again), params, again.progress)
    assert outcome["forgotten"] == {"requests": 20, "instances": 20}
    await teach(house, *events(3, 9))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))
    assert not any(unit.source == "bad" for unit in learned_units(await house.elements()))


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
    with pytest.raises(Corrupted, match=f"entry {lost.entry} .*its checksum is wrong. `abound mend`"):
        await run(house, method, params)
