"""Integrity of a model's full log: can history, log and all files that they refer to be read?

A start reads the newest good snapshot and the log after it. Damage elsewhere is noticed only by what reads all of
history: `abound verify`, or a job such as a refit.
"""

from __future__ import annotations

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import full_log
from abound.history.history import WAY_OUT, History
from abound.history.load import load_first_state
from abound.log import stream
from abound.log.catalog import CatalogModel
from abound.log.events import decode_entry
from abound.state.replicated_model import ReplicatedModel
from abound.store.client import Store
from abound_core.errors import Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownOffset


async def find_damage(store: Store, artifacts: ArtifactStore | None, living: CatalogModel) -> list[str]:
    """Return what is wrong with each damaged part of a model's full log, and the way out.

    Reads all of it: segments, base and log. Raises Corrupted if the manifest of history cannot be read.
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
    after = (await stream.trim_of(store, living.keys.log)).last if wrong else model.offset
    model.reset()  # the base is not needed any more
    unreadable: list[str] = []
    try:
        async for elements in full_log.read_entries(store, artifacts, living.keys, after):
            for name_of_entry, fields in elements:
                try:
                    decode_entry(fields)
                except (Corrupted, UnknownApplyVersion) as error:
                    advice = f". {stream.DAMAGED_ENTRY_ADVICE}" if isinstance(error, Corrupted) else ""
                    at = name_of_entry.decode()
                    unreadable.append(f"the entry {at} of the log of {name} cannot be applied: {error}{advice}")
    except (Corrupted, UnknownApplyVersion, UnknownOffset) as error:
        wrong.append(str(error))
    return wrong + unreadable
