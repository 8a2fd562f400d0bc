"""Going back to an offset, as a job does it."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from abound.history.history import History
from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, forget, restore
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import AdoptEvent, ConfigureEvent, LearnEvent
from abound.replace.redaction import ForgetParams
from abound_core.errors import InvalidInstance, UnknownOffset
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START
from tests.support.lab import Lab, apply, digest_at, digest_of, events
from tests.support.replace_context import Context, archived, keyed, learned_units, run, same, teach, without
from tests.support.streams import drafts


async def test_restore_takes_the_index_back_and_goes_on_from_there(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(30, 1))
    await teach(lab, ConfigureEvent({"d_max": 9}), *events(20, 2))
    await teach(lab, *events(10, 3))
    outcome = await run(lab, restore, RestoreParams(to=str(early[-1]), reason="a bad batch"))
    await teach(lab, *events(5, 4))
    expected = LiveModel((await lab.living()).config, (8, 8))
    for at, event in [*lab.past[:30], *lab.past[-5:]]:
        apply(expected, at, event)
    assert outcome["learned"] == 30
    assert outcome["reason"] == "a bad batch"
    assert [event.reason for _, event in await lab.elements() if isinstance(event, AdoptEvent)] == ["a bad batch"]
    await same(lab, one, expected)


async def test_restore_into_the_middle_of_an_entry(lab: Lab) -> None:
    one = await lab.replica()
    records = [draft.records for draft in drafts(6)]
    units = [Unit(1), Unit(2), Unit(1, batch=2), Unit(1), Unit(1)]
    (at,) = await teach(lab, LearnEvent(b"".join(records), 6, units))
    for position, n in ((0, 1), (1, 3), (3, 5), (5, 6)):
        await run(lab, restore, RestoreParams(to=str(at._replace(position=position)), reason="r"), job=f"j{position}")
        last = (await lab.elements())[-1][0]
        await digest_at(one, last)
        assert one.model(DEFAULT_MODEL).live.n_learned == n


async def test_restore_to_the_offset_of_an_adoption(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(10, 1), *events(3, 2, "bad"))
    await teach(lab, *events(5, 3))
    first = await run(lab, restore, RestoreParams(to=str(early[-1]), reason="back"), job="first")
    await teach(lab, *events(5, 4))
    await run(lab, restore, RestoreParams(to=first["adopted"], reason="back again"), job="second")
    late = await teach(lab, *events(5, 5))
    expected = LiveModel((await lab.living()).config, (8, 8))
    for at, event in [*lab.past[:13], *lab.past[-5:]]:
        apply(expected, at, event)
    await same(lab, one, expected)
    await run(lab, forget, ForgetParams(source="bad", reason="asked for"), job="forget")
    expected = LiveModel((await lab.living()).config, (8, 8))
    for at, event in [*lab.past[:10], *lab.past[-5:]]:
        apply(expected, at, event)
    assert late[-1] == lab.past[-1][0]
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await digest_of(expected)


async def test_restore_past_the_log_or_before_history_is_refused(lab: Lab) -> None:
    await teach(lab, *events(5))
    with pytest.raises(InvalidInstance, match="ends at"):
        await run(lab, restore, RestoreParams(to=f"{2**50}-0.0", reason="r"))
    living = await lab.living()
    await archived(lab)
    await lab.store.client.delete(living.keys.key("history"))  # lost
    await teach(lab, *events(5))
    await archived(lab)
    contents = await History(lab.store, lab.artifacts, living.keys).manifest()
    assert contents is not None
    with pytest.raises(UnknownOffset, match=str(contents.start)) as refused:
        await run(lab, restore, RestoreParams(to=str(lab.past[1][0]), reason="r"))
    assert refused.value.first == contents.start
    assert not [event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]
    one = await lab.replica()
    outcome = await run(lab, restore, RestoreParams(to=str(contents.start), reason="r"), job="first")
    assert outcome["learned"] == len([at for at, _ in lab.past if at <= contents.start])
    assert one.model(DEFAULT_MODEL).live.n_learned == outcome["learned"]
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_an_empty_model_can_be_restored(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(5))
    await run(lab, restore, RestoreParams(to=str(START), reason="begin anew"))
    await digest_at(one, (await lab.elements())[-1][0])
    assert one.model(DEFAULT_MODEL).live.n_learned == 0


async def test_a_restore_that_died_after_its_commit_is_not_done_twice_whatever_clocks_say(lab: Lab) -> None:
    """The clock by which it was recorded is far ahead of the store's."""
    one = await lab.replica()
    offsets = await teach(lab, *events(20, 1))
    context = Context(lab, await lab.living())
    params = RestoreParams(to=str(offsets[9]), reason="r")
    outcome = await restore(cast("Any", context), params, context.progress)
    (last,) = await teach(lab, *events(1, 3))
    again = Context(lab, await lab.living(), committed=True)
    again.job.created = time.time() + 3600
    assert (await restore(cast("Any", again), params, again.progress))["adopted"] == outcome["adopted"]
    assert len([event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]) == 1
    await one.wait_for(DEFAULT_MODEL, last, 10)
    assert one.model(DEFAULT_MODEL).live.n_learned == 11


async def test_a_retry_of_what_a_restore_took_back_stays_when_something_earlier_is_forgotten(lab: Lab) -> None:
    one = await lab.replica()
    early = (await teach(lab, *events(10, 1), *events(5, 2, "bad"), *keyed(3, 4, "before")))[-1]
    taken_back = await teach(lab, *keyed(5, 3, "k"), *keyed(2, 6, "l", "bad"))
    context = Context(lab, await lab.living(), job="restore")

    async def commit(*prefixes: str) -> None:  # after the index's end, before it is adopted
        await teach(lab, *keyed(5, 3, "k"), *keyed(3, 4, "before"))

    context.commit = commit  # type: ignore[method-assign]
    await restore(cast("Any", context), RestoreParams(to=str(early), reason="back"), context.progress)
    await teach(lab, *keyed(5, 3, "k"), *events(3, 5))  # all of these came before
    assert [one.key for one in learned_units(await lab.elements())].count("k0") == 3
    await run(lab, forget, ForgetParams(source="bad", reason="r"), job="forget")
    assert one.model(DEFAULT_MODEL).live.receipts.get("k0") is not None
    gone = {at.entry for at in taken_back}
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad" or at.entry in gone))
    assert one.model(DEFAULT_MODEL).live.n_learned == 10 + 3 + 5 + 3
