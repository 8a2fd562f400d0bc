"""What comes while its key is forgotten, or came before and comes again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from abound.jobs.replace import forget, refit
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import AdoptEvent, LearnEvent
from abound.replace.redaction import ForgetParams
from abound.replace.refit import RefitParams
from abound_core.errors import Corrupted, NotReady
from abound_core.model.entry_application import Unit
from tests.support.lab import Lab, digest_at, events
from tests.support.replace_context import Context, keyed, one_of, run, same, teach, without
from tests.support.streams import drafts, flip


class Arriving(Context):
    """Requests arrive after the search of the first attempt: before its commit, or between commit and adoption."""

    def __init__(self, lab: Lab, living: Any, arriving: list[LearnEvent], *, is_committed: bool = False) -> None:
        super().__init__(lab, living)
        self.lab = lab
        self.arriving = arriving
        self.is_committed = is_committed

    async def will_write(self, prefix: str) -> None:
        await super().will_write(prefix)
        if not self.is_committed:
            await teach(self.lab, *self.arriving)

    async def commit(self, *prefixes: str) -> None:
        await super().commit(*prefixes)
        if self.is_committed:
            await teach(self.lab, *self.arriving)


async def forget_in_two_attempts(lab: Lab, arriving: list[LearnEvent], params: ForgetParams) -> Any:
    """Forget; the first attempt adopts nothing, because requests with forgotten keys arrive. Return the outcome."""
    context = Arriving(lab, await lab.living(), arriving)
    with pytest.raises(NotReady, match="requests to forget arrive again; stop their sender"):
        await forget(cast("Any", context), params, context.progress)
    assert "commit" not in context.stages
    assert not any(isinstance(event, AdoptEvent) for _, event in await lab.elements())
    return await run(lab, forget, params)


@pytest.mark.parametrize("by_time", [False, True])
async def test_a_repeat_that_comes_while_it_is_forgotten_is_forgotten_as_well(lab: Lab, by_time: bool) -> None:
    """It was answered as a repeat, and would be learned on top of the index that is adopted."""
    one = await lab.replica()
    offsets = await teach(lab, *events(20, 1), *keyed(10, 3, "k", "bad"), *keyed(5, 4, "good"))
    async with asyncio.timeout(60):
        while int((await lab.store.client.time())[0]) <= offsets[-1].milliseconds / 1000 + 0.001:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    params = ForgetParams(source=None if by_time else "bad", until=offsets[-1].milliseconds / 1000, reason="r")
    outcome = await forget_in_two_attempts(lab, [*keyed(10, 3, "k", "bad"), *events(2, 0)], params)
    assert "sent_again" not in outcome
    assert outcome["forgotten"]["requests"] == (45 if by_time else 20)
    await teach(lab, *events(3, 9))
    by = offsets[-1] if by_time else offsets[29]
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad" or (by_time and at <= by)))
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is None
    await teach(lab, *keyed(10, 3, "k", "bad"))  # what comes now is sent anew
    last = lab.past[-1][0]
    await one.wait_for(DEFAULT_MODEL, last, 10)
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is not None


@pytest.mark.parametrize("by_key", [False, True])
async def test_what_is_refused_while_its_key_is_forgotten_is_not_learned_by_the_adoption(
    lab: Lab, by_key: bool
) -> None:
    """Another body under the key, alone or in a batch: refused by the live state, new to the index that is adopted."""
    one = await lab.replica()
    plain = [draft.records for draft in drafts(2, 7)]
    await teach(lab, *events(10, 1), *keyed(3, 3, "k", "bad"), *events(5, 4))
    batch = LearnEvent(b"".join(plain), 2, [Unit(1, "k1", b"other", batch=2), Unit(1, "l", b"l")])
    refused = [one_of(5, "k0", b"other"), batch]
    params = ForgetParams(key="k0", reason="r") if by_key else ForgetParams(source="bad", reason="r")
    await forget_in_two_attempts(lab, [*refused, *keyed(2, 6, "new")], params)
    await teach(lab, *events(3, 9))
    lab.past = [(at, event) for at, event in lab.past if event not in refused]
    gone = {"k0"} if by_key else {"k0", "k1", "k2"}
    await same(lab, one, await without(lab, lambda unit, at: unit.key in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + (2 if by_key else 0) + 5 + 2 + 3


async def test_what_comes_between_commit_and_adoption_is_named_and_forgotten_by_the_next_job(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(20, 1), *keyed(10, 3, "k", "bad"))
    params = ForgetParams(source="bad", reason="r")
    context = Arriving(lab, await lab.living(), keyed(10, 3, "k", "bad"), is_committed=True)
    outcome = await forget(cast("Any", context), params, context.progress)
    assert "run forget once more" in outcome["sent_again"]
    again = lab.past[-10][0]
    await teach(lab, *events(3, 9))
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad" and at < again))
    await run(lab, forget, params, job="once more")
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad"))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (refit, RefitParams(passes=1, search={})),
        (refit, RefitParams(passes=2)),
        (forget, ForgetParams(source="bad", reason="r")),
    ],
)
async def test_what_cannot_be_read_of_the_past_is_named_with_the_way_out(lab: Lab, method: Any, params: Any) -> None:
    one = await lab.replica()
    lost = (await teach(lab, *events(10, 1), *events(5, 2, "bad"), *events(5, 3)))[12]
    await digest_at(one, lab.past[-1][0])
    await flip(lab.store, (await lab.living()).keys.log, lost)
    with pytest.raises(Corrupted, match=f"entry {lost.entry} .*its checksum is wrong. Restore the store from a backup"):
        await run(lab, method, params)
