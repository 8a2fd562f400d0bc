"""The file of a data set, read where it lies, or from a copy where it does not lie on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from service.artifacts import Artifacts


@asynccontextmanager
async def local_file(artifacts: Artifacts, name: str) -> AsyncIterator[Path]:
    """A file of this machine with the bytes of an artifact, under a name that ends as its own. UnknownArtifact."""
    await artifacts.size(name)
    path = artifacts.path(name)
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="abound-") as directory:
        copy = Path(directory) / name.rpartition("/")[2]
        with copy.open("wb") as file:
            async for piece in artifacts.pieces(name):
                file.write(piece)
        yield copy
