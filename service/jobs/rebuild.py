"""Jobs that rebuild a model state from its history, by one mechanism (``service/rebuild/adoption.py``):

    refit     learns in several passes, with settings chosen on the newest, held-out part
    forget    leaves out some events, and deletes them from history and everything else that is stored
    restore   rolls the state back to an offset

Each is a job: ``(context, params, progress) -> outcome``. Learning continues meanwhile; the events since the start
of the job are replayed on top of the new state when it is adopted. A job that dies after it has committed is
started again and reaches the same result: the log entries of its adoption say how far it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from abound.core.errors import ArtifactsUnavailable, Conflict, InvalidInstance, UnknownArtifact, UnknownOffset
from abound.core.model.live_model import LiveModel
from abound.core.types import START, Offset
from abound.service.history import erasures, past
from abound.service.history.erasures import UnfinishedErasure
from abound.service.history.history import History, HistoryParams
from abound.service.history.lineage import LineageStart, trace_lineage, truncate_learn
from abound.service.history.replay import ReplaySource, apply, rebuild
from abound.service.log import stream
from abound.service.log.events import LearnEvent, PrepareEvent, decode_entry, encode
from abound.service.log.stream import Element, LogParams
from abound.service.model.replicated_model import ReplicatedModel
from abound.service.rebuild.adoption import Adoption, AdoptionContext, begin, find_adoption, snapshot_past
from abound.service.rebuild.erase import Eraser
from abound.service.rebuild.forget import ErasureRecord, ForgetPlan
from abound.service.rebuild.garbage import collect_state_files
from abound.service.rebuild.redacted_replay import RedactedReplay
from abound.service.rebuild.redaction import ForgetParams
from abound.service.rebuild.refit import Refit, RefitParams, with_base
from abound.service.snapshots import state_files
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.snapshots.state_image import StateManifest
from abound.service.store.client import store_errors

if TYPE_CHECKING:
    from abound.service.jobs.context import JobContext

MAX_ROUNDS = 5

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
        Why, in 1 to 1000 characters; stored with the job.
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

    async def make(adoption: Adoption) -> RebuiltModel:
        progress("replaying", 0.0)
        before = await _model_before(place, adoption.after)
        refitting = await refit_of(
            place, adoption.after, before, lambda stage, done: progress(stage, 0.05 + 0.7 * min(1.0, done))
        )
        refitting.refuse_unchangeable(params)
        chosen = await refitting.choose(params)
        live = await refitting.fit(chosen.setting, chosen.passes)
        live.continue_score(before)
        recipe = {"method": "refit", "setting": chosen.setting, "passes": chosen.passes}
        return RebuiltModel(live, recipe, {**recipe, "metrics": {"MRR": chosen.score, "held_out": chosen.n_held_out}})

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
        live = (await state_at(place, to)).live
        recipe = {"method": "restore", "to": str(to)}
        return RebuiltModel(live, recipe, {**recipe, "learned": live.n_learned})

    return await _rebuild_and_adopt(context, place, params.reason, progress, make, until=to)


async def forget(context: JobContext, params: ForgetParams, progress: Progress) -> Outcome:
    """Rebuild the model without some events, and delete these from everything that is stored."""
    place = _place(context)
    known = context.job.outcome if context.job.committed else {}
    if not context.job.committed and not (params.since is None and params.until is None):
        await _check_clock(place, params)
    forgetting = ForgetPlan(place, params, progress, ErasureRecord(known, context.so_far), context.job.id)
    remaking = RedactedReplay(forgetting)

    async def make(adoption: Adoption) -> RebuiltModel:
        counts = await forgetting.find_events(adoption.after)
        if forgetting.first is None:
            await forgetting.end_others()
            return RebuiltModel(None, {"method": "forget"}, counts)
        return RebuiltModel(await remaking.state(), {"method": "forget"}, counts)

    async def commit(*prefixes: str) -> None:
        index = await state_files.read_manifest(place.artifacts, place.keys, prefixes[0].rpartition("/")[2])
        what = UnfinishedErasure(index.offset, params.key, params.source, params.since, params.until)
        await context.commit(*prefixes)  # a job that is cancelled before leaves no note
        await erasures.add_unfinished(
            place.store, place.keys, context.job.id, what
        )  # also if an earlier attempt prepared it

    async def again(adoption: Adoption, at: Offset) -> bool:
        if forgetting.after is None:  # an earlier attempt died after the adoption
            await forgetting.find_events(adoption.after, again=True)
            await remaking.state()
        return await forgetting.has_repeats(at)

    return await _rebuild_and_adopt(
        context,
        replace(place, commit=commit),
        params.reason,
        progress,
        make,
        again=again,
        clear=Eraser(forgetting).erase,
        pinned=START,
        padded=True,
    )


async def _check_clock(place: AdoptionContext, params: ForgetParams) -> None:
    """Raise InvalidInstance if offsets do not tell when the events to forget arrived.

    Offsets never go back, but the store's clock may. Entries appended after it was set back have the time of the
    last entry before, until the clock has caught up.
    """
    last = (await stream.tail(place.store, place.keys.log)).last.milliseconds
    with store_errors():
        seconds, microseconds = await place.store.client.time()
    ahead = last - (seconds * 1000 + microseconds // 1000)
    if ahead <= 0 or (params.until is not None and int(params.until * 1000) >= last):
        return
    raise InvalidInstance(
        f"until: the clock of the store was set back, and the log's last entry is {ahead / 1000:.3f} s ahead of it. "
        "All events since then have that time. Select the events by key or source, or use an until of at least "
        f"{(last + 1) / 1000}; it will also forget everything that arrived since the clock change",
        "params.until",
    )


async def state_at(place: AdoptionContext, to: Offset) -> ReplicatedModel:
    """Return a model as it was at an offset; raise UnknownOffset if its history begins later."""
    contents = await History(place.store, place.artifacts, place.keys).manifest()
    first = START if contents is None else contents.start
    if to < first:
        raise UnknownOffset(f"the history of {place.keys.name} begins at {first}; earlier events were deleted", first)
    before = to if to[:2] == first[:2] else to.before  # at the beginning there is no entry to cut
    model = await rebuild(
        place.store, place.living, before, params=place.log, between=place.checkpoint, artifacts=place.artifacts
    )
    if model.offset[:2] >= to[:2]:
        return model
    source = ReplaySource(place.store, place.artifacts, place.log)
    reading = past.read_entries(place.store, place.artifacts, place.keys, model.offset, to, params=place.log)
    async with contextlib.aclosing(reading):
        async for elements in reading:
            for element in elements:
                await apply(model, _cut(element, to), source)  # the entry may be an adoption
    return model


async def refit_of(place: AdoptionContext, after: Offset, before: LiveModel, progress: Progress) -> Refit:
    """Return a refit of the model on everything that it has learned up to the offset ``after``."""

    def read(past_offset: Offset, until: Offset) -> AsyncGenerator[list[Element]]:
        return past.read_entries(
            place.store, place.artifacts, place.keys, past_offset, until._replace(position=0), params=place.log
        )

    contents = await History(place.store, place.artifacts, place.keys).manifest()
    base = contents.base if contents is not None else None
    beginning = START if contents is None else contents.start
    stretches = await trace_lineage(read, place.artifacts, place.keys, beginning, after)
    counted = with_base(LineageStart(base.index, base.digest) if base is not None else None, stretches)
    return Refit(read, place.artifacts, place.keys, before.config, counted, before.n_learned, progress)


async def _model_before(place: AdoptionContext, at: Offset) -> LiveModel:
    model = await rebuild(
        place.store, place.living, at, params=place.log, between=place.checkpoint, artifacts=place.artifacts
    )
    return model.live


async def _rebuild_and_adopt(
    context: JobContext,
    place: AdoptionContext,
    reason: str,
    progress: Progress,
    make: Callable[[Adoption], Awaitable[RebuiltModel]],
    *,
    again: Callable[[Adoption, Offset], Awaitable[bool]] | None = None,
    clear: Callable[[Offset], Awaitable[Outcome]] | None = None,
    until: Offset | None = None,
    pinned: Offset | None = None,
    padded: bool = False,
) -> Outcome:
    """Build a state from the events up to ``until`` and adopt it, or resume the adoption of an earlier attempt.

    After each adoption ``again`` decides whether the state must be built once more, because of events that arrived
    meanwhile. There are at most ``MAX_ROUNDS`` rounds. ``clear`` is called at the end.
    """
    name = context.job.id
    outcome: Outcome = {"reason": reason}

    def waiting() -> None:
        progress("waiting for another rebuild of the model", 0.0)

    async with begin(place, name, pinned, waiting) as adoption:
        at = None
        if context.job.committed:
            end = adoption.after
            prepare, at = await find_adoption(place, name, await _oldest_state_offset(place, context.job.kept))
            prepared = None if prepare is None or at is not None else await _prepared_manifest(place, prepare)
            if prepare is not None and (at is not None or prepared is not None):
                adoption.after = Offset.parse(prepare.after)
            if prepared is not None:
                try:
                    at = await adoption.adopt(prepared, reason, padded)
                except Conflict:  # another adoption came first, or the store lost the source events: build again
                    adoption.after = end
        if at is None and clear is None:
            await _refuse_unfinished(place)
        rounds = 1
        while at is None or (again is not None and await again(adoption, at)):
            if at is not None:
                rounds += 1
                if rounds > MAX_ROUNDS:
                    outcome["sent_again"] = "events to forget kept arriving during the job; run forget once more"
                    break
                await adoption.go_on()
            await _record_range(context, place, adoption.after if until is None else min(adoption.after, until))
            made = await make(adoption)
            outcome |= made.outcome
            if made.live is None:
                return outcome
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
            outcome |= await clear(at)
        progress("clearing up", 0.99)
        await collect_state_files(place)
    return outcome


async def _refuse_unfinished(place: AdoptionContext) -> None:
    """Raise Conflict while history still contains forgotten events.

    A state that is rebuilt from such a history would contain them again.
    """
    for job, what in (await erasures.unfinished_erasures(place.store, place.keys)).items():
        if (await find_adoption(place, job, Offset.parse(what.after)))[1] is not None:
            raise Conflict(
                f"the job {job} has not removed forgotten events from history yet. Try again when it has ended; if it "
                "was given up, run any forget job, which completes the removal"
            )


async def _oldest_state_offset(place: AdoptionContext, kept: list[str]) -> Offset:
    """Return the oldest of the offsets up to which the committed state files contain events.

    Return START if one of the files is gone. The job's adoption is in the log after the returned offset in any case.
    """
    after = []
    for prefix in kept:
        try:
            manifest = await state_files.read_manifest(place.artifacts, place.keys, prefix.rpartition("/")[2])
        except UnknownArtifact:
            return START
        after.append(Offset.parse(manifest.offset))
    return min(after, default=START)


async def _prepared_manifest(place: AdoptionContext, prepare: PrepareEvent) -> StateManifest | None:
    """Return the manifest of the prepared state file, or None if the file was deleted.

    A failover may lose the ``PrepareEvent`` of the committed attempt and keep that of an earlier attempt, which was not
    committed.
    """
    try:
        return await state_files.read_manifest(place.artifacts, place.keys, prepare.index)
    except UnknownArtifact:
        return None


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


def _cut(element: Element, to: Offset) -> Element:
    """Return a log entry; of the last entry to keep, only the events up to its position."""
    name, fields = element
    if Offset.of_entry(name)[:2] != to[:2]:
        return element
    entry = decode_entry(fields)
    if type(entry.event) is not LearnEvent:
        return element
    payload, checksum = encode(msgspec.structs.replace(entry, event=truncate_learn(entry.event, to.position)))
    return name, [b"e", payload, b"c", checksum]
