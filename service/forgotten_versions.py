"""Versions that were fitted on events which are forgotten: they go, wherever they are.

They cannot be made anew here: that takes as long as the fit did, and it can be asked for again. Until then the index
answers, which has forgotten already. One that a replica has loaded goes from its memory as well, and that is waited
for. A fit that is under way finds out by itself (``fitting.refuse_forgotten``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from core.errors import Conflict, Damaged, NotReady, UnknownApplyVersion, UnknownVersion
from core.serving import LIVE
from core.types import Offset
from service import activation, contenders, copies, presence, versions
from service.adoption import SILENT_SECONDS
from service.card import CARD, Card
from service.copied import is_copied
from service.place import Place

log = structlog.get_logger(__name__)

FENCE_WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2


async def fitted_on(place: Place, first: Offset) -> list[str]:
    """The versions that may have learned an event at or after ``first``. ArtifactsUnavailable."""
    found = []
    # Those without a card first: one that gets its card meanwhile is among those that have one.
    names = await versions.ready(place.artifacts, place.keys)
    names += await versions.ids(place.artifacts, place.keys)
    for name in sorted(set(names)):
        try:
            try:
                card = await versions.ready_of(place.artifacts, place.keys, name)
            except UnknownVersion:
                card = await versions.card_of(place.artifacts, place.keys, name)
        except UnknownVersion:
            continue
        except (Damaged, UnknownApplyVersion):  # nobody can tell what it has learned
            found.append(name)
            continue
        if _learned(card, first):
            found.append(name)
    return found


def _learned(card: Card, first: Offset) -> bool:
    """Whether a version may have learned an event at or after ``first``; one that does not say it clearly may have."""
    until = None if card.data_range is None else card.data_range.get("until")
    try:
        return until is not None and Offset.parse(until)[:2] >= first[:2]
    except ValueError:
        return True


async def take_away(
    place: Place, names: Iterable[str], reason: str, will_delete: Callable[[list[str]], Awaitable[None]]
) -> None:
    """Delete versions, whatever they are needed for, and wait until no replica has them, or copies of their files.

    Copies of what was deleted before go as well, also where ``names`` is empty.

    Raises
    ------
    NotReady
        Other activations, or replicas, have taken too long.
    ArtifactsUnavailable, StoreUnavailable, OutcomeUnknown
    """
    gone = list(names)
    if gone:
        await _take_away(place, gone, reason, will_delete)
    await copies.throw_away(place)


async def _take_away(
    place: Place, gone: list[str], reason: str, will_delete: Callable[[list[str]], Awaitable[None]]
) -> None:
    await will_delete(gone)
    for name in gone:
        await contenders.leave(place.store, place.keys, name)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FENCE_WAIT_SECONDS
    while not await _deleted(place, gone, reason):
        if loop.time() > deadline:
            raise NotReady(
                f"versions of {place.keys.name} are being activated again and again, or copies of the store have not "
                "come so far that a failover to one would lose nothing",
                60.0,
            )
        await place.between()
        await asyncio.sleep(POLL_SECONDS)
    deadline = loop.time() + place.prepare_seconds
    while loaded := await _loaded(place, gone):
        if loop.time() > deadline:
            raise NotReady(f"replicas still have versions that were deleted: {', '.join(loaded)}", 60.0)
        await asyncio.sleep(POLL_SECONDS)
    log.info("deleted versions that were fitted on what is forgotten", model=place.keys.name, versions=gone)


async def _deleted(place: Place, names: list[str], reason: str) -> bool:
    """Whether they are deleted now.

    Not while one of them is active, or would be again after a failover, or a version is being activated.
    """
    at = activation.Place(place.store, place.artifacts, place.keys, place.prepare_seconds, place.between)
    try:
        active = (await activation.active(place.store, place.keys)).version
        if active in names:
            await activation.activate(at, LIVE, f"forget: {reason}"[:1000], if_active=active)
        async with activation.fence(place.store, place.keys):
            if not await is_copied(place.store):
                return False
            if (await activation.active(place.store, place.keys)).version in names:
                return False
            for name in names:
                for card in (CARD, versions.READY):
                    await place.artifacts.delete(f"{versions.folder(place.keys, name)}/{card}")
                await place.artifacts.clear(versions.folder(place.keys, name))
                await contenders.leave(place.store, place.keys, name)  # it may have come to contend since
    except Conflict:
        return False
    return True


async def _loaded(place: Place, names: list[str]) -> list[str]:
    """Those of the replicas that have one of these."""
    present = await presence.present(place.store, place.keys, SILENT_SECONDS)
    return [one.replica for one in present if set(names) & set(one.versions)]
