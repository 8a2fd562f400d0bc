"""Jobs that rebuild a model state from its history, by one mechanism (``abound/replace/adoption.py``).

Learning continues meanwhile; the events since the start of the job are replayed on top of the new state when it is
adopted. A job that dies after it has committed is started again and reaches the same result: the log entries of its
adoption say how far it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from abound.history import erasures, full_log
from abound.history.history import History, HistoryParams
from abound.history.lineage import entry_end, trace_lineage
from abound.history.replay import replay
from abound.log import stream
from abound.log.stream import Element, LogParams
from abound.replace.adoption import Adoption, AdoptionContext, begin, find_adoption, snapshot_past
from abound.replace.erase import Eraser
from abound.replace.forget import ErasureRecord, ForgetPlan, adopted_erasures
from abound.replace.redaction import ForgetParams
from abound.replace.refit import Refit, RefitParams
from abound.state import state_files
from abound.state.snapshots import SnapshotParams
from abound_core.errors import ArtifactsUnavailable, Conflict, InvalidInstance, NotReady, UnknownOffset
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset

if TYPE_CHECKING:
    from abound.jobs.context import JobContext

Progress = Callable[[str, float], None]
Outcome = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RestoreParams:
    """The offset to roll back to.

    Attributes
    ----------
    to : str
        Offset of the last event to keep, such as 1790000000000-0.3: milliseconds since 1970, entry, position.
    reason : str
        Reason of the job, in 1 to 1000 characters; stored with the job.
    """

    to: str
    reason: str

    def __post_init__(self) -> None:
        try:
            Offset.parse(self.to)
        except ValueError as error:
            raise ValueError(f"to: {error}") from None
        if not 1 <= len(self.reason) <= 1000:
            raise ValueError("reason must have 1 to 1000 characters that say why")


class RebuiltModel(NamedTuple):
    """The state to adopt (None if nothing has to be adopted), the recipe of its making, and the outcome to report."""

    live: LiveModel | None
    recipe: dict[str, Any]
    outcome: Outcome


async def refit(context: JobContext, params: RefitParams, progress: Progress) -> Outcome:
    """Learn all past events again, in several passes and with settings chosen by search."""
    place = _place(context)

    def read(after: Offset, until: Offset) -> AsyncGenerator[list[Element]]:
        return full_log.read_entries(place.store, place.artifacts, place.keys, after, until, params=place.log)

    async def make(adoption: Adoption) -> RebuiltModel:
        progress("replaying", 0.0)
        before = await state_at(place, entry_end(adoption.after))
        lineage = await trace_lineage(read, place.store, place.artifacts, place.keys, adoption.after)
        refitting = Refit(
            read,
            place.artifacts,
            place.keys,
            before.config,
            lineage,
            before.n_learned,
            lambda stage, done: progress(stage, 0.05 + 0.7 * min(1.0, done)),
        )
        refitting.refuse_unchangeable(params)
        chosen = await refitting.choose(params)
        live = await refitting.fit(chosen.setting, chosen.passes)
        live.continue_score(before)
        recipe = {"method": "refit", "setting": chosen.setting, "passes": chosen.passes}
        outcome = {**recipe, "metrics": {"MRR": chosen.score, "held_out": chosen.n_held_out}}
        return RebuiltModel(live, recipe, outcome | ({"note": chosen.note} if chosen.note else {}))

    return await _rebuild_and_adopt(context, place, params.reason or "refit", progress, make)


async def restore(context: JobContext, params: RestoreParams, progress: Progress) -> Outcome:
    """Roll the model back to an offset; later events are no longer learned, but stay in history."""
    to = Offset.parse(params.to)
    place = _place(context)

    async def make(adoption: Adoption) -> RebuiltModel:
        if to[:2] > adoption.after[:2]:
            raise InvalidInstance(
                f"to: the log ends at {adoption.after}, before {to}; give an earlier offset", "params.to"
            )
        progress("replaying", 0.1)
        live = await state_at(place, to)
        recipe = {"method": "restore", "to": str(to)}
        return RebuiltModel(live, recipe, {**recipe, "learned": live.n_learned})

    return await _rebuild_and_adopt(context, place, params.reason, progress, make, until=to)


async def forget(context: JobContext, params: ForgetParams, progress: Progress) -> Outcome:
    """Rebuild the model without some events, and delete these from everything that is stored."""
    place = _place(context)
    known = context.job.outcome if context.job.committed else {}
    if not context.job.committed and not (params.since is None and params.until is None):
        await _check_clock(place, params)
    record = ErasureRecord(known) if params.dry_run else ErasureRecord(known, context.so_far)
    plan = ForgetPlan(place, params, progress, record)

    async def make(adoption: Adoption) -> RebuiltModel:
        counts = await plan.find_events(adoption.after)
        if params.dry_run:
            return RebuiltModel(None, {"method": "forget"}, counts)
        if plan.first is None:
            await plan.end_others()
            return RebuiltModel(None, {"method": "forget"}, counts)
        return RebuiltModel(await plan.state(), {"method": "forget"}, counts)

    async def commit(*prefixes: str) -> None:
        if await plan.has_repeats():
            raise NotReady("requests to forget arrive again; stop their sender, or wait until it has given up")
        await context.commit(*prefixes)
        await erasures.add_unfinished(place.store, place.keys, context.job.id, plan.what)

    async def clear(adoption: Adoption, at: Offset) -> Outcome:
        if Offset.parse(plan.what.after) == START:  # an earlier attempt died after the adoption
            await plan.find_events(adoption.after, again=True)
            await plan.state()
        sent_again = await plan.has_repeats(at)
        outcome = await Eraser(plan).erase(at)
        if sent_again:
            outcome["sent_again"] = "requests to forget arrived again during the adoption; run forget once more"
        return outcome

    return await _rebuild_and_adopt(
        context,
        replace(place, commit=commit),
        params.reason,
        progress,
        make,
        clear=clear,
        padded=True,
    )


async def _check_clock(place: AdoptionContext, params: ForgetParams) -> None:
    """Raise InvalidInstance if offsets do not tell when the events to forget arrived.

    Offsets never go back, but the store's clock may. Entries appended after it was set back have the time of the
    last entry before, until the clock has caught up.
    """
    last = (await stream.tail(place.store, place.keys.log)).last.milliseconds
    ahead = last / 1000 - await place.store.now()
    if ahead <= 0 or (params.until is not None and int(params.until * 1000) >= last):
        return
    raise InvalidInstance(
        f"until: the clock of the store was set back, and the log's last entry is {ahead:.3f} s ahead of it. "
        "All events since then have that time. Select the events by key or source, or use an until of at least "
        f"{(last + 1) / 1000}; it will also forget everything that arrived since the clock change",
        "params.until",
    )


async def state_at(place: AdoptionContext, to: Offset) -> LiveModel:
    """Return a model as it was at an offset; raise UnknownOffset if its history begins later."""
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    first = START if contents is None else contents.start
    if to < first:
        raise UnknownOffset(f"the history of {place.keys.name} begins at {first}; earlier events were deleted", first)
    model = await replay(
        place.store,
        place.living,
        to,
        params=place.log,
        between=place.checkpoint,
        artifacts=place.artifacts,
        is_cut=True,
    )
    return model.live


async def _rebuild_and_adopt(
    context: JobContext,
    place: AdoptionContext,
    reason: str,
    progress: Progress,
    make: Callable[[Adoption], Awaitable[RebuiltModel]],
    *,
    clear: Callable[[Adoption, Offset], Awaitable[Outcome]] | None = None,
    until: Offset | None = None,
    padded: bool = False,
) -> Outcome:
    """Build a state from the events up to ``until`` and adopt it, or resume the adoption of an earlier attempt.

    ``clear`` is called after the adoption.
    """
    name = context.job.id
    outcome: Outcome = {"reason": reason}

    def waiting() -> None:
        progress("waiting for another rebuild of the model", 0.0)

    async with begin(place, name, waiting) as adoption:
        at = None
        if context.job.committed:
            found = await find_adoption(place, name, START)
            if found is not None:
                adoption.after, at = found
                outcome |= context.job.outcome
        if at is None and clear is None:
            await _refuse_unfinished(place)
        if at is None:
            await _record_range(context, place, adoption.after if until is None else min(adoption.after, until))
            made = await make(adoption)
            outcome |= made.outcome
            if made.live is None:
                return outcome
            if clear is None:  # forget keeps a record of its own
                await context.so_far(outcome)
            index_id = state_files.new_id()
            try:
                progress("writing the state file", 0.8)
                await place.will_write(f"{state_files.folder(place.keys)}/{index_id}")
                index = await state_files.write(
                    place.artifacts, place.keys, made.live, adoption.after, made.recipe, place.checkpoint, index_id
                )
                del made
                progress("waiting until the replicas are ready", 0.85)
                at = await adoption.adopt(index, reason, padded)
            except BaseException:
                if not adoption.committed:
                    with contextlib.suppress(ArtifactsUnavailable):
                        await state_files.delete(place.artifacts, place.keys, index_id)
                raise
        progress("making a snapshot", 0.9)
        manifest = await snapshot_past(place, at)
        outcome |= {"adopted": str(at), "after": str(adoption.after), "snapshot": manifest.id}
        if clear is not None:
            outcome |= await clear(adoption, at)
    return outcome


async def _refuse_unfinished(place: AdoptionContext) -> None:
    """Raise Conflict while history still contains forgotten events.

    A state that is rebuilt from such a history would contain them again.
    """
    for job in await adopted_erasures(place):
        raise Conflict(
            f"the job {job} has not removed forgotten events from history yet. Try again when it has ended; if it was "
            "given up, run any forget job, which completes the removal"
        )


async def _record_range(context: JobContext, place: AdoptionContext, until: Offset) -> None:
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    beginning = START if contents is None else contents.start
    await context.range(None if beginning == START else beginning, until)


def _place(context: JobContext) -> AdoptionContext:
    async def between() -> None:
        context.check()
        await asyncio.sleep(0)

    return AdoptionContext(
        store=context.store,
        artifacts=context.artifacts,
        living=context.living,
        checkpoint=between,
        will_write=context.will_write,
        commit=context.commit,
        prepare_seconds=context.settings.prepare_seconds,
        log=context.settings.group(LogParams),
        snapshots=context.settings.group(SnapshotParams),
        history=context.settings.group(HistoryParams),
    )
