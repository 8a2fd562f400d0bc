"""Replacing a model, and going back to an offset, as jobs do it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, refit, restore
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.replace.copying import Copy, Past
from abound.replace.refit import RefitParams
from abound.replace.replace import Replacement, replace_model
from abound.versions.activation import activate, read_active
from abound_core.errors import Cancelled, InvalidInstance, UnknownOffset
from tests.support.lab import Context, Lab, digest_at, events, model_of, replace_by
from tests.support.small_versions import fitted, place, write
from tests.support.streams import drafts


async def same_again(replacement: Replacement) -> Past:
    """A replacement by the same: the model as it is."""
    from abound.history.replay import replay

    place = replacement.context
    model = await replay(place.store, replacement.living, replacement.after, artifacts=place.artifacts)
    return Past(model=model, source=replacement.living, tail_after=replacement.after)


async def test_a_replacement_that_fails_opens_the_log_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await lab.teach(*events(5, 1))

    async def fail(*_: Any) -> None:
        raise Cancelled("the job was told to stop")

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "finish", fail)  # the log is closed by then
        with pytest.raises(Cancelled):
            await replace_by(lab, model_of(3, 5))
    await one.learn(DEFAULT_MODEL, drafts(2, 9))
    assert one.model(DEFAULT_MODEL).live.n_learned == 7


async def test_a_large_model_is_not_kept_for_an_undo(lab: Lab) -> None:
    await lab.teach(*events(20, 1))
    await replace_model(await lab.context(undo_bytes=10), same_again, "again")
    assert DEFAULT_MODEL not in (await read_catalog(lab.store)).former


async def test_history_is_linked_and_not_written_again(lab: Lab) -> None:
    await lab.replica()
    await lab.teach(*events(200, 1))
    await lab.archived()
    await lab.teach(*events(10, 2))
    before = await lab.living()
    files = {path.stat().st_ino for path in lab.folder.rglob("*.seg")}
    await lab.run(refit, RefitParams(search={}, passes=2), job="refit")
    own = {path.stat().st_ino for path in lab.folder.rglob(f"{(await lab.living()).keys.incarnation}/history/*.seg")}
    assert before.keys != (await lab.living()).keys
    assert files <= own
    assert len(own) == len(files) + 1  # what was in the log only
    learned = [event for event in await lab.events_of_history() if getattr(event, "units", None)]
    assert len(learned) == 210


async def test_a_job_that_was_done_is_not_done_again(lab: Lab) -> None:
    one = await lab.replica()
    early = await lab.teach(*events(20, 1))
    params = RestoreParams(to=str(early[9]), reason="r")
    context = Context(lab, await lab.living())
    await restore(cast("Any", context), params, context.progress)
    await lab.teach(*events(1, 3))
    again = Context(lab, await lab.living(), committed=True, outcome=context.job.outcome)
    await restore(cast("Any", again), params, again.progress)
    await digest_at(one, await lab.end())
    assert one.model(DEFAULT_MODEL).live.n_learned == 11


# restore


async def test_restore_past_the_log_or_before_history_is_refused(lab: Lab) -> None:
    await lab.teach(*events(5))
    with pytest.raises(InvalidInstance, match="ends at"):
        await lab.run(restore, RestoreParams(to=f"{2**50}-0.0", reason="r"))
    living = await lab.living()
    await lab.archived()
    await lab.store.client.delete(living.keys.key("history"))  # lost
    await lab.teach(*events(5))
    await lab.archived()
    contents = await lab.contents()
    with pytest.raises(UnknownOffset, match=str(contents.start)) as refused:
        await lab.run(restore, RestoreParams(to=str(lab.past[1][0]), reason="r"))
    assert refused.value.first == contents.start
    assert (await lab.living()).keys == living.keys
    one = await lab.replica()
    outcome = await lab.run(restore, RestoreParams(to=str(contents.start), reason="r"), job="first")
    assert outcome["learned"] == len([at for at, _ in lab.past if at <= contents.start])
    assert one.model(DEFAULT_MODEL).live.n_learned == outcome["learned"]
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_a_restore_to_before_an_activation_keeps_what_is_active(lab: Lab) -> None:
    one = await lab.replica()
    early = await lab.teach(*events(5, 1))
    await lab.teach(*events(5, 2))
    card = await write(lab.artifacts, (await lab.living()).keys, fitted("v"))
    await activate(place(lab.store, lab.artifacts, (await lab.living()).keys), card.id, "a test")
    await lab.run(restore, RestoreParams(to=str(early[-1]), reason="r"))
    await digest_at(one, await lab.end())
    assert one.model(DEFAULT_MODEL).live.n_learned == 5
    assert one.model(DEFAULT_MODEL).live.serving.version == card.id
    one.model(DEFAULT_MODEL).check_serving()
    assert (await read_active(lab.store, (await lab.living()).keys)).version == card.id
