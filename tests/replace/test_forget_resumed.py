"""A forgetting that died, or that others died before, is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from abound.history import erasures
from abound.history.history import History
from abound.jobs.replace import RestoreParams, forget, refit, restore
from abound.jobs.training_data import matrices_of_history
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import AdoptEvent, Entry, LearnEvent
from abound.replace.adoption import Adoption
from abound.replace.redaction import ForgetParams
from abound.replace.refit import RefitParams
from abound.replica.predictions import RememberParams, remember, vector_fingerprint
from abound.state import snapshots, state_files
from abound.store.client import Store
from abound_core.errors import Conflict
from abound_core.methods.training.progress import no_progress
from abound_core.model.entry_application import Unit
from abound_core.types import START, Offset
from tests.support.lab import Lab, events
from tests.support.proxy import Proxy
from tests.support.replace_context import (
    Context,
    archived,
    keyed,
    learned_units,
    of_history,
    run,
    same,
    teach,
    without,
)
from tests.support.streams import record


async def died_forgetting(
    lab: Lab, params: ForgetParams, stage: str, outcome: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A job to forget that comes to a stage and no further; what its record has by then."""
    context = Context(lab, await lab.living(), job="forget", committed=outcome is not None, outcome=outcome)

    class Died(Exception):
        pass

    def dying(now: str, fraction: float) -> None:
        if now.startswith(stage):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", context), params, dying)
    return cast("dict[str, Any]", context.job.outcome)


async def test_forgetting_goes_on_when_the_reply_to_its_adoption_was_lost(lab: Lab, tmp_path: Path) -> None:
    one = await lab.replica()
    await teach(lab, *events(20, 1), *events(15, 2, "bad"))
    await archived(lab)
    proxy = Proxy(tmp_path / "proxy", lab.server.socket)
    await proxy.start()
    direct, lab.store = lab.store, Store(proxy.url, lab.server.store_params)
    try:
        proxy.lose_replies_to = b"\xa5adopt"
        outcome = await run(lab, forget, ForgetParams(source="bad", reason="r"), job="forget")
        assert proxy.lose_replies_to is None
    finally:
        await lab.store.close()
        lab.store = direct
        await proxy.stop()
    assert outcome["segments_rewritten"]
    assert not any(unit.source == "bad" for unit in learned_units(await lab.elements()))
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad"))


async def test_the_record_of_a_forgetting_lists_what_those_who_died_have_done(lab: Lab) -> None:
    one = await lab.replica()
    model = one.model(DEFAULT_MODEL)
    vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
    await remember(lab.store, model.keys, vector, RememberParams(), vector_fingerprint(model.live.config))
    secret = LearnEvent(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="bad")])
    first = (await teach(lab, *events(20, 1), secret, *events(50, 2, "bad")))[20]
    await archived(lab)
    await run(lab, restore, RestoreParams(to=str(lab.past[-1][0]), reason="r"), job="restore")
    before = await snapshots.ids(lab.store, model.keys)
    params = ForgetParams(source="bad", reason="r")
    contents = await History(lab.store, lab.artifacts, model.keys).manifest()
    assert contents is not None
    segments = {segment.name for segment in contents.segments}
    index = (await state_files.ids(lab.artifacts, model.keys))[0]
    record_so_far: dict[str, Any] | None = None
    for stage in (
        "making snapshots",
        "deleting stored predictions",
        "rewriting",
        "making the store",
        "waiting until copies",
    ):
        record_so_far = await died_forgetting(lab, params, stage, record_so_far)
    assert not any(unit.source == "bad" for unit in learned_units(await lab.elements()))
    outcome = await run(lab, forget, params, job="forget", committed=True, outcome=record_so_far)
    assert outcome["forgotten"] == {"requests": 51, "instances": 51}
    assert outcome["from"] == str(first)
    assert set(before) <= set(outcome["snapshots_deleted"])
    assert segments & set(outcome["segments_rewritten"])
    assert [*outcome["indexes_rewritten"]] == [index]
    assert index in outcome["indexes_deleted"]
    assert outcome["remembered_deleted"] == 1
    assert outcome["store_file"] == "rewritten"
    kept = set(await snapshots.ids(lab.store, model.keys))
    assert not kept & set(outcome["snapshots_deleted"])
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad"))


async def test_remembered_instances_are_forgotten_by_the_one_who_goes_on(lab: Lab) -> None:
    one = await lab.replica()
    model = one.model(DEFAULT_MODEL)
    vector = model.live.vectorizer.vectorize(b'{"unutterable": 1, "wheat": 2}', None)
    await remember(lab.store, model.keys, vector, RememberParams(), vector_fingerprint(model.live.config))
    secret = LearnEvent(record('{"unutterable": 1, "wheat": 2}', "unspeakable"), 1, [Unit(1, source="bad")])
    await teach(lab, *events(20, 1), secret, *events(5, 2))
    await archived(lab)
    params = ForgetParams(source="bad", reason="r")
    so_far: dict[str, Any] | None = None
    for stage in ("deleting stored predictions", "making the store"):
        so_far = await died_forgetting(lab, params, stage, so_far)
    await run(lab, forget, params, job="forget", committed=True)
    assert await lab.store.client.xlen(model.keys.key("remembered")) == 0
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad"))


async def test_forgetting_goes_on_where_history_has_nothing_of_it_any_more(lab: Lab) -> None:
    living = await lab.living()
    await teach(lab, *events(5, 1))
    await archived(lab)
    await lab.store.client.delete(living.keys.key("history"))
    await teach(lab, *events(5, 3))
    await archived(lab)
    await teach(lab, *keyed(3, 4, "late"))
    params = ForgetParams(key="late1", reason="r")
    await died_forgetting(lab, params, "making the store")
    outcome = await run(lab, forget, params, job="forget", committed=True)
    assert outcome["store_file"] == "rewritten"


async def test_forgetting_goes_on_where_it_died(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await teach(lab, *events(20, 1), *events(15, 2, "bad"), *events(5, 3))
    await archived(lab)
    await run(lab, refit, RefitParams(search={}, passes=1), job="refit")
    context = Context(lab, await lab.living(), job="forget")

    class Died(Exception):
        pass

    def dying(stage: str, fraction: float) -> None:
        if stage.startswith("rewriting"):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", context), ForgetParams(source="bad", reason="r"), dying)
    outcome = await run(lab, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True)
    assert outcome["segments_rewritten"]
    await same(lab, one, await without(lab, lambda unit, at: unit.source == "bad"))


@pytest.mark.parametrize("given_up", [False, True])
async def test_what_a_forgetting_has_left_in_history_does_not_come_back(lab: Lab, given_up: bool) -> None:
    """As where a process died before history was written anew, and another job came first."""
    one, gone = await lab.replica(), ("bad", "other")
    at = await teach(lab, *events(20, 1), *events(10, 2, "other"), *events(15, 3, "bad"), *events(5, 4))
    await archived(lab)
    await died_forgetting(lab, ForgetParams(source="bad", reason="r"), "rewriting")
    await teach(lab, *events(10, 5, "other"), *events(5, 6))
    for method, params in (
        (refit, RefitParams(search={}, passes=1)),
        (restore, RestoreParams(to=str(at[-1]), reason="back")),
    ):
        with pytest.raises(Conflict, match="the job forget has not removed"):
            await run(lab, method, params, job="between")
    with pytest.raises(Conflict, match="being forgotten"):  # a fit
        await matrices_of_history(cast("Any", Context(lab, await lab.living())), no_progress)
    await teach(lab, *events(5, 7, "bad"))  # sent anew, after it was forgotten
    await run(lab, forget, ForgetParams(source="other", reason="r"), job="next")
    expected = await without(
        lab, lambda unit, where: unit.source == "other" or (unit.source == "bad" and where <= at[-1])
    )
    await same(lab, one, expected)
    if not given_up:
        await run(lab, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True)
        await same(lab, one, expected)
    learned = learned_units([(START, event) for event in await of_history(lab)])
    assert [unit.source for unit in learned if unit.source in gone] == ["bad"] * 5
    await run(lab, forget, ForgetParams(source="bad", reason="r"), job="last")
    assert [event.adoption for event in await of_history(lab) if isinstance(event, AdoptEvent)] == ["last"]
    await run(lab, refit, RefitParams(search={}, passes=1), job="refit")
    await same(lab, one, await without(lab, lambda unit, at: unit.source in gone))


async def test_a_forgetting_goes_on_after_the_next_has_put_a_mark_in_its_adoption_s_place(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(20, 1), *events(15, 2, "bad"), *events(10, 3, "other"))
    await archived(lab)
    so_far = await died_forgetting(lab, ForgetParams(source="bad", reason="r"), "making the store")
    await run(lab, forget, ForgetParams(source="other", reason="r"), job="next")
    adopted = [event.adoption for event in await of_history(lab) if isinstance(event, AdoptEvent)]
    assert adopted == ["next"]
    outcome = await run(
        lab, forget, ForgetParams(source="bad", reason="r"), job="forget", committed=True, outcome=so_far
    )
    assert (outcome["forgotten"]["requests"], bool(outcome["segments_rewritten"])) == (15, True)
    assert [event.adoption for event in await of_history(lab) if isinstance(event, AdoptEvent)] == ["next"]
    await same(lab, one, await without(lab, lambda unit, at: unit.source in ("bad", "other")))


async def test_who_goes_on_with_one_that_died_before_it_adopted_says_what_it_forgets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the first one said lost by the store."""
    one = await lab.replica()
    await teach(lab, *events(20, 1), *keyed(10, 3, "k", "bad"), *events(5, 4, "other"))
    await archived(lab)
    params, keys = ForgetParams(source="bad", reason="r"), (await lab.living()).keys
    context = Context(lab, await lab.living(), job="forget")

    class Died(Exception):
        pass

    append = Adoption._append

    async def dying_append(self: Adoption, entry: Entry, adopts: str = "") -> Offset:
        if adopts:
            raise Died
        return await append(self, entry, adopts)

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "_append", dying_append)
        with pytest.raises(Died):
            await forget(cast("Any", context), params, context.progress)
    assert "forget" in await erasures.unfinished_erasures(lab.store, keys)
    await lab.store.client.delete(keys.key("forgetting"))
    again = Context(lab, await lab.living(), "forget", committed=True, outcome=context.job.outcome)

    def dying(now: str, fraction: float) -> None:
        if now.startswith("making snapshots"):
            raise Died

    with pytest.raises(Died):
        await forget(cast("Any", again), params, dying)
    adopted = [event for event in await of_history(lab) if isinstance(event, AdoptEvent)]
    assert len(adopted) == 1
    assert (await erasures.unfinished_erasures(lab.store, keys))["forget"].after == adopted[-1].after
    with pytest.raises(Conflict, match="the job forget has not removed"):
        await run(lab, refit, RefitParams(search={}, passes=1), job="between")
    await run(lab, forget, ForgetParams(source="other", reason="r"), job="next")
    await same(lab, one, await without(lab, lambda unit, at: unit.source in ("bad", "other")))
    assert not any(unit.source == "bad" for unit in learned_units([(START, said) for said in await of_history(lab)]))
