"""Integrity of a model's full log: can history, log and all files that they refer to be read?

While a snapshot is good, starts read only the log after it. Other damage stays unnoticed until a job verifies,
rebuilds or erases.
"""

from __future__ import annotations

from typing import NamedTuple

from abound.core.errors import Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownOffset
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history.history_manifest import BEGIN_ANEW_HINT, WAY_OUT, History
from abound.service.history.replay import ReplaySource
from abound.service.history.restore import restore_first_state, restore_newest
from abound.service.log import stream
from abound.service.log.catalog import CatalogModel
from abound.service.log.events import AdoptEvent, decode_entry
from abound.service.model.replicated_model import ReplicatedModel
from abound.service.store.client import Store


class Damage(NamedTuple):
    """Something that cannot be read.

    Attributes
    ----------
    model : str
        Empty for the catalog.
    entry : str
        The id of an unreadable log entry that ``repair.replace_entry`` can replace; else empty.
    reason : str
        What is wrong, and the way out.
    """

    model: str
    entry: str
    reason: str


async def find_damage(store: Store, artifacts: ArtifactStore | None, living: CatalogModel) -> list[Damage]:
    """Return each damaged part of a model's full log; empty if there is none.

    Reads all of it: segments, base, log and every adopted state file, one state in memory at a time.
    Corrupted if the manifest of history cannot be read; ArtifactsUnavailable, StoreUnavailable.
    """
    name = living.keys.name
    history = History(store, artifacts, living.keys)
    contents = await history.manifest()
    wrong: list[Damage] = []
    for segment in contents.segments if contents is not None else ():
        try:
            await history.elements(segment)
        except Corrupted as error:
            wrong.append(Damage(name, "", str(error)))
        except UnknownArtifact as error:
            present = await history.manifest()
            if present is not None and segment in present.segments:  # else the worker has replaced it meanwhile
                wrong.append(Damage(name, "", f"{error}. {WAY_OUT}"))
    model = ReplicatedModel(living.keys, living.config)
    try:
        await restore_first_state(store, artifacts, model)
    except (Corrupted, UnknownApplyVersion) as error:
        wrong.append(Damage(name, "", str(error)))
    source = ReplaySource(store, artifacts)
    after = (await stream.trim_of(store, living.keys.log)).last if wrong else model.offset
    adopted = model.position.adopted
    model.reset()  # the base is not needed any more
    lost: list[Damage] = []
    unreadable: dict[Offset, Exception] = {}
    try:
        async for elements in source.entries(living.keys, after, None):
            for element in elements:
                at = Offset.of_entry(element[0])
                try:
                    event = decode_entry(element[1]).event
                except (Corrupted, UnknownApplyVersion) as error:
                    unreadable[at] = error
                    continue
                if wrong or unreadable or not isinstance(event, AdoptEvent) or Offset.parse(event.after) < adopted:
                    continue
                adopted = at
                try:
                    await source.load(living.keys, event.index, event.digest, model.limits)
                    async for _ in source.entries(living.keys, Offset.parse(event.after), at):
                        pass
                except (Corrupted, UnknownArtifact, UnknownOffset) as error:
                    what = event.reason or "no reason was given"
                    reason = (
                        f"the state file adopted at {at.entry} ({what}) cannot be used: {error}. Restore it from a "
                        f"backup. Without a backup, wait until all snapshots are past this offset; then "
                        f"{BEGIN_ANEW_HINT}"
                    )
                    lost.append(Damage(name, "", reason))
    except (Corrupted, UnknownApplyVersion, UnknownOffset) as error:
        wrong.append(Damage(name, "", str(error)))
    if unreadable:
        wrong += await _describe(store, artifacts, living, unreadable)
    return wrong + lost


async def _describe(
    store: Store, artifacts: ArtifactStore | None, living: CatalogModel, unreadable: dict[Offset, Exception]
) -> list[Damage]:
    """Describe unreadable entries of the log. An entry that every start has to read can be replaced."""
    name = living.keys.name
    try:
        start, why = await offset_of_start(store, artifacts, living), ""
    except (Corrupted, UnknownApplyVersion) as unusable:
        start, why = None, f", and {unusable}"
    found = []
    for at, error in unreadable.items():
        entry = ""
        if isinstance(error, UnknownApplyVersion) or start is None:
            hint = why
        elif start[:2] >= at[:2]:
            hint = f". A snapshot has its events. Once all snapshots are past it, {BEGIN_ANEW_HINT}"
        else:
            entry = at.entry
            hint = (
                ". `abound mend --yes` replaces it by a mark: the events in it are lost, everything else stays, and no "
                "offset moves. Restart the service afterwards"
            )
        found.append(Damage(name, entry, f"the entry {at.entry} of the log of {name} cannot be applied: {error}{hint}"))
    return found


async def offset_of_start(store: Store, artifacts: ArtifactStore | None, living: CatalogModel) -> Offset:
    """Return the offset of the state that a start of the service replays on. Raise what ``restore_newest`` raises."""
    model = ReplicatedModel(living.keys, living.config)
    await restore_newest(store, model, artifacts=artifacts)
    return model.offset
