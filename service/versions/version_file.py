"""A version as one file: to copy it to another model or another service, or to keep it.

    bytes 0..8      ABOUNDVF
    8..12           format number, little-endian
    12..16          bytes of the card
    16..32          BLAKE2b-128 of the card
    32..            the card: JSON of ``Card``
    then            the files of the version, one after the other, as the card lists them

What is read is checked before it is used, as for a model's file; then it is loaded once, before it has a card in the
artifact store. An imported version has an id of its own, and its card says what it was.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from abound.core.config import ModelConfig
from abound.core.errors import Cancelled, Conflict, Damaged, InvalidInstance, Malformed, TooLarge, UnknownApplyVersion
from abound.core.types import Offset
from abound.service.artifacts.artifact_store import PIECE_BYTES, Artifacts
from abound.service.artifacts.container import Kind, Pieces, start_of
from abound.service.artifacts.npy import Array, ArrayFile
from abound.service.history import erasures
from abound.service.log.stream import tail
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.versions import repository as versions
from abound.service.versions import retention as version_retention
from abound.service.versions.card import Card, new_id, read_card, refuse_read_otherwise
from abound.service.versions.retention import VersionParams

KIND = Kind(b"ABOUNDVF", 1, "version", "card")
MEDIA_TYPE = "application/vnd.abound.version"

MOST_FILES = 10_000
DEFAULT = VersionParams()


class Exported(NamedTuple):
    """A version on its way out: its card, bytes of the file, and its pieces, which end early when it is deleted."""

    card: Card
    size: int
    pieces: AsyncIterator[bytes]


async def export_version(artifacts: Artifacts, keys: ModelKeys, name: str) -> Exported:
    """A version as one file. UnknownVersion, Damaged, ArtifactsUnavailable."""
    card = await versions.card_of(artifacts, keys, name)
    plain = msgspec.json.encode(card)
    head = start_of(KIND, plain)

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        for one in card.files:
            async for piece in artifacts.pieces(f"{versions.folder(keys, name)}/{one.file}"):
                yield piece

    return Exported(card, len(head) + card.n_bytes, pieces())


async def import_version(
    store: Store,
    artifacts: Artifacts,
    keys: ModelKeys,
    pieces: AsyncIterator[bytes],
    limit: int,
    offset: str,
    params: VersionParams = DEFAULT,
    config: ModelConfig | None = None,
) -> Card:
    """Take over a version from a file; its new card.

    Parameters
    ----------
    limit : int
        Most bytes of the file.
    offset : str
        Of the model, as it is.
    params : VersionParams
        How many stay, and their bytes; those that are taken over at the same time count.
    config : ModelConfig, optional
        Of the model: a version that reads instances otherwise is refused.

    Raises
    ------
    Malformed, InvalidInstance, TooLarge
        The file is damaged, of a newer release, or over ``limit``.
    Conflict
        The versions of the model would have too many bytes; or it reads instances otherwise; or the version is one of
        the same model, and events that it may have learned are forgotten by now, or there are no such events.
    ArtifactsUnavailable, StoreUnavailable
    """
    reader = _Reader(pieces)
    name = new_id()
    try:
        card = await reader.card(limit)
        if config is not None:
            refuse_read_otherwise(card, config)
        await _refuse_past(store, keys, card)
        async with version_retention.writing(store, keys, name, card.n_bytes):
            # Said first, then counted: of two at one time, one at least sees the other.
            total = await version_retention.written_bytes(store, artifacts, keys)
            if total > params.total_bytes:
                raise Conflict(
                    f"the versions would have {total} bytes, of at most {params.total_bytes}; delete one before"
                )
            try:
                taken = await _taken(store, artifacts, keys, name, card, reader, offset)
                await _refuse_past(store, keys, card)  # a forgetting since then has seen the version, or this sees it
            except BaseException:
                await artifacts.clear(versions.folder(keys, name))
                raise
        await version_retention.retain(store, artifacts, keys, params.keep)
        return taken
    except Damaged as error:
        raise Malformed(str(error)) from error
    except UnknownApplyVersion as error:
        raise InvalidInstance(str(error), "body") from error


async def _taken(
    store: Store, artifacts: Artifacts, keys: ModelKeys, name: str, card: Card, reader: _Reader, offset: str
) -> Card:
    for one in card.files:
        path = f"{versions.folder(keys, name)}/{one.file}"
        await artifacts.put_stream(path, reader.file(one))
    await reader.end()
    same_model = _is_of(keys, card)
    origin = {"id": card.id, "model": card.model, "incarnation": card.incarnation, "data": card.data}
    with reaching():
        seconds, microseconds = await store.client.time()
    new = msgspec.structs.replace(
        card,
        id=name,
        model=keys.name,
        incarnation=keys.incarnation,
        data=card.data if same_model else "import",
        upload=card.upload if same_model else msgspec.UNSET,
        data_range=card.data_range if same_model else None,
        offset=card.offset if same_model else offset,
        created=seconds + microseconds / 1e6,
        job=None,
        origin=origin,
    ).sealed()
    from abound.core.methods.fitted import OPAQUE  # imports scipy: not before somebody brings a version

    if any(one.name.startswith(OPAQUE) for one in new.files):
        await _check_graphs(await versions.arrays_of(artifacts, keys, new))
    await versions.load_as(artifacts, keys, new)
    return await versions.finish(artifacts, keys, new)


def _is_of(keys: ModelKeys, card: Card) -> bool:
    """Whether a version is one of this model: its offsets are those of the model's log."""
    return (card.model, card.incarnation) == (keys.name, keys.incarnation)


async def _refuse_past(store: Store, keys: ModelKeys, card: Card) -> None:
    """Conflict when a version of the model says to have learned what the log does not have, or what may be forgotten.

    Which events were forgotten nobody knows any more, only when; so all that ends before the last time is refused.
    """
    if not _is_of(keys, card):
        return
    ends = [Offset.parse(text) for text in (card.offset, *(card.data_range or {}).values()) if text is not None]
    last = (await tail(store, keys.log)).last
    if max(ends)[:2] > last[:2]:
        raise Conflict(f"the version is of {max(ends)}, and the log of {keys.name} ends at {last}")
    if card.data_range is None or card.data_range["until"] is None:
        return
    if await erasures.unfinished(store, keys):
        raise Conflict(
            f"events of {keys.name} are being forgotten, and the version may have learned them. Ask again when the job "
            "has ended; if it was given up, forget the same once more, or anything else: that ends it as well"
        )
    since = max(await erasures.complete(store, keys), default=None)
    if since is not None and Offset.parse(card.data_range["until"])[:2] < since[:2]:
        raise Conflict(
            f"events of {keys.name} were forgotten at {since}, and the version may have learned them before: it was "
            f"fitted on what came up to {card.data_range['until']}"
        )


async def _check_graphs(arrays: dict[str, Array]) -> None:
    """Graphs are read by a library that believes them, so each is made anew and must be the same, byte for byte.

    Damaged where it is not: another release of the library, or another kind of processor, makes another one.
    """
    left = threading.Event()

    def progress(stage: str, fraction: float) -> None:
        if left.is_set():
            raise Cancelled("nobody waits for the version any more")

    from abound.core.methods.fitted import check_opaque

    try:
        await asyncio.to_thread(check_opaque, arrays, progress)
    finally:
        left.set()


class _Reader:
    """Reads a file piece by piece: ``card``, then ``file`` for each that it lists, then ``end``."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = Pieces(pieces)

    async def card(self, limit: int) -> Card:
        """What the file holds."""
        plain = await self._pieces.head(KIND)
        card = read_card(plain)
        if any(one.size <= 0 for one in card.files) or len(card.files) > MOST_FILES:
            raise Damaged("the file has a part of a size that cannot be")
        n_bytes = sum(one.size for one in card.files)
        if n_bytes != card.n_bytes:
            raise Damaged("the card of the file lists what cannot be in it")
        if n_bytes > limit:
            raise TooLarge(f"the version has {n_bytes} bytes, of at most {limit}")
        return card

    async def file(self, one: ArrayFile) -> AsyncIterator[bytes]:
        """The bytes of the next file."""
        left = one.size
        while left:
            piece = await self._pieces.take(min(left, PIECE_BYTES), f"its part {one.file}")
            left -= len(piece)
            yield piece

    async def end(self) -> None:
        """Damaged when something follows the last file."""
        await self._pieces.end()
