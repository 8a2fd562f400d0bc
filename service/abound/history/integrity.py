"""Integrity of a model's full log: can history, log and all files that they refer to be read?

While a snapshot is good, starts read only the log after it. Other damage stays unnoticed until a job verifies,
rebuilds or erases.
"""

from __future__ import annotations

from abound.artifacts.artifact_store import ArtifactStore
from abound.history.history import BEGIN_ANEW_HINT, WAY_OUT, History
from abound.history.load import load_first_state
from abound.history.replay import ReplaySource
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import AdoptEvent, decode_entry
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound_core.errors import Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownOffset
from abound_core.types import Offset


async def find_damage(store: Store, artifacts: ArtifactStore | None, living: CatalogModel) -> list[str]:
    """Return what is wrong with each damaged part of a model's full log, and the way out.

    Reads all of it: segments, base, log and every adopted state file, one state in memory at a time. Raises Corrupted
    if the manifest of history cannot be read.
    """
    name = living.keys.name
    history = History(store, artifacts, living.keys)
    contents = await history.manifest()
    wrong: list[str] = []
    for segment in contents.segments if contents is not None else ():
        try:
            await history.elements(segment)
        except Corrupted as error:
            wrong.append(str(error))
        except UnknownArtifact as error:
            present = await history.manifest()
            if present is not None and segment in present.segments:  # else the worker has replaced it meanwhile
                wrong.append(f"{error}. {WAY_OUT}")
    model = ReplicatedModel(living.keys, living.config)
    try:
        await load_first_state(store, artifacts, model)
    except (Corrupted, UnknownApplyVersion) as error:
        wrong.append(str(error))
    source = ReplaySource(store, artifacts)
    after = (await stream.trim_of(store, living.keys.log)).last if wrong else model.offset
    adopted = model.position.adopted
    model.reset()  # the base is not needed any more
    unreadable: list[str] = []
    lost: list[str] = []
    try:
        async for elements in source.entries(living.keys, after, None):
            for element in elements:
                at = Offset.of_entry(element[0])
                try:
                    event = decode_entry(element[1]).event
                except (Corrupted, UnknownApplyVersion) as error:
                    advice = f". {stream.DAMAGED_ENTRY_ADVICE}" if isinstance(error, Corrupted) else ""
                    unreadable.append(f"the entry {at.entry} of the log of {name} cannot be applied: {error}{advice}")
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
                    lost.append(reason)
    except (Corrupted, UnknownApplyVersion, UnknownOffset) as error:
        wrong.append(str(error))
    return wrong + unreadable + lost
