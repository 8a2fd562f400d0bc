"""Replacing a model beside those who learn: nothing is lost or doubled, wherever it ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, refit, restore
from abound.log import stream
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.replace.copying import Past
from abound.replace.refit import RefitParams
from abound.replace.replace import Replacement, replace_model
from tests.support.lab import Lab, digest_at, events
from tests.support.replace_context import Context, end_of, of_history, run, teach
from tests.support.replicas import until
from tests.support.streams import drafts


async def same_again(replacement: Replacement) -> Past:
    """A replacement by the same: the model as it is."""
    from abound.history.replay import replay

    place = replacement.context
    model = await replay(place.store, replacement.living, replacement.after, artifacts=place.artifacts)
    return Past(model=model, source=replacement.living, tail_after=replacement.after)


async def test_two_at_once_come_one_after_the_other(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(20, 1))
    await teach(lab, *events(20, 2))
    await asyncio.gather(
        run(lab, restore, RestoreParams(to=str(early[-1]), reason="r"), job="restore"),
        run(lab, refit, RefitParams(search={}, passes=2), job="refit"),
    )
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 20
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_a_delete_that_does_not_know_of_the_replacement_deletes_the_model(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await one.models.create("m", one.model(DEFAULT_MODEL).live.config)
    await until(lambda: "m" in other.models.names())
    living = (await read_catalog(lab.store)).get("m")
    assert living is not None
    await replace_model(await lab.context(name="m", origin=living.origin), same_again, "again")
    await one.models.delete("m")
    assert one.models.names() == [DEFAULT_MODEL]


async def test_offsets_keep_their_order_and_keys_their_answers(lab: Lab) -> None:
    one = await lab.replica()
    keyed_draft = msgspec.structs.replace(drafts(1, 1)[0], key="k", body=b"body")
    await one.learn(DEFAULT_MODEL, [keyed_draft])
    (before,) = await one.learn(DEFAULT_MODEL, drafts(1, 2))
    await replace_model(await lab.context(), same_again, "again")
    (again,) = await one.learn(DEFAULT_MODEL, [keyed_draft])
    (after,) = await one.learn(DEFAULT_MODEL, drafts(1, 3))
    assert again.offset < before.offset < after.offset
    await one.wait_for(DEFAULT_MODEL, before.offset, 1)
    assert one.model(DEFAULT_MODEL).live.n_learned == 3
    trim = await stream.trim_of(lab.store, one.model(DEFAULT_MODEL).keys.log)
    assert not trim.is_past(one.model(DEFAULT_MODEL).offset)


async def test_a_large_model_is_not_kept_for_an_undo(lab: Lab) -> None:
    await teach(lab, *events(20, 1))
    await replace_model(await lab.context(undo_bytes=10), same_again, "again")
    assert DEFAULT_MODEL not in (await read_catalog(lab.store)).former


async def test_history_is_linked_and_not_written_again(lab: Lab) -> None:
    await lab.replica()
    await teach(lab, *events(200, 1))
    await lab.archived()
    await teach(lab, *events(10, 2))
    before = await lab.living()
    files = {path.stat().st_ino for path in lab.folder.rglob("*.seg")}
    await run(lab, refit, RefitParams(search={}, passes=2), job="refit")
    own = {path.stat().st_ino for path in lab.folder.rglob(f"{(await lab.living()).keys.incarnation}/history/*.seg")}
    assert before.keys != (await lab.living()).keys
    assert files <= own
    assert len(own) == len(files) + 1  # what was in the log only
    learned = [event for event in await of_history(lab) if getattr(event, "units", None)]
    assert len(learned) == 210


async def test_a_job_that_was_done_is_not_done_again(lab: Lab) -> None:
    one = await lab.replica()
    early = await teach(lab, *events(20, 1))
    params = RestoreParams(to=str(early[9]), reason="r")
    context = Context(lab, await lab.living())
    await restore(cast("Any", context), params, context.progress)
    await teach(lab, *events(1, 3))
    again = Context(lab, await lab.living(), committed=True, outcome=context.job.outcome)
    await restore(cast("Any", again), params, again.progress)
    await digest_at(one, await end_of(lab))
    assert one.model(DEFAULT_MODEL).live.n_learned == 11
