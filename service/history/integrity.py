"""Integrity of a model's full log: are all files that history and log refer to present and undamaged?

While a snapshot is good, starts read none of these files. Damage stays unnoticed until a job verifies, rebuilds or
erases.

An adoption is *unadoptable* if its state file is lost and no snapshot past it exists. A start that meets one waits,
because the file may be restored from a backup. Otherwise the adoption can be given up: a mark replaces it, in the log
or in history. No offset moves. From there on the model is the former state plus its events. The same holds for every
adoption that was skipped because of this one and would not be skipped without it. No other state file ever replaces
the lost one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from abound.core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
)
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history.archive import ArchiveContext, swap_manifest, write_segment
from abound.service.history.history import BEGIN_ANEW_HINT, History
from abound.service.history.replay import ReplaySource
from abound.service.history.restore import restore_first_state
from abound.service.log.catalog import CatalogModel
from abound.service.log.events import AdoptEvent, adoption_after, decode_entry
from abound.service.model.replicated_model import ReplicatedModel
from abound.service.snapshots import manifest as manifests
from abound.service.store.client import Store, store_errors
from abound.service.store.lease import LeaseLost, acquire


async def find_damage(store: Store, artifacts: ArtifactStore, living: CatalogModel) -> list[str]:
    """Return a sentence for each damaged part of a model's full log, with the way out; empty if there is none.

    Reads all of it: segments, base, log and every adopted state file, one state in memory at a time.
    Corrupted if the manifest of history cannot be read; ArtifactsUnavailable, StoreUnavailable.
    """
    history = History(store, artifacts, living.keys)
    contents = await history.manifest()
    wrong = []
    for segment in contents.segments if contents is not None else ():
        try:
            await history.elements(segment)
        except Corrupted as error:
            wrong.append(str(error))
        except UnknownArtifact as error:
            wrong.append(f"{error}. Restore it from a backup; or, while snapshots are good, {BEGIN_ANEW_HINT}")
    model = ReplicatedModel(living.keys, living.config)
    try:
        await restore_first_state(store, artifacts, model)
        found = [] if wrong else await find_unadoptable(store, artifacts, model)
    except (Corrupted, UnknownApplyVersion, UnknownArtifact, UnknownOffset) as error:
        return [*wrong, str(error)]
    for one in found:
        if one.why == SKIPPED_WITH_EARLIER:
            continue
        what = one.what or "no reason was given"
        wrong.append(
            f"the state file adopted at {one.at.entry} ({what}) cannot be used: {one.why}. Restore "
            f"it from a backup; or, once all snapshots are past that, {BEGIN_ANEW_HINT}"
        )
    return wrong


SKIPPED_WITH_EARLIER = "it was skipped because of the one before"


class UnadoptableState(NamedTuple):
    """An adoption that a start cannot carry out.

    Attributes
    ----------
    at : Offset
        Offset of its entry.
    what : str
        The purpose of its state file, as the adoption records it.
    why : str
        The reason why it cannot be carried out.
    """

    at: Offset
    what: str
    why: str


async def find_unadoptable(
    store: Store, artifacts: ArtifactStore | None, model: ReplicatedModel
) -> list[UnadoptableState]:
    """Return the adoptions that a start could not carry out if it replayed on top of the state of ``model``.

    Reads everything that such a start reads.

    Raises
    ------
    UnknownApplyVersion
        Only another release reads a state file or an entry.
    Corrupted, UnknownOffset
        History or log cannot be read.
    ArtifactsUnavailable, StoreUnavailable
    """
    source = ReplaySource(store, artifacts)
    found = []
    adopted = carried_out = model.position.adopted
    async for elements in source.entries(model.keys, model.offset, None):
        for element in elements:
            if adoption_after(element) is None:
                continue
            at, event = Offset.of_entry(element[0]), decode_entry(element[1]).event
            if not isinstance(event, AdoptEvent) or Offset.parse(event.after) < carried_out:
                continue
            if Offset.parse(event.after) < adopted:
                found.append(UnadoptableState(at, event.reason, SKIPPED_WITH_EARLIER))
                continue
            adopted = at
            try:
                await _try(source, model, event, at)
                carried_out = at
            except (Corrupted, UnknownArtifact, UnknownOffset) as error:
                found.append(UnadoptableState(at, event.reason, str(error)))
    return found


async def _try(source: ReplaySource, model: ReplicatedModel, event: AdoptEvent, at: Offset) -> None:
    """Load a state file and read the entries replayed on top of it up to the adoption; raise the error that prevents
    it.
    """
    await source.load(model.keys, event.index, event.digest, model.limits)
    async for _ in source.entries(model.keys, Offset.parse(event.after), at):
        pass


async def drop_snapshots(store: Store, living: CatalogModel, at: Offset) -> None:
    """Remove the snapshots at or past ``at``, the offset of an adoption that is given up, from the model's list."""
    pointer = living.keys.key("snapshots")
    with store_errors():
        for name in await manifests.ids(store, living.keys):
            if manifests.offset_in(name)[:2] >= at[:2]:
                await store.client.lrem(pointer, 0, name)


async def replace_in_history(
    store: Store, artifacts: ArtifactStore | None, living: CatalogModel, at: Offset, packed: tuple[bytes, bytes]
) -> None:
    """Replace one archived entry by an encoded one.

    Raises
    ------
    Conflict
        History has no such entry any more, or another process holds the model's lease.
    Corrupted, UnknownArtifact, ArtifactsUnavailable, StoreUnavailable
    """
    if artifacts is None:
        raise ArtifactsUnavailable(
            f"the history of {living.keys.name} is needed and no artifact store is set. Set ABOUND_ARTIFACTS_URL"
        )
    history = History(store, artifacts, living.keys)
    payload, checksum = packed
    try:
        async with acquire(store, living.keys) as lease:
            contents = await history.manifest()
            for i, segment in enumerate(contents.segments if contents is not None else ()):
                if contents is None or not Offset.of_entry(segment.first) <= at <= Offset.of_entry(segment.last):
                    continue
                elements = [
                    (name, [b"e", payload, b"c", checksum] if Offset.of_entry(name) == at else fields)
                    for name, fields in await history.elements(segment)
                ]
                to = ArchiveContext(store, artifacts, living, lease)
                written = await write_segment(to, elements, segment.n_before, segment.bytes_before, segment.log_bytes)
                segments = [*contents.segments[:i], written, *contents.segments[i + 1 :]]
                await swap_manifest(to, msgspec.structs.replace(contents, segments=segments))
                return
    except LeaseLost:
        raise Conflict(f"another process has taken over the model {living.keys.name}; try again") from None
    raise Conflict(f"the history of {living.keys.name} has no entry {at.entry} any more")
