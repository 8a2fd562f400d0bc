"""Offline repair: finds what keeps a model from being loaded, and repairs it while no service runs (``abound mend``).

    unreadable   an entry of a log, or of the catalog, is damaged
    baseless     the log has lost its start, and there is no snapshot and no history to replace it
    unadoptable  the state file of an adoption is lost, and there is no snapshot past the adoption
    newer        another release wrote it: run that release
    away         history is needed and the artifact store cannot be reached: make it available

An unreadable entry of a log is replaced by a mark at the same offset. The events in it are lost; nothing else is, and
no offset moves. Snapshots past it are removed, because they contain its events, and a start from a snapshot must give
the same model as a replay of the log. An unreadable entry of the catalog becomes the creation of a model if the store
has keys of a model with that incarnation, otherwise a deletion without effect. A baseless model is rebuilt from the
rest of its log. An adoption without its state file is replaced by a mark as well (``service/history/integrity.py``).

A stream cannot be changed in place. It is copied entry by entry under another key, with the same ids. The copy
replaces the stream atomically, unless something was appended meanwhile. If the process dies, garbage collection or an
erasure deletes the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import redis.exceptions

from abound.core.config import ModelConfig
from abound.core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    InvalidInstance,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownOffset,
    UnknownSnapshot,
)
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.history.history import BEGIN_ANEW_HINT as BEGIN_ANEW
from abound.service.history.integrity import UnadoptableState, drop_snapshots, find_unadoptable, replace_in_history
from abound.service.history.replay import rebuild
from abound.service.history.restore import restore_newest
from abound.service.log import stream
from abound.service.log.catalog import CATALOG_KEY, Catalog, CatalogModel
from abound.service.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    Entry,
    MarkEvent,
    ModelCreated,
    ModelDeleted,
    decode_entry,
    encode,
)
from abound.service.log.stream import Element
from abound.service.model.replicated_model import ReplicatedModel
from abound.service.snapshots import manifest as manifests
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys
from abound.service.store.lease import Lease, acquire

READ_ENTRIES = 256
NO_EFFECT = ModelDeleted("", "0-0")
OTHER_RELEASE = "run the release that reads it"


class Finding(NamedTuple):
    """A problem that keeps a model from being loaded.

    Attributes
    ----------
    kind : ``unreadable`` | ``baseless`` | ``unadoptable`` | ``newer`` | ``away``
    model : str
        Empty for the catalog.
    entry : str
        The id of the log entry; empty if the whole log is concerned.
    reason, mending : str
        What is wrong, and what the repair would do.
    """

    kind: Literal["unreadable", "baseless", "unadoptable", "newer", "away"]
    model: str
    entry: str
    reason: str
    mending: str

    @property
    def is_mendable(self) -> bool:
        """Return whether ``repair_finding`` can help; else another release or a reachable artifact store is needed."""
        return self.kind not in ("newer", "away")


async def find_problems(store: Store, artifacts: ArtifactStore | None) -> list[Finding]:
    """Return everything that keeps a model from being loaded. Reads all logs completely. StoreUnavailable."""
    catalog, findings = await _catalog(store)
    for living in catalog:
        found = await _unreadable(store, living)
        findings += found or await _unloadable(store, artifacts, living)
    return findings


async def repair_finding(store: Store, finding: Finding, artifacts: ArtifactStore | None = None) -> None:
    """Repair a finding.

    Raises
    ------
    Conflict
        Nothing was changed. Only another release, or a reachable artifact store, can help; or something was changed
        meanwhile; or another process makes a snapshot; or the state before the entry can only be read from snapshots
        past the entry, which would be removed.
    ArtifactsUnavailable, StoreUnavailable
    """
    if not finding.is_mendable:
        raise Conflict(finding.mending)
    if not finding.model:
        await _rewrite(store, CATALOG_KEY, {finding.entry: await _catalog_entry(store, finding.entry)})
        return
    catalog, _ = await _catalog(store)
    living = catalog.get(finding.model)
    if living is None:
        raise Conflict(f"the model {finding.model} was deleted meanwhile")
    blank = encode(Entry(APPLY_VERSION, b"mending", 0, MarkEvent(f"mended {finding.entry}")))
    if finding.kind == "baseless":
        await _begin_with_log(store, living)
        return
    at = Offset.of_entry(finding.entry)
    if (await stream.trim_of(store, living.keys.log)).covers(at):
        await drop_snapshots(store, living, at)
        await replace_in_history(store, artifacts, living, at, blank)
        return
    async with acquire(store, living.keys) as lease:  # a snapshot in progress may contain the entry's events
        past = [name for name in await manifests.ids(store, living.keys) if manifests.offset_in(name)[:2] >= at[:2]]
        if finding.kind == "unreadable" and past:
            await _check_without(store, artifacts, living, at)
        await _rewrite(store, living.keys.log, {finding.entry: blank}, lease, past)


async def _begin_with_log(store: Store, living: CatalogModel) -> None:
    """Rebuild a model from the rest of its log alone."""
    await _rewrite(store, living.keys.log, {})
    with store_errors():
        gone = (stream.trimmed_key(living.keys.log), living.keys.key("history"), living.keys.key("snapshots"))
        await store.client.delete(*gone)


async def _catalog(store: Store) -> tuple[Catalog, list[Finding]]:
    """Return the models of the catalog, without unreadable entries, and the findings about these."""
    catalog = Catalog()
    findings = []
    with store_errors():
        elements = await store.client.xrange(CATALOG_KEY)
    for entry_id, fields in elements:
        element = (entry_id, [part for field in fields.items() for part in field])
        try:
            catalog.apply(element)
        except Corrupted as error:
            _, event = await _guess_event(store, entry_id.decode())
            made = (
                f"the model {event.name} is created there again"
                if isinstance(event, ModelCreated)
                else "the entry has no effect"
            )
            findings.append(Finding("unreadable", "", entry_id.decode(), str(error), f"{made} from then on"))
            if isinstance(event, ModelCreated):
                payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
                catalog.apply((entry_id, [b"e", payload, b"c", checksum]))
        except UnknownApplyVersion as error:
            findings.append(Finding("newer", "", entry_id.decode(), str(error), "run the release that wrote it"))
    return catalog, findings


async def _guess_event(store: Store, entry: str) -> tuple[ModelKeys | None, ModelCreated | ModelDeleted]:
    """Return the event that an entry of the catalog must have had, and the keys of its model.

    It is a creation if the store has keys of a model with the entry's id as incarnation, otherwise a deletion without
    effect.
    """
    with store_errors():
        async for key in store.client.scan_iter(match=f"abound:{{*:{entry}}}:*", count=1000):
            name = key.decode().removeprefix("abound:{").partition(f":{entry}}}:")[0]
            keys = ModelKeys(name, entry)
            config = ModelConfig()
            for manifest in await manifests.read_manifests(store, keys):
                try:
                    config = ModelConfig.from_stored(dict(manifest.state["config"]))
                    break
                except (InvalidInstance, KeyError, TypeError, ValueError):
                    continue
            return keys, ModelCreated(name, config.to_stored())
    return None, NO_EFFECT


async def _catalog_entry(store: Store, entry: str) -> tuple[bytes, bytes]:
    _, event = await _guess_event(store, entry)
    return encode(CatalogEntry(APPLY_VERSION, event))


async def _unreadable(store: Store, living: CatalogModel) -> list[Finding]:
    """Return the entries of a model's log that cannot be applied."""
    findings = []
    name, after = living.keys.name, START
    while True:
        with store_errors():
            first = "-" if after == START else f"({after.entry}"
            elements = await store.client.xrange(living.keys.log, first, "+", READ_ENTRIES)
        for entry_id, fields in elements:
            entry = entry_id.decode()
            try:
                decode_entry([part for field in fields.items() for part in field])
            except Corrupted as error:
                cost = "the events in it are given up; everything else stays, and no offset moves"
                findings.append(Finding("unreadable", name, entry, str(error), cost))
            except UnknownApplyVersion as error:
                findings.append(Finding("newer", name, entry, str(error), "run the release that wrote it"))
        if not elements:
            return findings
        after = Offset.of_entry(elements[-1][0])


async def _unloadable(store: Store, artifacts: ArtifactStore | None, living: CatalogModel) -> list[Finding]:
    """Return what keeps a model with a readable log from being loaded."""
    name = living.keys.name
    model = ReplicatedModel(living.keys, living.config)
    try:
        await restore_newest(store, model, artifacts=artifacts)
        lost = await find_unadoptable(store, artifacts, model)
    except ArtifactsUnavailable as error:
        return [Finding("away", name, "", str(error), "make the artifact store available")]
    except UnknownApplyVersion as error:
        return [Finding("newer", name, "", str(error), OTHER_RELEASE)]
    except (Corrupted, UnknownOffset) as error:
        n_entries = (await stream.tail(store, living.keys.log)).n_entries
        cost = f"the model is rebuilt from the {n_entries} entries that its log still has; the rest is given up"
        found = [Finding("baseless", name, "", str(error), cost)]
    else:
        found = [_given_up(name, one) for one in lost]
    other = await _of_other_release(store, living) if found else None
    return found if other is None else [Finding("newer", name, "", other, OTHER_RELEASE)]


def _given_up(name: str, one: UnadoptableState) -> Finding:
    reason = f"the state file adopted there ({one.what or 'no reason was given'}) cannot be used: {one.why}"
    cost = (
        "that adoption is given up: from there on the model is a replay of history and log, as they are now, "
        "without that state file; no offset moves. If there is a backup, restore the state file from it instead"
    )
    return Finding("unadoptable", name, one.at.entry, reason, cost)


async def _of_other_release(store: Store, living: CatalogModel) -> str | None:
    """Return why a snapshot needs another release, which may be able to start from it; None if no snapshot does."""
    for snapshot in await manifests.ids(store, living.keys):
        try:
            await manifests.read_manifest(store, living.keys, snapshot)
        except UnknownApplyVersion as error:
            return f"the snapshot {snapshot} cannot be used: {error}"
        except (Corrupted, UnknownSnapshot):
            continue
    return None


async def _check_without(store: Store, artifacts: ArtifactStore | None, living: CatalogModel, at: Offset) -> None:
    """Raise Conflict unless the model can be rebuilt without the snapshots that contain an entry's events."""
    try:
        await rebuild(store, living, at.before, artifacts=artifacts)
    except (Corrupted, UnknownArtifact, UnknownOffset) as error:
        raise Conflict(
            f"the entry {at.entry} of {living.keys.name} cannot be given up, since only snapshots past it are good: "
            f"the state before it cannot be rebuilt ({error}). {BEGIN_ANEW}, including that entry"
        ) from error


async def _rewrite(
    store: Store,
    key: bytes,
    replaced: dict[str, tuple[bytes, bytes]],
    lease: Lease | None = None,
    snapshots: Sequence[str] = (),
) -> None:
    """Replace a stream by a copy with some entries replaced. Conflict if the stream was changed meanwhile.

    The same transaction removes ``snapshots`` from the list of the model that the lease belongs to.
    """
    beside = stream.repaired_key(key)
    after, n_copied = START, 0
    with store_errors():
        await store.client.delete(beside)
        while True:
            first = "-" if after == START else f"({after.entry}"
            elements: list[Element] = await store.client.xrange(key, first, "+", READ_ENTRIES)
            if not elements:
                break
            async with store.client.pipeline(transaction=False) as pipe:
                for entry_id, fields in elements:
                    payload, checksum = replaced.get(entry_id.decode(), (None, None))
                    pipe.xadd(beside, fields if payload is None else {"e": payload, "c": checksum}, id=entry_id)
                await pipe.execute()
            after, n_copied = Offset.of_entry(elements[-1][0]), n_copied + len(elements)
        if after == START:
            await store.client.delete(key)
            return
        async with store.client.pipeline(transaction=True) as pipe:
            try:
                await pipe.watch(key, beside, *([] if lease is None else [lease.fence]))
                held = lease is None or await pipe.get(lease.fence) == lease.token
                whole = await pipe.xlen(beside) == n_copied  # garbage collection may have deleted the copy
                if held and whole and not await pipe.xrevrange(key, "+", f"({after.entry}", 1):
                    pipe.multi()
                    pipe.rename(beside, key)
                    if lease is not None:
                        for name in snapshots:
                            pipe.lrem(lease.keys.key("snapshots"), 0, name)
                    await pipe.execute()
                    return
            except redis.exceptions.WatchError:
                pass
        await store.client.delete(beside)
    raise Conflict("something was appended meanwhile; stop the service and run `abound mend` again")
