"""Activation: switch all replicas to another version at one offset, while learning goes on.

A failure before ``ActivateEvent`` leaves the model unchanged; replicas release the version later. A replica that
reads ``ActivateEvent`` without having the version stops there and is not ready until it has loaded it
(``abound/replica/loaded_versions.py``). It never answers for a later offset with the former version.

Two records in the store:

    ...:activation-lease    JSON of ``PrepareVersionEvent`` (``abound/store/lease.py``)
    ...:active              hash: version, digest, former, activation, at; changed by the script that appends
                            ``ActivateEvent``

The first is the fence. A replica that starts between ``PrepareVersionEvent`` and ``ActivateEvent`` reads from it
which version to load. The second is for processes that do not follow the log: it names the active version at the
log's end. Neither is part of the replicated state.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.log.events import APPLY_VERSION, ActivateEvent, Entry, PrepareVersionEvent, encode
from abound.state import replica_status
from abound.state.replica_status import SILENT_SECONDS
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import ACTIVATION, Lease, LeaseLost, acquire
from abound.tasks import do_nothing, retry, wait_until
from abound.versions import versions as versions
from abound.versions.card import Card
from abound_core.errors import (
    ArtifactsUnavailable,
    Conflict,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownVersion,
    VersionDeleted,
)
from abound_core.model.active_version import LIVE
from abound_core.types import START, Offset

POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0
APPEND_SECONDS = 60.0
PUBLISH_SECONDS = 900.0  # longest wait for activations; one takes at most a third of it

log = structlog.get_logger(__name__)


class ActivationContext(NamedTuple):
    store: Store
    artifacts: ArtifactStore | None  # joined; None: only the index can be activated
    keys: ModelKeys
    # longest wait for replicas to load the version; then the others halt until they have
    prepare_seconds: float = 300.0
    # Awaited repeatedly until ``ActivateEvent`` is appended. An exception from it ends the activation.
    checkpoint: Callable[[], Awaitable[None]] = do_nothing


def fence(store: Store, keys: ModelKeys, wait_seconds: float = 0.0) -> contextlib.AbstractAsyncContextManager[Lease]:
    """Hold the activation fence: meanwhile no other process activates or deletes a version of the model.

    Raises StoreUnavailable, and Conflict if another process still holds the fence after ``wait_seconds``.
    """
    return acquire(store, keys, purpose=ACTIVATION, wait_seconds=wait_seconds)


async def publish(store: Store, artifacts: ArtifactStore, keys: ModelKeys, name: str) -> Card:
    """Write the card of a version that ``versions.write`` left unpublished. Repeating it is harmless.

    Raises VersionDeleted if the version was deleted before, Conflict if activations held the fence for
    ``PUBLISH_SECONDS``.
    """
    async with fence(store, keys, PUBLISH_SECONDS):  # a forget job may delete unpublished versions
        with contextlib.suppress(UnknownVersion):
            return await versions.card_of(artifacts, keys, name)
        try:
            card = await versions.unpublished_card(artifacts, keys, name)
        except UnknownVersion as error:
            raise VersionDeleted("the version was deleted before its job ended; start the job again") from error
        await versions.finish(artifacts, keys, card)
        await artifacts.delete(f"{versions.folder(keys, name)}/{versions.READY}")
        return card


async def activate(place: ActivationContext, version: str, reason: str, if_active: str | None = None) -> Offset:
    """Switch all replicas to a version at one offset; return that offset. ``live`` is the index.

    If the version is already active, nothing is appended, and the offset of its activation is returned.

    Raises
    ------
    UnknownVersion, UnknownApplyVersion, Corrupted
        The version does not exist or cannot be used.
    Conflict
        Another activation is in progress, or another version than ``if_active`` is active.
    NotReady
        There are replicas, and none could load the version in time.
    OutcomeUnknown
        The version may or may not be activated.
    """
    store, keys = place.store, place.keys
    # While the fence is held, no other activation runs and no version is deleted.
    async with fence(store, keys) as lease:
        before = await read_active(store, keys)
        if if_active not in (None, before.version):
            raise Conflict(f"the active version of {keys.name} is {before.version} and not {if_active}")
        if version == before.version:
            return before.at
        # Load the version once, to check that it is intact.
        event = ActivateEvent(secrets.token_hex(8), version, await _digest_of(place, version), reason)
        origin = secrets.token_bytes(8)
        if version != LIVE:  # the index needs no preparation
            prepare = PrepareVersionEvent(event.activation, version, event.digest, reason)
            await lease.renew(msgspec.json.encode(prepare))
            # The replicas load the version. Wait until every ready one has, or until ``prepare_seconds`` have passed.
            await lease.append(encode(Entry(APPLY_VERSION, origin, 1, prepare)))
            await _until_loaded(place, prepare, lease)
        packed = encode(Entry(APPLY_VERSION, origin, 2, event))
        # The script that appends also checks the fence.
        append = partial(
            lease.append,
            packed,
            record="active",
            activation=event.activation,
            version=version,
            digest=event.digest,
            former=before.version,
        )
        try:
            at = await retry(append, StoreUnavailable, RETRY_SECONDS, APPEND_SECONDS)
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                f"the store became unavailable during the activation; check which version is active: {error}"
            ) from error
    log.info(
        "activated a version", model=keys.name, version=version, former=before.version, offset=str(at), reason=reason
    )
    return at


async def _digest_of(place: ActivationContext, version: str) -> str:
    """Load the version to check it, and return its digest; empty for the index."""
    if version == LIVE:
        return ""
    if place.artifacts is None:
        raise ArtifactsUnavailable("activating a version needs an artifact store: set ABOUND_ARTIFACTS_URL")
    await place.artifacts.join(place.store)
    loaded = await versions.load(place.artifacts, place.keys, version)
    return loaded.card.digest


async def _until_loaded(place: ActivationContext, prepare: PrepareVersionEvent, lease: Lease) -> None:
    ready: list[replica_status.PublishedStatus] = []
    missing: list[str] = []

    async def is_loaded() -> bool:
        nonlocal ready, missing
        await place.checkpoint()
        if lease.lost:
            raise LeaseLost
        ready = [
            one for one in await replica_status.live_replicas(place.store, place.keys, SILENT_SECONDS) if one.ready
        ]
        missing = [one.replica for one in ready if prepare.version not in one.versions]
        return not missing

    if await wait_until(is_loaded, POLL_SECONDS, place.prepare_seconds):
        return
    if len(missing) == len(ready):
        raise NotReady(
            f"no replica could load the version {prepare.version} within {place.prepare_seconds:g} s; see the "
            "logs of the replicas"
        )
    log.warning("activating a version before all replicas loaded it", model=place.keys.name, without=missing)


class ActiveVersion(NamedTuple):
    """Last activated version and the offset of its activation; ``former`` was active before it."""

    version: str = LIVE
    digest: str = ""
    at: Offset = START
    former: str = LIVE


async def read_active(store: Store, keys: ModelKeys) -> ActiveVersion:
    """Return the active version at the end of a model's log."""
    with store_errors():
        found = await store.client.hmget(keys.key("active"), ["version", "digest", "at", "former"])
    if found[0] is None:
        return ActiveVersion()
    version, digest, at, former = (text.decode() for text in found)
    return ActiveVersion(version, digest, Offset.of_entry(at), former)
