"""What all rebuilds share: ended half-way, told to stop, two at one time, what they read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from abound.history.archive import ArchiveContext
from abound.history.history import History, HistoryParams
from abound.history.lineage import Lineage, trace_lineage
from abound.history.retention import enforce_retention
from abound.jobs import replace as rebuild
from abound.jobs.replace import RestoreParams, forget, refit, restore
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import AdoptEvent
from abound.replace.redaction import ForgetParams
from abound.replace.refit import RefitParams
from abound.state import state_files
from abound.store.lease import acquire
from abound_core.errors import Cancelled
from abound_core.types import START, Offset
from tests.support.lab import Lab, digest_at, events
from tests.support.replace_context import Context, archived, learned_units, run, teach


async def test_a_refit_that_is_cancelled_leaves_nothing(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(50))
    living = await lab.living()
    for stage in ("replaying", "trying", "fitting", "writing", "waiting"):
        context = Context(lab, living, job=stage)
        context.stop_at = stage
        with pytest.raises(Cancelled):
            await refit(cast("Any", context), RefitParams(), context.progress)
    assert await state_files.ids(lab.artifacts, living.keys) == []
    assert not [event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await lab.expected()
    await run(lab, refit, RefitParams(search={}), job="another")


async def test_a_job_that_died_after_its_commit_comes_to_the_same_end(lab: Lab) -> None:
    one = await lab.replica()
    await teach(lab, *events(50))
    living = await lab.living()

    class Died(Exception):
        pass

    class Dying(Context):
        async def commit(self, *prefixes: str) -> None:
            raise Died

    first = Dying(lab, living, job="job")
    with pytest.raises(Died):  # before the adoption; the index is the model's, so it is put back
        await refit(cast("Any", first), RefitParams(search={}), first.progress)
    outcome = await run(lab, refit, RefitParams(search={}), job="job")
    again = await run(lab, refit, RefitParams(search={}), job="job", committed=True)
    assert again["adopted"] == outcome["adopted"]
    assert len([event for _, event in await lab.elements() if isinstance(event, AdoptEvent)]) == 1
    assert await digest_at(one, (await lab.elements())[-1][0]) == await lab.expected()


@pytest.mark.parametrize("method", ["refit", "restore"])
async def test_a_job_that_died_after_its_adoption_reports_its_whole_outcome(lab: Lab, method: str) -> None:
    offsets = await teach(lab, *events(50))

    class Died(Exception):
        pass

    def dying(stage: str, fraction: float) -> None:
        if stage == "making a snapshot":
            raise Died

    params: RefitParams | RestoreParams = RefitParams(search={})
    if method == "restore":
        params = RestoreParams(to=str(offsets[30]), reason="a mistake")
    run_method: Any = {"refit": refit, "restore": restore}[method]
    context = Context(lab, await lab.living())
    with pytest.raises(Died):
        await run_method(context, params, dying)
    outcome = await run(lab, run_method, params, committed=True, outcome=context.job.outcome)
    again = await run(lab, run_method, params, job="another")
    changing = {"adopted", "after", "snapshot"}
    assert outcome.keys() == again.keys() > changing
    assert all(outcome[name] == again[name] for name in outcome.keys() - changing)


async def test_a_committed_job_whose_index_cannot_be_adopted_any_more_makes_it_anew(lab: Lab) -> None:
    """It died before its adoption came to the store, and another index was adopted then."""
    one = await lab.replica()
    await teach(lab, *events(20, 1), *events(5, 2, "bad"))

    class Died(Exception):
        pass

    class Dying(Context):
        async def commit(self, *prefixes: str) -> None:
            await super().commit(*prefixes)
            raise Died

    living = await lab.living()
    context = Dying(lab, living, job="forget")
    params = ForgetParams(source="bad", reason="r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_files, "delete", _left_there)  # it was the model's by then
        with pytest.raises(Died):
            await forget(cast("Any", context), params, context.progress)
    assert len(await state_files.ids(lab.artifacts, living.keys)) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_files, "delete", _left_there)
        await run(lab, refit, RefitParams(search={}, passes=1), job="refit")
    outcome = await run(lab, forget, params, job="forget", committed=True)
    assert outcome["forgotten"]["instances"] == 5
    assert not any(unit.source == "bad" for unit in learned_units(await lab.elements()))
    await one.wait_for(DEFAULT_MODEL, Offset.parse(outcome["adopted"]), 60)
    assert one.model(DEFAULT_MODEL).live.n_learned == 20


async def _left_there(*given: Any) -> None:
    """Delete nothing."""


async def test_of_two_rebuilds_at_one_time_one_waits_and_can_be_cancelled(lab: Lab) -> None:
    await teach(lab, *events(5))
    living = await lab.living()
    lease = living.keys.key("adoption-lease")
    await lab.store.client.set(lease, b"", px=60_000)
    context = Context(lab, living)
    context.stop_at = "waiting for another rebuild"
    with pytest.raises(Cancelled):
        await refit(cast("Any", context), RefitParams(), context.progress)
    await lab.store.client.pexpire(lease, 1000)
    await run(lab, refit, RefitParams(), job="another")
    assert [type(event) for _, event in await lab.elements()][-1] is AdoptEvent


async def test_a_rebuild_says_which_events_it_reads(lab: Lab) -> None:
    offsets = await teach(lab, *events(5))
    context = Context(lab, await lab.living())
    await refit(cast("Any", context), RefitParams(), context.progress)
    await restore(cast("Any", context), RestoreParams(to=str(offsets[2]), reason="r"), context.progress)
    assert [(after, until and until.entry) for after, until in context.ranges] == [
        (None, offsets[4].entry),
        (None, offsets[2].entry),
    ]


async def test_retention_cuts_no_history_between_two_passes_of_a_refit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await lab.replica()
    await teach(lab, *events(300))
    await archived(lab)
    history = History(lab.store, lab.artifacts, (await lab.living()).keys)

    async def cut() -> None:
        async with acquire(lab.store, history.keys) as lease:
            to = ArchiveContext(lab.store, lab.artifacts, await lab.living(), lease, HistoryParams(keep_bytes=4096))
            contents = await history.manifest()
            assert contents is not None
            await enforce_retention(to, contents)

    async def trace_and_cut(*given: Any) -> Lineage:
        found = await trace_lineage(*given)
        await cut()
        return found

    monkeypatch.setattr(rebuild, "trace_lineage", trace_and_cut)
    await run(lab, refit, RefitParams(passes=2, search={}))
    assert await digest_at(one, (await lab.elements())[-1][0]) == await lab.expected()
    await cut()
    contents = await history.manifest()
    assert contents is not None
    assert contents.start != START
