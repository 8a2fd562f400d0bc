"""A bounded folder of this machine with files of an artifact store that is elsewhere, so that they can be mapped.

    <folder>/<checksum>.npy              a file, whole; named by what is in it, so that it is never an old one
    <folder>/.<checksum>.<random>.part   one that is on its way

All processes of a machine may share the folder: a file comes by being moved there, and goes, the one that was asked for
the longest ago first, when others need its room. Who has it mapped keeps it, as long as it lasts, beyond the bound.
Whoever reads a file checks its bytes; one that is not what its name says is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from abound.service.artifacts.artifact_store import Artifacts

log = structlog.get_logger(__name__)

UNFINISHED_SECONDS = 3600.0


def cache_in(data_dir: Path, n_bytes: int) -> FileCache | None:
    """The one of all processes with this data directory; None where it may hold nothing."""
    return FileCache(data_dir.resolve() / "cache", n_bytes) if n_bytes else None


class FileCache:
    """See the top of this file.

    Parameters
    ----------
    folder : Path
        Made when it is needed.
    n_bytes : int
        Of all files together.
    """

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self.folder = folder
        self.n_bytes = n_bytes

    async def get(self, artifacts: Artifacts, name: str, size: int, checksum: str) -> Path | None:
        """Where the artifact lies here; None when it is too large, or nothing can be written here.

        Parameters
        ----------
        checksum : str
            Of its bytes, in hexadecimal digits.

        Raises
        ------
        UnknownArtifact, ArtifactsUnavailable
        """
        if size > self.n_bytes:
            return None
        path = self.folder / f"{checksum}.npy"
        try:
            if await asyncio.to_thread(self._asked_for, path, size):
                return path
            await asyncio.to_thread(self._make_room, size)
            while not await self._fetch(artifacts, name, path):
                pass  # thrown away on its way; if its version is no more, it is not found now
        except OSError as error:
            log.warning("files of the artifact store cannot be kept here", folder=str(self.folder), reason=str(error))
            return None
        return path

    def keep_only(self, checksums: Set[str]) -> int:
        """Throw away all files but those with these checksums, also what any process is fetching; how many."""
        n_gone = 0
        for pattern in (".*.part", "*.npy"):  # in this order: what arrives meanwhile is met as a whole file
            for path in list(self.folder.glob(pattern)):
                if path.name.removeprefix(".").partition(".")[0] not in checksums:
                    self.drop(path)
                    n_gone += 1
        return n_gone

    def drop(self, path: Path) -> None:
        """Throw a file away."""
        with contextlib.suppress(OSError):
            path.unlink()

    def _asked_for(self, path: Path, size: int) -> bool:
        try:
            there = path.stat().st_size == size
            if there:
                os.utime(path)
        except FileNotFoundError:
            return False
        return there

    async def _fetch(self, artifacts: Artifacts, name: str, path: Path) -> bool:
        """Whether it has arrived; not when ``keep_only`` threw it away meanwhile."""
        beside = self.folder / f".{path.stem}.{secrets.token_hex(8)}.part"
        try:
            with beside.open("xb") as file:
                async for piece in artifacts.pieces(name):
                    await asyncio.to_thread(file.write, piece)
            try:
                beside.replace(path)
            except FileNotFoundError:
                return False
            return True
        finally:
            beside.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Let the oldest go until so much more fits; what nobody finished goes too."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                told = path.stat()
                if path.suffix == ".part" and told.st_mtime < time.time() - UNFINISHED_SECONDS:
                    path.unlink()
                elif path.suffix in {".npy", ".part"}:
                    files.append((path.suffix == ".part", told.st_mtime, told.st_size, path))
        total = size + sum(one[2] for one in files)
        for on_its_way, _, n_bytes, path in sorted(files):
            if total <= self.n_bytes or on_its_way:
                return
            path.unlink(missing_ok=True)
            total -= n_bytes
