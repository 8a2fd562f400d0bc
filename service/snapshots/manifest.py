"""Snapshot manifests: position in the log, shapes of the arrays, checksums of the parts and of the manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from abound.core.errors import Corrupted, UnknownApplyVersion, UnknownSnapshot
from abound.core.model.state import STATE_FORMAT
from abound.core.types import START, Offset
from abound.service.artifacts.checksums import decoding, read_sealed
from abound.service.model.position import Position
from abound.service.snapshots.arrays import ArrayShape, Part, check_apply_version
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys

log = structlog.get_logger(__name__)

FORMAT = STATE_FORMAT


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a snapshot.

    Attributes
    ----------
    id : str
    format, apply_version : int
    model, incarnation : str
    offset : str
        Last event that it contains.
    entry_checksum : str
        Checksum of that event's log entry.
    n_entries, log_bytes : int
        Number and size of the log's entries up to there.
    adopted : str
        Offset of the last adoption, ``0-0.0`` if there was none.
    digest : str
        Digest of the state.
    created : int
        Milliseconds of the store's clock.
    state : dict
        The state apart from its arrays.
    arrays : list of ArrayShape
    parts : list of Part
    checksum : str
        BLAKE2b-128 of all other fields; see ``seal``.
    """

    id: str
    format: int
    apply_version: int
    model: str
    incarnation: str
    offset: str
    entry_checksum: str
    n_entries: int
    log_bytes: int
    digest: str
    created: int
    state: dict[str, Any]
    arrays: list[ArrayShape]
    parts: list[Part]
    adopted: str = str(START)
    checksum: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def position(self) -> Position:
        """Return its position in the log."""
        offset = Offset.parse(self.offset)
        adopted = Offset.parse(self.adopted)
        return Position(offset, self.entry_checksum.encode(), self.n_entries, self.log_bytes, adopted)


def manifest_key(keys: ModelKeys, name: str) -> bytes:
    """Return the key of a snapshot's manifest."""
    return keys.key(f"snapshot:{name}:manifest")


def part_key(keys: ModelKeys, name: str, i: int) -> bytes:
    """Return the key of a snapshot's part."""
    return keys.key(f"snapshot:{name}:{i}")


async def ids(store: Store, keys: ModelKeys) -> list[str]:
    """Return the ids of a model's snapshots, newest first."""
    with store_errors():
        found = await store.client.lrange(keys.key("snapshots"), 0, -1)
    return in_order(name.decode() for name in found)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort ids of snapshots, newest first."""
    return sorted(names, key=_place, reverse=True)


async def read_manifests(store: Store, keys: ModelKeys) -> list[SnapshotManifest]:
    """Return the readable manifests of a model's snapshots, newest first."""
    good = []
    for name in await ids(store, keys):
        try:
            good.append(await read_manifest(store, keys, name))
        except (Corrupted, UnknownApplyVersion, UnknownSnapshot) as error:
            log.warning("a snapshot cannot be used", model=keys.name, snapshot=name, reason=str(error))
    return good


async def newest(store: Store, keys: ModelKeys, known: SnapshotManifest | None = None) -> SnapshotManifest | None:
    """Return the newest readable manifest; None if there is none. If it is ``known``, it is not read again."""
    for name in await ids(store, keys):
        if known is not None and known.id == name:
            return known
        with contextlib.suppress(Corrupted, UnknownApplyVersion, UnknownSnapshot):
            return await read_manifest(store, keys, name)
    return None


async def read_manifest(store: Store, keys: ModelKeys, name: str) -> SnapshotManifest:
    """Read the manifest of a snapshot.

    Raises
    ------
    UnknownSnapshot
        There is no snapshot with this id.
    Corrupted, UnknownApplyVersion
        It cannot be read, has another format or belongs to another model.
    """
    with store_errors():
        packed = await store.client.get(manifest_key(keys, name))
    if packed is None:
        raise UnknownSnapshot(f"the model {keys.name} has no snapshot {name}")
    manifest = read_sealed(SnapshotManifest, packed, "its manifest", FORMAT)
    with decoding("its manifest"):
        Offset.parse(manifest.offset)
        Offset.parse(manifest.adopted)
    if (manifest.model, manifest.incarnation) != (keys.name, keys.incarnation) or manifest.id != name:
        raise Corrupted(f"it is a snapshot of {manifest.model} {manifest.incarnation}")
    check_apply_version(manifest.apply_version, "it")
    return manifest


def offset_in(name: str) -> Offset:
    """Return the offset in a snapshot's id; START if there is none, so that such a snapshot sorts as the oldest."""
    try:
        return Offset.parse(name.rpartition("-")[0])
    except ValueError:
        return START


def _place(name: str) -> tuple[Offset, str]:
    return offset_in(name), name
