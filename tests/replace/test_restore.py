"""Going back to an offset, as a job does it."""

from __future__ import annotations

import pytest

from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, restore
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ConfigureEvent, LearnEvent
from abound.versions.activation import activate, read_active
from abound_core.errors import InvalidInstance, UnknownOffset
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START
from tests.support.lab import Lab, apply, digest_at, events
from tests.support.replace_context import end_of, run, same, teach
from tests.support.small_versions import fitted, place, write
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
    await same(lab, one, expected)


async def test_restore_into_the_middle_of_an_entry(lab: Lab) -> None:
    one = await lab.replica()
    records = [draft.records for draft in drafts(6)]
    units = [Unit(1), Unit(2), Unit(1, batch=2), Unit(1), Unit(1)]
    (at,) = await teach(lab, LearnEvent(b"".join(records), 6, units))
    for position, n in ((5, 6), (3, 5), (1, 3), (0, 1)):  # what a restore discards is gone
        await run(lab, restore, RestoreParams(to=str(at._replace(position=position)), reason="r"), job=f"j{position}")
        await digest_at(one, await end_of(lab))
        assert one.model(DEFAULT_MODEL).live.n_learned == n


async def test_restore_past_the_log_or_before_history_is_refused(lab: Lab) -> None:
    await teach(lab, *events(5))
    with pytest.raises(InvalidInstance, match="ends at"):
        await run(lab, restore, RestoreParams(to=f"{2**50}-0.0", reason="r"))
    living = await lab.living()
    await lab.archived()
    await lab.store.client.delete(living.keys.key("history"))  # lost
    await teach(lab, *events(5))
    await lab.archived()
    contents = await lab.contents()
    assert contents is not None
    with pytest.raises(UnknownOffset, match=str(contents.start)) as refused:
        await run(lab, restore, RestoreParams(to=str(lab.past[1][0]), reason="r"))
    assert refused.value.first == contents.start
    assert (await lab.living()).keys == living.keys
    one = await lab.replica()
    outcome = await run(lab, restore, RestoreParams(to=str(contents.start), reason="r"), job="first")
    assert outcome["learned"] == len([at for at, _ in lab.past if at <= contents.start])
    assert one.model(DEFAULT_MODEL).live.n_learned == outcome["learned"]
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_an_empty_model_can_be_restored(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(5))
    await run(lab, restore, RestoreParams(to=str(START), reason="begin anew"))
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 0


async def test_a_restore_to_before_an_activation_keeps_what_is_active(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(5, 1))
    await teach(lab, *events(5, 2))
    card = await write(lab.artifacts, (await lab.living()).keys, fitted("v"))
    await activate(place(lab.store, lab.artifacts, (await lab.living()).keys), card.id, "a test")
    await run(lab, restore, RestoreParams(to=str(early[-1]), reason="r"))
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 5
    assert one.model(DEFAULT_MODEL).live.serving.version == card.id
    one.model(DEFAULT_MODEL).check_serving()
    assert (await read_active(lab.store, (await lab.living()).keys)).version == card.id
