"""Export file of a model, for copying it to another service of this release or a newer one, or for keeping it.

    bytes 0..8      ABOUNDMF
    8..12           format number, little-endian
    12..16          bytes of the header
    16..32          BLAKE2b-128 of the header
    32..            the header: JSON of ``ModelFileHeader``
    then            the arrays of the state, concatenated and cut into parts, each with its checksum in the header

Everything is checked before it is used: sizes against the limits before any memory is allocated, each part against its
checksum, and the state against its digest. A file of a newer format is refused with a message that says so. Damage at
any place raises :class:`Corrupted`; it never yields another model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from abound.core.config import ModelConfig
from abound.core.errors import Corrupted, InvalidInstance, TooLarge, UnknownApplyVersion
from abound.core.model.state import STATE_FORMAT
from abound.service.artifacts.checksums import decoding
from abound.service.artifacts.container import ContainerFormat, ContainerReader
from abound.service.log.events import APPLY_VERSION
from abound.service.snapshots.arrays import ArrayShape, Part, check_part

MODEL_FILE = ContainerFormat(b"ABOUNDMF", STATE_FORMAT, "model", "header")
MEDIA_TYPE = "application/vnd.abound.model"

MOST_PART_BYTES = 64 * 2**20


class ModelFileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a model's file.

    Attributes
    ----------
    apply_version : int
        Version of the rules for applying events, of the release that wrote the file.
    model, offset : str
        Name and offset of the model when it was written; not needed for reading.
    digest : str
        Digest of the state.
    state : dict
        The state apart from its arrays.
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
        """Return the bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the model; Corrupted if it is missing or invalid."""
        try:
            return ModelConfig.from_stored(self.state["config"])
        except (KeyError, TypeError, AttributeError, InvalidInstance) as error:
            raise Corrupted(f"the file has no configuration that this release knows: {error}") from None


class ModelFileReader:
    """Reads a file piece by piece: ``header``, then ``parts``.

    Parameters
    ----------
    pieces : async iterator of bytes
        The file, in pieces of any size.
    limit : int
        Most bytes that the parts may have.
    """

    def __init__(self, pieces: AsyncIterator[bytes], limit: int) -> None:
        self._pieces = ContainerReader(pieces)
        self._limit = limit

    async def header(self) -> ModelFileHeader:
        """Read and check the header.

        Raises
        ------
        Corrupted
            It is no such file, or it is damaged.
        UnknownApplyVersion
            Another release wrote it.
        TooLarge
        """
        plain = await self._pieces.head(MODEL_FILE)
        with decoding("the header of the file"):
            header = msgspec.json.decode(plain, type=ModelFileHeader)
        if header.apply_version != APPLY_VERSION:
            raise UnknownApplyVersion(
                f"the file has the apply version {header.apply_version}; this release reads {APPLY_VERSION}: "
                "run the release that wrote it"
            )
        if any(not 0 < part.size <= MOST_PART_BYTES for part in header.parts):
            raise Corrupted("the file has a part of an impossible size")
        if header.size > self._limit:
            raise TooLarge(f"the model has {header.size} bytes, more than the limit of {self._limit}")
        return header

    async def parts(self, header: ModelFileHeader) -> AsyncIterator[bytes]:
        """Yield the parts. Corrupted if one is damaged, or if anything follows the last."""
        for i, part in enumerate(header.parts):
            data = await self._pieces.read(part.size, f"its part {i}")
            check_part(i, data, part)
            yield data
        await self._pieces.check_end()
