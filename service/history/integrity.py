"""Whether the past of a model is whole: all that history and log name is there, and is what was written.

Starts do not need it while a snapshot is good, so nobody notices what is damaged in it, until somebody verifies,
rebuilds or forgets.

Adoptions that a start cannot carry out: those whose index cannot be had, and no snapshot past them stands in.

A start that meets one waits, since the index may come back. When it does not, the adoption can be given up: a mark
takes its place, in the log or in history, so that no offset moves, and from there on the model is what its events make
of the state before. So it is with every adoption that was passed over for it and would not be any more. No other
index ever takes its place.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from abound.core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Damaged,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
)
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.archive import Archiving, swap, write_segment
from abound.service.history.history import MENDING, History
from abound.service.history.replay import Source
from abound.service.history.restore import restore_beginning
from abound.service.log.catalog import Living
from abound.service.log.events import Adopt, adoption_after, decode_entry
from abound.service.model.replicated_model import ModelReplica
from abound.service.snapshots import manifest as manifests
from abound.service.store.client import Store, reaching
from abound.service.store.lease import LeaseLost, take


async def missing(store: Store, artifacts: Artifacts, living: Living) -> list[str]:
    """What of a model's past cannot be used, a sentence each that names it and the way out; empty: all can.

    Reads all of it: segments, base, log, and each index that is adopted on the way, one in memory at a time.
    Damaged when the list of history cannot be read; ArtifactsUnavailable, StoreUnavailable.
    """
    history = History(store, artifacts, living.keys)
    contents = await history.contents()
    wrong = []
    for segment in contents.segments if contents is not None else ():
        try:
            await history.elements(segment)
        except Damaged as error:
            wrong.append(str(error))
        except UnknownArtifact as error:
            wrong.append(f"{error}. Bring it back from a copy; or, while snapshots are good, {MENDING}")
    model = ModelReplica(living.keys, living.config)
    try:
        await restore_beginning(store, artifacts, model)
        found = [] if wrong else await unadoptable(store, artifacts, model)
    except (Damaged, UnknownApplyVersion, UnknownArtifact, UnknownOffset) as error:
        return [*wrong, str(error)]
    for one in found:
        if one.why == PASSED_OVER:
            continue
        what = one.what or "no reason was given"
        wrong.append(
            f"the index that is adopted at {one.at.entry} ({what}) cannot be had: {one.why}. Bring "
            f"it back from a copy; or, once all snapshots are past that, {MENDING}"
        )
    return wrong


PASSED_OVER = "it was passed over for the one before"


class Unadoptable(NamedTuple):
    """An adoption that cannot be carried out.

    Attributes
    ----------
    at : Offset
        Of its entry.
    what : str
        For what the index was made.
    why : str
    """

    at: Offset
    what: str
    why: str


async def unadoptable(store: Store, artifacts: Artifacts | None, model: ModelReplica) -> list[Unadoptable]:
    """The adoptions that a start would not get over which replays on top of the state that ``model`` has.

    Reads all that such a start reads.

    Raises
    ------
    UnknownApplyVersion
        Another release reads the index, or an entry.
    Damaged, UnknownOffset
        The past cannot be read.
    ArtifactsUnavailable, StoreUnavailable
    """
    source = Source(store, artifacts)
    found = []
    adopted = carried_out = model.position.adopted
    async for elements in source.entries(model.keys, model.offset, None):
        for element in elements:
            if adoption_after(element) is None:
                continue
            at, event = Offset.of_entry(element[0]), decode_entry(element[1]).event
            if not isinstance(event, Adopt) or Offset.parse(event.after) < carried_out:
                continue
            if Offset.parse(event.after) < adopted:
                found.append(Unadoptable(at, event.reason, PASSED_OVER))
                continue
            adopted = at
            try:
                await _try(source, model, event, at)
                carried_out = at
            except (Damaged, UnknownArtifact, UnknownOffset) as error:
                found.append(Unadoptable(at, event.reason, str(error)))
    return found


async def _try(source: Source, model: ModelReplica, event: Adopt, at: Offset) -> None:
    """Get an index, and what is replayed on top of it up to the adoption; raises what keeps it from being had."""
    await source.load(model.keys, event.index, event.digest, model.limits)
    async for _ in source.entries(model.keys, Offset.parse(event.after), at):
        pass


async def drop_snapshots(store: Store, living: Living, at: Offset) -> None:
    """Let nothing point any more to the snapshots at an adoption that is given up, or past it."""
    pointer = living.keys.of("snapshots")
    with reaching():
        for name in await manifests.ids(store, living.keys):
            if manifests.offset_in(name)[:2] >= at[:2]:
                await store.client.lrem(pointer, 0, name)


async def replace_in_history(
    store: Store, artifacts: Artifacts | None, living: Living, at: Offset, packed: tuple[bytes, bytes]
) -> None:
    """Put a packed entry into the place of one that is in history.

    Raises
    ------
    Conflict
        It is not there any more, or another process has the model.
    Damaged, UnknownArtifact, ArtifactsUnavailable, StoreUnavailable
    """
    if artifacts is None:
        raise ArtifactsUnavailable(f"the history of {living.keys.name} is needed and no artifact store is set")
    history = History(store, artifacts, living.keys)
    payload, checksum = packed
    try:
        async with take(store, living.keys) as lease:
            contents = await history.contents()
            for i, segment in enumerate(contents.segments if contents is not None else ()):
                if contents is None or not Offset.of_entry(segment.first) <= at <= Offset.of_entry(segment.last):
                    continue
                elements = [
                    (name, [b"e", payload, b"c", checksum] if Offset.of_entry(name) == at else fields)
                    for name, fields in await history.elements(segment)
                ]
                to = Archiving(store, artifacts, living, lease)
                written = await write_segment(to, elements, segment.n_before, segment.bytes_before, segment.log_bytes)
                segments = [*contents.segments[:i], written, *contents.segments[i + 1 :]]
                await swap(to, msgspec.structs.replace(contents, segments=segments))
                return
    except LeaseLost:
        raise Conflict(f"another process has the model {living.keys.name}") from None
    raise Conflict(f"the history of {living.keys.name} has no entry {at.entry} any more")
