"""A bounded local folder with copies of files of a remote artifact store, so that they can be mapped.

    <folder>/<checksum>.npy              a complete file, named by its content, so it is never out of date
    <folder>/.<checksum>.<random>.part   a file in download

All processes of a machine can share the folder. A file is added by a rename. When others need its room, the least
recently requested file is deleted first. A process that has mapped a deleted file keeps it, beyond the bound, until it
unmaps it. Readers verify the bytes of a file; one that does not match its name is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Set
from pathlib import Path

import structlog

from abound.artifacts.times import UNFINISHED_SECONDS

log = structlog.get_logger(__name__)


def cache_in(data_dir: Path, n_bytes: int) -> FileCache | None:
    return FileCache(data_dir.resolve() / "cache", n_bytes) if n_bytes else None


class FileCache:
    def __init__(self, folder: Path, n_bytes: int) -> None:
        self.folder = folder
        self.n_bytes = n_bytes

    async def get(self, checksum: str, size: int, download: Callable[[], AsyncIterator[bytes]]) -> Path | None:
        """Return the path of a copy; None if it is too large or the folder cannot be written."""
        if size > self.n_bytes:
            return None
        path = self.folder / f"{checksum}.npy"
        try:
            if await asyncio.to_thread(self._asked_for, path, size):
                return path
            await asyncio.to_thread(self._make_room, size)
            while not await self._fetch(download, path):
                pass  # ``keep_only`` deleted it meanwhile; UnknownArtifact if the artifact is deleted as well
        except OSError as error:
            log.warning("files of the artifact store cannot be cached here", folder=str(self.folder), reason=str(error))
            return None
        return path

    def keep_only(self, checksums: Set[str]) -> int:
        """Delete all files and downloads of any process except those with these checksums; return their number."""
        n_gone = 0
        for pattern in (".*.part", "*.npy"):  # in this order: a download that ends meanwhile is found as a whole file
            for path in list(self.folder.glob(pattern)):
                if path.name.removeprefix(".").partition(".")[0] not in checksums:
                    self.drop(path)
                    n_gone += 1
        return n_gone

    def drop(self, path: Path) -> None:
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

    async def _fetch(self, download: Callable[[], AsyncIterator[bytes]], path: Path) -> bool:
        """Download a file. Return False if ``keep_only`` deleted it meanwhile."""
        beside = self.folder / f".{path.stem}.{secrets.token_hex(8)}.part"
        try:
            with beside.open("xb") as file:
                async for piece in download():
                    await asyncio.to_thread(file.write, piece)
            try:
                beside.replace(path)
            except FileNotFoundError:
                return False
            return True
        finally:
            beside.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == ".part" and status.st_mtime < time.time() - UNFINISHED_SECONDS:
                    path.unlink()
                elif path.suffix in {".npy", ".part"}:
                    files.append((path.suffix == ".part", status.st_mtime, status.st_size, path))
        total = size + sum(one[2] for one in files)
        for on_its_way, _, n_bytes, path in sorted(files):
            if total <= self.n_bytes or on_its_way:
                return
            # the least recently requested ones
            path.unlink(missing_ok=True)
            total -= n_bytes
