"""Export file of a model: a backup, or a copy for another service of this release or a newer one.

    bytes 0..8      ABOUNDMF
    8..12           bytes of the head, little-endian
    12..            the head: JSON of ``StateManifest``
    then            the parts of the state image

Everything is checked before it is used: sizes against the limits before any memory is allocated, each part against its
checksum, and the state against its digest. A file of another format is refused with a message that says so. Damage at
any place raises :class:`Corrupted`; it never yields another model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from abound.artifacts.file_format import ContainerReader
from abound.state.state_image import StateManifest, parse, read_parts
from abound_core.errors import Corrupted, TooLarge

MAGIC = b"ABOUNDMF"
MEDIA_TYPE = "application/vnd.abound.model"

MOST_PART_BYTES = 64 * 2**20


async def read_model_file(pieces: AsyncIterator[bytes], limit: int) -> tuple[StateManifest, AsyncIterator[bytes]]:
    """Read and check the manifest in a file; return it and an iterator that reads and checks the parts.

    ``limit`` is the most bytes that the parts may have; TooLarge for more. The iterator raises Corrupted, also if
    anything follows the last part.
    """
    reader = ContainerReader(pieces)
    manifest = parse(await reader.head(MAGIC, "model"), "the head of the file")
    if any(not 0 < part.size <= MOST_PART_BYTES for part in manifest.parts):
        raise Corrupted("the file has a part of an impossible size")
    if manifest.size > limit:
        raise TooLarge(f"the model has {manifest.size} bytes, more than the limit of {limit}")
    return manifest, _parts(reader, manifest)


async def _parts(reader: ContainerReader, manifest: StateManifest) -> AsyncIterator[bytes]:
    async def get(name: str) -> bytes:
        return await reader.read(manifest.parts[int(name)].size, f"its part {name}")

    async for part in read_parts(get, manifest):
        yield part
    await reader.check_end()
