"""Erase forgotten events from everything stored, once a state without them is adopted.

The records that locate the events are deleted last, so a job that died can be resumed (``abound/replace/forget.py``).

Versions fitted on forgotten events are deleted, not refitted: a refit takes as long as the fit did, and can be
requested again. Meanwhile the index answers, which has already forgotten. Replicas that loaded such a version
also drop it from memory, and the job waits for that. A fit that runs meanwhile is refused
(``erasures.refuse_forgotten``): either it sees this job, or this job finds its version, published or not.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from abound.history import erasures
from abound.history.archive import ArchiveContext, archive, swap_manifest, write_segment
from abound.history.garbage import referenced_state_files
from abound.history.history import History, Segment
from abound.history.replay import compact
from abound.replace.adoption import AdoptionContext
from abound.replace.forget import ForgetPlan
from abound.state import replica_status, snapshots, state_files
from abound.state.replica_status import SILENT_SECONDS
from abound.store.client import store_errors
from abound.store.lease import Lease, acquire
from abound.store.replication import is_replicated, rewrite_aof, wait_replicated
from abound.tasks import wait_until
from abound.versions import activation
from abound.versions import versions as versions
from abound.versions.cache_cleanup import POLL_SECONDS as CACHE_CLEANUP_POLL_SECONDS
from abound.versions.cache_cleanup import cleanup_requests, request_cleanup
from abound.versions.card import CARD, Card
from abound.versions.promotion import challengers
from abound_core.errors import Conflict, Corrupted, NotReady, StoreUnavailable, UnknownApplyVersion, UnknownVersion
from abound_core.model.active_version import LIVE
from abound_core.types import Offset

LEASE_WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2


class Eraser:
    def __init__(self, plan: ForgetPlan) -> None:
        self._plan = plan
        self._place = plan.place
        self._record = plan.record
        self._report_progress = plan.report_progress

    async def erase(self, at: Offset) -> dict[str, Any]:
        """Erase the events from everything stored, after a state without them was adopted at ``at``.

        Raises NotReady if another process holds the lease or the fence for too long, or copies of the store stay
        behind. After StoreUnavailable, also if a failover lost the adoption or what was written since, the job can be
        repeated.
        """
        place = self._place
        record = self._record
        if self._plan.first is not None:  # else history has lost the events already, and the versions before it
            self._report_progress("deleting the versions that were fitted on the events", 0.9)
            fitted = await versions_fitted_since(place, self._plan.first)
            await delete_versions(place, fitted, self._plan.reason, lambda names: record.add(versions_deleted=names))
        async with contextlib.AsyncExitStack() as stack:
            lease = await self._lease(stack)
            keep = replace(place.snapshots, keep=2)
            await record.add(snapshots_deleted=await snapshots.ids(place.store, place.keys))
            self._report_progress("making snapshots without the events", 0.91)
            # All kept snapshots are then past the adoption; the older ones are deleted.
            for _ in range(2):
                made = await compact(place.store, place.living, keep, place.log, artifacts=place.artifacts, lease=lease)
                if made.position.adopted[:2] < at[:2]:
                    raise StoreUnavailable(f"the store has lost the adoption at {at}")
            await self._drop_unfinished()
            self._report_progress("archiving the log", 0.92)
            to = ArchiveContext(place.store, place.artifacts, place.living, lease, place.history, place.log)
            await archive(to)
            self._report_progress("deleting stored predictions of the events", 0.93)
            remembered = self._plan.remembered
            n_before = record.outcome["remembered_deleted"]  # by an attempt that died
            await record.add(remembered_deleted=max(n_before, await remembered.count()))
            await remembered.forget()  # while history still identifies them
            if self._plan.rebuilt:  # history is about to name them, so they now belong to the model
                folder = state_files.folder(place.keys)
                await place.commit(*[f"{folder}/{new.id}" for new in self._plan.rebuilt.values()])
            old = await self._rewrite(to, at)
        self._report_progress("making the store rewrite its append-only file", 0.97)
        store_file = await rewrite_aof(place.store)
        self._report_progress("waiting until copies of the store are up to date", 0.98)
        await wait_replicated(place.store)  # without the lease: the worker makes snapshots and archives meanwhile
        async with contextlib.AsyncExitStack() as stack:
            lease = await self._lease(stack)
            # Last, when the store and all its copies have the new references on disk: if a failover lost those, the old
            # files would be needed again.
            await self._delete_unlisted(at, old, lease)
            await delete_unreferenced(place, lambda names: record.add(indexes_deleted=names))
        kept = await snapshots.ids(place.store, place.keys)
        deleted = [name for name in record.outcome["snapshots_deleted"] if name not in kept]
        return record.outcome | {"snapshots_deleted": deleted, "store_file": store_file}

    async def _lease(self, stack: contextlib.AsyncExitStack) -> Lease:
        place = self._place
        try:
            return await stack.enter_async_context(acquire(place.store, place.keys, wait_seconds=LEASE_WAIT_SECONDS))
        except Conflict:
            raise NotReady(
                "the worker is busy with this model's snapshots and history; try again in a minute", 60.0
            ) from None

    async def _drop_unfinished(self) -> None:
        """Delete what dead processes left of snapshots: it may contain the events."""
        store = self._place.store
        found = await snapshots.unlisted_keys(store, self._place.keys)
        await self._record.add(snapshots_deleted=found)
        with store_errors():
            for some in found.values():
                await store.client.unlink(*some)

    async def _rewrite(self, to: ArchiveContext, at: Offset) -> set[str]:
        """Rewrite the segments that contain any of the events; return the names of the replaced files."""
        history = History(to.store, to.artifacts, to.keys)
        contents = await history.manifest()
        if contents is None:
            return set()
        segments: list[Segment] = []
        old: list[str] = []
        redaction = await self._plan.redaction(rebuilt=self._plan.rebuilt)
        for number, segment in enumerate(contents.segments):
            self._report_progress(f"rewriting history, segment {number + 1} of {len(contents.segments)}", 0.94)
            elements = await history.elements(segment)
            rewritten = [await redaction.redact(element) for element in elements]
            if rewritten != elements:
                old.append(segment.name)
                segment = await write_segment(to, rewritten, segment.n_before, segment.bytes_before, segment.log_bytes)
            segments.append(segment)
        if old or at not in await erasures.completed_adoptions(to.store, to.keys):
            rebuilt = {name: new.id for name, new in self._plan.rebuilt.items()}
            await self._record.add(segments_rewritten=old, indexes_rewritten=rebuilt)
            said = await erasures.completing(to.store, to.keys, at)
            # From here on the adoption is redundant: history leads to the same state.
            await swap_manifest(to, msgspec.structs.replace(contents, segments=segments), also=said)
        return set(old)

    async def _delete_unlisted(self, at: Offset, old: set[str], lease: Lease) -> None:
        """Delete history files that the manifest does not list, provided that it lists none of the ``old`` ones."""
        place = self._place
        contents = await History(place.store, place.artifacts, place.keys).manifest()
        listed = {segment.name for segment in contents.segments} if contents is not None else set()
        if listed & old or (
            contents is not None and at not in await erasures.completed_adoptions(place.store, place.keys)
        ):
            raise StoreUnavailable("the store has lost the newest manifest of the history; try again")
        await wait_replicated(place.store, 0.0)
        await lease.check()
        for name in await place.artifacts.names(f"{place.keys.folder}/history"):
            if name not in listed:
                await place.artifacts.delete(name)


log = structlog.get_logger(__name__)

FENCE_WAIT_SECONDS = 600.0


async def delete_unreferenced(place: AdoptionContext, before: Callable[[list[str]], Awaitable[None]]) -> None:
    """Delete unreferenced state files; the caller holds the adoption lock and the lease.

    ``before`` is awaited with their ids first. Raises NotReady if copies of the store are behind: after a
    failover to one of them, the state files would be needed again.
    """
    await wait_replicated(place.store, 0.0)
    there = set(await state_files.ids(place.artifacts, place.keys))
    going = sorted(there - await referenced_state_files(place.store, place.artifacts, place.keys, place.log))
    await before(going)
    for name in going:
        await state_files.delete(place.artifacts, place.keys, name)


async def versions_fitted_since(place: AdoptionContext, first: Offset) -> list[str]:
    """Return the versions that may have learned an event at or after ``first``."""
    found = []
    # Unpublished versions first: one published meanwhile then appears among the published ones.
    names = await versions.ids(place.artifacts, place.keys, versions.READY)
    names += await versions.ids(place.artifacts, place.keys)
    for name in sorted(set(names)):
        try:
            try:
                card = await versions.unpublished_card(place.artifacts, place.keys, name)
            except UnknownVersion:
                card = await versions.card_of(place.artifacts, place.keys, name)
        except UnknownVersion:
            continue
        except (Corrupted, UnknownApplyVersion):  # its training data is unknown
            found.append(name)
            continue
        if _learned(card, first):
            found.append(name)
    return found


def _learned(card: Card, first: Offset) -> bool:
    """Return whether a version may have learned an event at or after ``first``; True if its card is unclear."""
    until = None if card.data_range is None else card.data_range.get("until")
    try:
        return until is not None and Offset.parse(until)[:2] >= first[:2]
    except ValueError:
        return True


async def delete_versions(
    place: AdoptionContext, names: Iterable[str], reason: str, will_delete: Callable[[list[str]], Awaitable[None]]
) -> None:
    """Delete versions, even active ones and others that retention would keep.

    Wait until no replica has them or cached copies of their files; NotReady if that takes too long. Cached files of
    versions deleted earlier are cleaned up as well, even if ``names`` is empty.
    """
    gone = list(names)
    if gone:
        await _withdraw_and_delete(place, gone, reason, will_delete)
    await clean_caches(place)


async def _withdraw_and_delete(
    place: AdoptionContext, gone: list[str], reason: str, will_delete: Callable[[list[str]], Awaitable[None]]
) -> None:
    await will_delete(gone)
    for name in gone:
        await challengers.withdraw(place.store, place.keys, name)

    async def are_deleted() -> bool:
        await place.checkpoint()
        return await _deleted(place, gone, reason)

    async def are_unloaded() -> bool:
        return not await _loaded(place, gone)

    if not await wait_until(are_deleted, POLL_SECONDS, FENCE_WAIT_SECONDS):
        raise NotReady(
            f"versions of {place.keys.name} are activated repeatedly, or copies of the store are behind; try again "
            "in a minute",
            60.0,
        )
    if not await wait_until(are_unloaded, POLL_SECONDS, place.prepare_seconds):
        loaded = ", ".join(await _loaded(place, gone))
        raise NotReady(f"replicas still have deleted versions loaded: {loaded}", 60.0)
    log.info("deleted versions fitted on forgotten events", model=place.keys.name, versions=gone)


async def _deleted(place: AdoptionContext, names: list[str], reason: str) -> bool:
    """Try to delete the versions now; return whether they are deleted.

    They are not while one of them is active, or might be after a failover, or while an activation runs.
    """
    at = activation.ActivationContext(place.store, place.artifacts, place.keys, place.prepare_seconds, place.checkpoint)
    try:
        active = (await activation.read_active(place.store, place.keys)).version
        if active in names:
            await activation.activate(at, LIVE, f"forget: {reason}"[:1000], if_active=active)
        async with activation.fence(place.store, place.keys):
            if not await is_replicated(place.store):
                return False
            if (await activation.read_active(place.store, place.keys)).version in names:
                return False
            for name in names:
                for card in (CARD, versions.READY):
                    await place.artifacts.delete(f"{versions.folder(place.keys, name)}/{card}")
                await place.artifacts.clear(versions.folder(place.keys, name))
                await challengers.withdraw(place.store, place.keys, name)  # it may have been entered since
    except Conflict:
        return False
    return True


async def _loaded(place: AdoptionContext, names: list[str]) -> list[str]:
    present = await replica_status.live_replicas(place.store, place.keys, SILENT_SECONDS)
    return [one.replica for one in present if set(names) & set(one.versions)]


async def clean_caches(place: AdoptionContext) -> None:
    """Make every replica clean its file cache of deleted versions, and wait for it; NotReady if that takes too long."""
    if place.artifacts.is_directory:
        return  # replicas map its files, there are no copies
    name = secrets.token_hex(4)

    async def are_cleaned() -> bool:
        await place.checkpoint()
        if name not in await cleanup_requests(place.store):
            await request_cleanup(place.store, name)
        return not await _behind(place, name)

    if not await wait_until(are_cleaned, CACHE_CLEANUP_POLL_SECONDS, place.prepare_seconds):
        behind = ", ".join(await _behind(place, name))
        raise NotReady(f"replicas may still have copies of deleted versions: {behind}", 60.0)


async def _behind(place: AdoptionContext, name: str) -> list[str]:
    present = await replica_status.live_replicas(place.store, place.keys, SILENT_SECONDS)
    return [one.replica for one in present if one.swept_for is not None and name not in one.swept_for]
