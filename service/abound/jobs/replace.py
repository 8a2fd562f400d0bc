"""Jobs that replace a model by another past of it (``abound/replace/replace.py``). Learning continues meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from abound.history import full_log
from abound.history.history import History, HistoryParams
from abound.history.replay import replay
from abound.log import stream
from abound.log.stream import Element, LogParams
from abound.replace.context import ReplaceContext
from abound.replace.copying import Past
from abound.replace.forget import ForgetParams, Forgetting, delete_others
from abound.replace.refit import Refit, RefitParams
from abound.replace.replace import Replacement, replace_model, was_made
from abound.state import state_files
from abound.state.replicated_model import ReplicatedModel
from abound.state.snapshots import SnapshotParams
from abound_core.errors import Conflict, InvalidInstance, UnknownOffset
from abound_core.limits import Limits
from abound_core.types import START, Offset

if TYPE_CHECKING:
    from abound.jobs.context import JobContext

Progress = Callable[[str, float], None]
Outcome = dict[str, Any]


def _check_reason(reason: str) -> None:
    if not 1 <= len(reason) <= 1000:
        raise ValueError("reason must have 1 to 1000 characters that say why")


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
        _check_reason(self.reason)


@dataclass(frozen=True, kw_only=True)
class UndoParams:
    """Parameters of an undo.

    Attributes
    ----------
    reason : str
        Reason of the job, in 1 to 1000 characters; stored with the job.
    """

    reason: str = "undo"

    def __post_init__(self) -> None:
        _check_reason(self.reason)


async def refit(context: JobContext, params: RefitParams, progress: Progress) -> Outcome:
    """Learn all past events again, in several passes and with settings chosen by search."""

    async def make(replacement: Replacement, outcome: Outcome) -> Past:
        place, living = replacement.context, replacement.living
        progress("replaying", 0.0)
        before = await replay_to(replacement, replacement.after)
        contents = await History(place.store, place.artifacts, living.keys).manifest()
        base = None if contents is None else contents.base
        live = None
        if base is not None:
            live = await state_files.load(place.artifacts, living.keys, base.index, base.digest, Limits())
        start = START if base is None else base.position.offset

        def read() -> AsyncGenerator[list[Element]]:
            return full_log.read_entries(
                place.store, place.artifacts, living.keys, start, replacement.after, params=place.log
            )

        refitting = Refit(
            read,
            live,
            start,
            before.live.config,
            before.live.n_learned,
            lambda stage, done: progress(stage, 0.05 + 0.7 * min(1.0, done)),
            before.live if live is None else None,  # what a base has learned has the names of then
        )
        refitting.refuse_unchangeable(params)
        chosen = await refitting.choose(params)
        fitted = await refitting.fit(chosen.setting, chosen.passes)
        fitted.continue_score(before.live)
        fitted.serving = before.live.serving  # the index is replaced, not the active version
        outcome |= {"setting": chosen.setting, "passes": chosen.passes}
        outcome |= {"metrics": {"MRR": chosen.score, "held_out": chosen.n_held_out}}
        outcome |= {"note": chosen.note} if chosen.note else {}
        before.live = fitted
        return Past(model=before, source=living, tail_after=replacement.after, is_refitted=True)

    return await _replace(context, params.reason or "refit", progress, make)


async def restore(context: JobContext, params: RestoreParams, progress: Progress) -> Outcome:
    """Roll the model back to an offset. What was learned after it and before the job is no longer learned."""
    to = Offset.parse(params.to)

    async def make(replacement: Replacement, outcome: Outcome) -> Past:
        after = replacement.after
        if to[:2] > after[:2]:
            raise InvalidInstance(f"to: the log ends at {after}, before {to}; give an earlier offset", "params.to")
        progress("replaying", 0.1)
        place, living = replacement.context, replacement.living
        model = await replay_to(replacement, to)
        contents = await History(place.store, place.artifacts, living.keys).manifest()
        outcome |= {"to": str(to), "learned": model.live.n_learned}
        # Without an entry of history, the new incarnation begins with the state alone.
        is_empty = model.offset[:2] == (START if contents is None else contents.start)[:2]
        return Past(model=model, source=None if is_empty else living, tail_after=after)

    return await _replace(context, params.reason, progress, make)


async def undo(context: JobContext, params: UndoParams, progress: Progress) -> Outcome:
    """Bring back the model as it was before its last replacement, with all that it has learned since."""

    async def make(replacement: Replacement, outcome: Outcome) -> Past:
        former = replacement.former
        if former is None:
            raise Conflict(
                f"nothing to undo: {replacement.living.keys.name} was not replaced, or what it replaced is not kept"
            )
        progress("replaying", 0.1)
        place = replacement.context
        ends = (await stream.tail(place.store, former.keys.log)).last
        model = await replay(
            place.store, former, ends, params=place.log, between=place.checkpoint, artifacts=place.artifacts
        )
        outcome |= {"learned": model.live.n_learned}
        return Past(model=model, source=former, tail_after=ends)

    return await _replace(context, params.reason, progress, make)


async def forget(context: JobContext, params: ForgetParams, progress: Progress) -> Outcome:
    """Replay the model without some events, and delete these from everything that is stored."""

    async def make(replacement: Replacement, outcome: Outcome) -> Past | None:
        if not (params.since is None and params.until is None):
            await _check_clock(replacement, params)
        forgetting = Forgetting(replacement, params)
        past = await forgetting.past()
        outcome |= forgetting.counts
        if past is not None:
            outcome["versions_deleted"] = past.versions_dropped
        return past

    outcome = await _replace(context, params.reason, progress, make)
    if "replaced" in outcome:
        outcome |= await delete_others(_place(context, progress))
    return outcome


async def _check_clock(replacement: Replacement, params: ForgetParams) -> None:
    """Raise InvalidInstance if offsets do not tell when the events to forget arrived.

    Offsets never go back, but the store's clock may. Entries appended after it was set back have the time of the
    last entry before, until the clock has caught up.
    """
    last = replacement.after.milliseconds
    ahead = last / 1000 - await replacement.context.store.now()
    if ahead <= 0 or (params.until is not None and int(params.until * 1000) >= last):
        return
    raise InvalidInstance(
        f"until: the clock of the store was set back, and the log's last entry is {ahead:.3f} s ahead of it. "
        "All events since then have that time. Select the events by key or source, or use an until of at least "
        f"{(last + 1) / 1000}; it will also forget everything that arrived since the clock change",
        "params.until",
    )


async def replay_to(replacement: Replacement, to: Offset) -> ReplicatedModel:
    """Return a model as it was at an offset; raise UnknownOffset if its history begins later."""
    place, living = replacement.context, replacement.living
    contents = await History(place.store, place.artifacts, living.keys).manifest()
    first = START if contents is None else contents.start
    if to < first:
        raise UnknownOffset(f"the history of {living.keys.name} begins at {first}; earlier events were deleted", first)
    return await replay(
        place.store,
        living,
        to,
        params=place.log,
        between=place.checkpoint,
        artifacts=place.artifacts,
        is_cut=True,
    )


async def _replace(
    context: JobContext,
    reason: str,
    progress: Progress,
    make: Callable[[Replacement, Outcome], Awaitable[Past | None]],
) -> Outcome:
    place = _place(context, progress)
    outcome: Outcome = {"reason": reason}
    if context.job.committed and await was_made(place):
        return outcome | context.job.outcome

    async def made(replacement: Replacement) -> Past | None:
        contents = await History(place.store, place.artifacts, replacement.living.keys).manifest()
        start = START if contents is None else contents.start
        await context.range(None if start == START else start, replacement.after)
        past = await make(replacement, outcome)
        if past is not None:  # an attempt after this one finds it, if the replacement was made
            outcome["replaced"] = replacement.living.keys.incarnation
            await context.so_far(outcome)
        return past

    at = await replace_model(place, made, reason)
    if at is not None:
        outcome["replaced_at"] = str(at)
    return outcome


def _place(context: JobContext, progress: Progress) -> ReplaceContext:
    async def between() -> None:
        context.check()
        await asyncio.sleep(0)

    settings = context.settings
    return ReplaceContext(
        store=context.store,
        artifacts=context.artifacts,
        name=context.living.keys.name,
        origin=context.living.origin,
        record=context.job.id,
        checkpoint=between,
        commit=context.commit,
        progress=progress,
        prepare_seconds=settings.prepare_seconds,
        log=settings.group(LogParams),
        snapshots=settings.group(SnapshotParams),
        history=settings.group(HistoryParams),
    )
