"""A model as one file: to copy it to another service, of this release or a newer one, or to keep it.

    bytes 0..8      ABOUNDMF
    8..12           format number, little-endian
    12..16          bytes of the header
    16..32          BLAKE2b-128 of the header
    32..            the header: JSON of ``Header``
    then            the arrays of the state, laid end to end and cut into parts, each with its checksum in the header

What is read is checked before it is used: sizes against the limits before any memory is taken, each part against its
checksum, and the state that comes out against its digest. A file of a newer format says so; one that is damaged in
any place is :class:`Damaged`, never another model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from abound.core.config import ModelConfig
from abound.core.errors import Damaged, InvalidInstance, TooLarge, UnknownApplyVersion
from abound.core.model.state import STATE_FORMAT
from abound.service.artifacts.container import Kind, Pieces, start_of
from abound.service.log.events import APPLY_VERSION
from abound.service.snapshots.arrays import ArrayShape, Part, check_part

KIND = Kind(b"ABOUNDMF", STATE_FORMAT, "model", "header")
MEDIA_TYPE = "application/vnd.abound.model"

MOST_PART_BYTES = 64 * 2**20


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's file holds.

    Attributes
    ----------
    apply_version : int
        Of the release that wrote it: what its state means.
    model, offset : str
        What it was called and how far it was; not needed to read it.
    digest : str
        Of the state.
    state : dict
        What the state has beside its arrays.
    arrays : list of ArrayShape
    parts : list of Part
    """

    apply_version: int
    model: str
    offset: str
    digest: str
    state: dict[str, Any]
    arrays: list[ArrayShape]
    parts: list[Part]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def config(self) -> ModelConfig:
        """Of the model; Damaged when there is none that can be."""
        try:
            return ModelConfig.stored(self.state["config"])
        except (KeyError, TypeError, AttributeError, InvalidInstance) as error:
            raise Damaged(f"the file has no configuration that this release knows: {error}") from None


_header = msgspec.json.Decoder(Header)


def packed(header: Header) -> bytes:
    """Everything before the parts."""
    plain = msgspec.json.encode(header)
    return start_of(KIND, plain)


class Reader:
    """Reads a file piece by piece: ``header``, then ``parts``.

    Parameters
    ----------
    pieces : async iterator of bytes
        The file, in pieces of any size.
    limit : int
        Bytes that the file may have.
    """

    def __init__(self, pieces: AsyncIterator[bytes], limit: int) -> None:
        self._pieces = Pieces(pieces)
        self._limit = limit

    async def header(self) -> Header:
        """What the file holds.

        Raises
        ------
        Damaged
            It is no such file, or not whole.
        UnknownApplyVersion
            A newer release wrote it.
        TooLarge
        """
        plain = await self._pieces.head(KIND)
        try:
            header = _header.decode(plain)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Damaged(f"the header of the file cannot be read: {error}") from None
        if header.apply_version != APPLY_VERSION:
            raise UnknownApplyVersion(
                f"the file has the apply version {header.apply_version}, and this release has {APPLY_VERSION}"
            )
        if any(not 0 < part.size <= MOST_PART_BYTES for part in header.parts):
            raise Damaged("the file has a part of a size that cannot be")
        if header.size > self._limit:
            raise TooLarge(f"the model has {header.size} bytes, of at most {self._limit}")
        return header

    async def parts(self, header: Header) -> AsyncIterator[bytes]:
        """The parts, each checked; Damaged when one is not what was written, or something follows the last."""
        for i, part in enumerate(header.parts):
            data = await self._pieces.take(part.size, f"its part {i}")
            check_part(i, data, part)
            yield data
        await self._pieces.end()
