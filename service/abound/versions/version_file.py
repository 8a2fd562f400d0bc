"""Version file: a version as one file, to copy it to another model or service, or to store it elsewhere.

    bytes 0..8      ABOUNDVF
    8..12           bytes of the card, little-endian
    12..            the card: JSON of ``Card``
    then            the files of the version, one after the other, in the order of the card

Every part is verified before use, as in a model file. The version is then loaded once before its card is
written to the artifact store. An imported version gets an id of its own; its card records its origin.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from abound.artifacts.artifact_store import PIECE_BYTES, ArtifactStore
from abound.artifacts.file_format import ContainerReader, encode_head
from abound.artifacts.npy import Array, ArrayFile
from abound.log.stream import tail
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound.versions.card import Card, new_id, read_card, refuse_other_reading
from abound.versions.retention import VersionParams
from abound_core.config import ModelConfig
from abound_core.errors import Cancelled, Conflict, Corrupted, InvalidInstance, Malformed, TooLarge, UnknownApplyVersion
from abound_core.types import Offset

MAGIC = b"ABOUNDVF"
MEDIA_TYPE = "application/vnd.abound.version"

MOST_FILES = 10_000
DEFAULT = VersionParams()


class ExportedVersion(NamedTuple):
    """Version being exported: its card, the file's size in bytes, and its pieces, which end early if it is deleted."""

    card: Card
    size: int
    pieces: AsyncIterator[bytes]


async def export_version(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> ExportedVersion:
    """Return a version as one file."""
    card = await versions.card_of(artifacts, keys, name)
    head = encode_head(MAGIC, card)

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        for one in card.files:
            async for piece in artifacts.pieces(f"{versions.folder(keys, name)}/{one.file}"):
                yield piece

    return ExportedVersion(card, len(head) + card.n_bytes, pieces())


async def import_version(
    store: Store,
    artifacts: ArtifactStore,
    keys: ModelKeys,
    pieces: AsyncIterator[bytes],
    limit: int,
    offset: str,
    params: VersionParams = DEFAULT,
    config: ModelConfig | None = None,
) -> Card:
    """Import a version from a file; return its new card.

    ``limit`` bounds the bytes of the file, and ``offset`` is the current offset of the model. With ``config``, a
    version whose instances were read in another way is refused.

    Raises
    ------
    Malformed, InvalidInstance, TooLarge
        The file is damaged, of a newer release, or larger than ``limit``.
    Conflict
        The model's versions, with those being written, would exceed ``params.total_bytes``; or the version reads
        instances in another way; or it is a version of the same model and may have learned events that were
        forgotten, or that the log does not have.
    """
    reader = ContainerReader(pieces)
    name = new_id()
    try:
        card = await _read_card(reader, limit)
        if config is not None:
            refuse_other_reading(card, config)
        await _refuse_past(store, keys, card)
        async with versions.writing(store, keys, name, card.n_bytes):
            # Register this import, then count: of two concurrent imports at least one sees the other.
            total = await versions.written_bytes(store, artifacts, keys)
            if total > params.total_bytes:
                raise Conflict(
                    f"the versions would have {total} bytes, of at most {params.total_bytes}; delete a version first"
                )
            try:
                taken = await _write_version(store, artifacts, keys, name, card, reader, offset)
                await _refuse_past(store, keys, card)  # a forget job since then saw the version, or this check sees it
            except BaseException:
                await artifacts.clear(versions.folder(keys, name))
                raise
        await version_retention.retain(store, artifacts, keys, params.keep)
        return taken
    except Corrupted as error:
        raise Malformed(str(error)) from error
    except UnknownApplyVersion as error:
        raise InvalidInstance(str(error), "body") from error


async def _write_version(
    store: Store, artifacts: ArtifactStore, keys: ModelKeys, name: str, card: Card, reader: ContainerReader, offset: str
) -> Card:
    for one in card.files:
        await artifacts.put_stream(f"{versions.folder(keys, name)}/{one.file}", _read_file(reader, one))
    await reader.check_end()
    same_model = _is_of(keys, card)
    origin = {"id": card.id, "model": card.model, "incarnation": card.incarnation, "data": card.data}
    new = msgspec.structs.replace(
        card,
        id=name,
        model=keys.name,
        incarnation=keys.incarnation,
        data=card.data if same_model else "import",
        upload=card.upload if same_model else None,
        data_range=card.data_range if same_model else None,
        offset=card.offset if same_model else offset,
        created=await store.now(),
        job=None,
        origin=origin,
    )
    from abound_core.methods.fitted import OPAQUE_PREFIX  # imports scipy: only when a version is imported

    if any(one.name.startswith(OPAQUE_PREFIX) for one in new.files):
        await _check_graphs(await versions.arrays_of(artifacts, keys, new))
    await versions.load_from_card(artifacts, keys, new)
    return await versions.finish(artifacts, keys, new)


def _is_of(keys: ModelKeys, card: Card) -> bool:
    """Return whether a version was fitted for this model, so that its offsets are offsets of the model's log."""
    return (card.model, card.incarnation) == (keys.name, keys.incarnation)


async def _refuse_past(store: Store, keys: ModelKeys, card: Card) -> None:
    """Raise Conflict if a version of this model claims events that the log lacks."""
    if not _is_of(keys, card):
        return
    ends = [Offset.parse(text) for text in (card.offset, *(card.data_range or {}).values()) if text is not None]
    last = (await tail(store, keys.log)).last
    if max(ends)[:2] > last[:2]:
        raise Conflict(f"the version reaches offset {max(ends)}, but the log of {keys.name} ends at {last}")


async def _check_graphs(arrays: dict[str, Array]) -> None:
    """Raise Corrupted unless every graph is identical, byte for byte, when it is built again.

    The library that reads graphs trusts their content, so imported graphs are verified in this way. Another
    release of the library, or another kind of processor, builds a different graph.
    """
    left = threading.Event()

    def progress(stage: str, fraction: float) -> None:
        if left.is_set():
            raise Cancelled("the import was cancelled")

    from abound_core.methods.fitted import check_opaque

    try:
        await asyncio.to_thread(check_opaque, arrays, progress)
    finally:
        left.set()


async def _read_card(reader: ContainerReader, limit: int) -> Card:
    card = read_card(await reader.head(MAGIC, "version"))
    if any(one.size <= 0 for one in card.files) or len(card.files) > MOST_FILES:
        raise Corrupted("the file has a part of an impossible size")
    n_bytes = sum(one.size for one in card.files)
    if n_bytes != card.n_bytes:
        raise Corrupted("the card of the file gives a total size that its files do not have")
    if n_bytes > limit:
        raise TooLarge(f"the version has {n_bytes} bytes, of at most {limit}")
    return card


async def _read_file(reader: ContainerReader, one: ArrayFile) -> AsyncIterator[bytes]:
    left = one.size
    while left:
        piece = await reader.read(min(left, PIECE_BYTES), f"its part {one.file}")
        left -= len(piece)
        yield piece
