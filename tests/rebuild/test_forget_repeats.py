"""What comes while its key is forgotten, or came before and comes again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from abound.jobs.rebuild import forget, refit
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import AdoptEvent, LearnEvent
from abound.rebuild.redaction import ForgetParams
from abound.rebuild.refit import RefitParams
from abound_core.errors import Corrupted, NotReady
from abound_core.model.entry_application import Unit
from tests.support.adoption_house import House, digest_at, events
from tests.support.rebuild_context import Context, keyed, one_of, run, same, teach, without
from tests.support.streams import drafts, flip


class Arriving(Context):
    """Requests arrive after the search of the first attempt: before its commit, or between commit and adoption."""

    def __init__(self, house: House, living: Any, arriving: list[LearnEvent], *, is_committed: bool = False) -> None:
        super().__init__(house, living)
        self.house = house
        self.arriving = arriving
        self.is_committed = is_committed

    async def will_write(self, prefix: str) -> None:
        await super().will_write(prefix)
        if not self.is_committed:
            await teach(self.house, *self.arriving)

    async def commit(self, *prefixes: str) -> None:
        await super().commit(*prefixes)
        if self.is_committed:
            await teach(self.house, *self.arriving)


async def forget_in_two_attempts(house: House, arriving: list[LearnEvent], params: ForgetParams) -> Any:
    """Forget; the first attempt adopts nothing, because requests with forgotten keys arrive. Return the outcome."""
    context = Arriving(house, await house.living(), arriving)
    with pytest.raises(NotReady, match="requests to forget arrive again; stop their sender"):
        await forget(cast("Any", context), params, context.progress)
    assert "commit" not in context.stages
    assert not any(isinstance(event, AdoptEvent) for _, event in await house.elements())
    return await run(house, forget, params)


@pytest.mark.parametrize("by_time", [False, True])
async def test_a_repeat_that_comes_while_it_is_forgotten_is_forgotten_as_well(house: House, by_time: bool) -> None:
    """It was answered as a repeat, and would be learned on top of the index that is adopted."""
    one = await house.replica()
    offsets = await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"), *keyed(5, 4, "good"))
    async with asyncio.timeout(60):
        while int((await house.store.client.time())[0]) <= offsets[-1].milliseconds / 1000 + 0.001:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    params = ForgetParams(source=None if by_time else "bad", until=offsets[-1].milliseconds / 1000, reason="r")
    outcome = await forget_in_two_attempts(house, [*keyed(10, 3, "k", "bad"), *events(2, 0)], params)
    assert "sent_again" not in outcome
    assert outcome["forgotten"]["requests"] == (45 if by_time else 20)
    await teach(house, *events(3, 9))
    by = offsets[-1] if by_time else offsets[29]
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" or (by_time and at <= by)))
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is None
    await teach(house, *keyed(10, 3, "k", "bad"))  # what comes now is sent anew
    last = house.past[-1][0]
    await one.wait_for(DEFAULT_MODEL, last, 10)
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is not None


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
    params = ForgetParams(key="k0", reason="r") if by_key else ForgetParams(source="bad", reason="r")
    await forget_in_two_attempts(house, [*refused, *keyed(2, 6, "new")], params)
    await teach(house, *events(3, 9))
    house.past = [(at, event) for at, event in house.past if event not in refused]
    gone = {"k0"} if by_key else {"k0", "k1", "k2"}
    await same(house, one, await without(house, lambda unit, at: unit.key in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + (2 if by_key else 0) + 5 + 2 + 3


async def test_what_comes_between_commit_and_adoption_is_named_and_forgotten_by_the_next_job(house: House) -> None:
    one = await house.replica()
    await teach(house, *events(20, 1), *keyed(10, 3, "k", "bad"))
    params = ForgetParams(source="bad", reason="r")
    context = Arriving(house, await house.living(), keyed(10, 3, "k", "bad"), is_committed=True)
    outcome = await forget(cast("Any", context), params, context.progress)
    assert "run forget once more" in outcome["sent_again"]
    again = house.past[-10][0]
    await teach(house, *events(3, 9))
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad" and at < again))
    await run(house, forget, params, job="once more")
    await same(house, one, await without(house, lambda unit, at: unit.source == "bad"))


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
    with pytest.raises(Corrupted, match=f"entry {lost.entry} .*its checksum is wrong. Restore the store from a backup"):
        await run(house, method, params)
