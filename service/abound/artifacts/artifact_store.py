"""The artifact store: a directory, or anything else that fsspec reaches, for large files that the store only names.

    <url>/<id>/abound.json                        marker: which store this folder belongs to
    <url>/<id>/<model>/<incarnation>/history/...  segments of the archived log
    <url>/<id>/<model>/<incarnation>/index/...    a state file;  .../versions/...  a fitted model

**id**: created when a store first joins an artifact store, and recorded in the store under ``abound:artifacts``. All
names are below the folder of that id, so several stores can share one URL, and none deletes files of another.
A process that does not find the marker looks at another directory: a volume that is not mounted, or another host. The
artifact store is then *not visible* and nothing is written.

An artifact is written completely or not at all, and never changed. In a directory it is written under a temporary name
and renamed after its bytes are on disk; an object store guarantees the same. Readers verify checksums nevertheless.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

from abound.artifacts.file_cache import FileCache
from abound.artifacts.timeouts import DaemonThreads, ResponseTimeout
from abound.artifacts.times import UNFINISHED_SECONDS
from abound.store.client import Store, store_errors
from abound_core.errors import ArtifactsUnavailable, CannotStart, StoreUnavailable, UnknownArtifact

ARTIFACTS_KEY = b"abound:artifacts"
MARKER = "abound.json"

_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,127}/){0,7}[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

PIECE_BYTES = 8 * 2**20

OPENING_TRIES = 5

THREADS = 16  # calls at a time; they wait for a disk or for a network

DRIVERS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
)
"""Exceptions that bucket drivers raise besides OSError: network failures, invalid credentials."""

T = TypeVar("T")


class Marker(msgspec.Struct, frozen=True):
    """The content of the marker and of ``abound:artifacts``."""

    id: str
    marked: bool = True  # the marker has been written


class ArtifactStore:
    """The artifact store that belongs to one Valkey or Redis store. Call ``join`` once before anything else.

    All calls run in threads of its own. A call that hangs blocks neither the rest of the process nor its exit. With
    ``patience`` no call waits for a silent store; see ``abound/artifacts/timeouts.py``. The ``url`` may contain
    secrets.
    """

    def __init__(self, url: str, cache: FileCache | None = None, patience: float | None = None) -> None:
        """Open ``url``, a directory or a URL that fsspec knows; CannotStart for any other."""
        self.url = url
        self.id = ""
        self.cache = cache
        try:
            # Any: fsspec has no types. No cache of listings, because other processes write too.
            filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError, OSError) as error:
            raise CannotStart(f"ABOUND_ARTIFACTS_URL cannot be used: {error}") from None
        self._filesystem: Any = filesystem
        self._root = str(root).rstrip("/")
        self.is_directory = isinstance(filesystem, LocalFileSystem)
        self._threads = DaemonThreads(THREADS, "artifacts")
        self._patience = ResponseTimeout(patience, self._ask)

    async def join(self, store: Store) -> str:
        """Find the folder of this store, or create it the first time; return its id. Repeated calls are cheap.

        Raises ArtifactsUnavailable if it is not reachable, not writable, or not the one that the store knows.
        """
        known = await _recorded(store)
        # The store records a new id as not yet marked. If a process dies on the way, the next one continues from there;
        # two at the same time write the same marker.
        if known is None:  # read first: a full store refuses SET, even with NX and an existing key
            new = Marker(secrets.token_hex(8), False)
            with store_errors():
                await store.client.set(ARTIFACTS_KEY, msgspec.json.encode(new), nx=True)
            known = await _recorded(store)
        if known is None:
            raise StoreUnavailable("the record of the artifact store (abound:artifacts) cannot be read")
        if not known.marked:
            await self._in_thread(self._write, f"{self._root}/{known.id}/{MARKER}", msgspec.json.encode(known))
            with store_errors():
                await store.client.set(ARTIFACTS_KEY, msgspec.json.encode(Marker(known.id)))
        if not await self._in_thread(self._filesystem.exists, f"{self._root}/{known.id}/{MARKER}"):
            self.id = ""
            raise ArtifactsUnavailable(
                f"the artifact store has no folder {known.id}, the id recorded in the store: it is another "
                "one, or not mounted here. Set ABOUND_ARTIFACTS_URL to the same place for every process. If it is "
                f"permanently lost, and history with it, send the store the command: DEL {ARTIFACTS_KEY.decode()}"
            )
        self.id = known.id
        return self.id

    async def put(self, name: str, data: bytes) -> None:
        """Write an artifact completely or not at all. On return it is on disk, or stored by the object store.

        ``name`` has 1 to 8 parts of letters, digits, ``.``, ``_`` and ``-``, separated by slashes. Raises
        ValueError for another name, and ArtifactsUnavailable if the artifact cannot be written.
        """
        await self._in_thread(self._write, self._path(name), data)

    async def put_pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write an artifact piece by piece, as ``put``.

        ``pieces`` is read in a thread; if it raises, nothing is written.
        """
        await self._in_thread(self._write_pieces, self._path(name), pieces)

    async def put_stream(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an artifact from an async iterator, as ``put``. If ``pieces`` raises, no artifact is written."""
        loop = asyncio.get_running_loop()
        ended = threading.Event()

        async def next_piece() -> bytes | None:
            return await anext(pieces, None)

        def pulled() -> Iterator[bytes]:
            while not ended.is_set():
                piece = asyncio.run_coroutine_threadsafe(next_piece(), loop).result()
                if piece is None:
                    return
                yield piece
            raise ArtifactsUnavailable("the upload was cancelled")

        try:
            await self.put_pieces(name, pulled())
        finally:
            ended.set()

    async def pieces(self, name: str, size: int = PIECE_BYTES) -> AsyncIterator[bytes]:
        """Yield the bytes of an artifact, ``size`` at a time. Raises UnknownArtifact, ArtifactsUnavailable."""
        path = self._path(name)
        at, end = 0, await self.size(name)
        while at < end:
            # By name: the order of these parameters differs among fsspec's file systems.
            read = partial(self._filesystem.cat_file, path, start=at, end=min(at + size, end))
            yield await self._in_thread(read, name=name)
            at += size

    async def link(self, name: str, new: str) -> None:
        """Give the bytes of an artifact a second name; an object store copies them itself. Raises UnknownArtifact."""
        await self._in_thread(self._link, self._path(name), self._path(new), name=name)

    async def get(self, name: str) -> bytes:
        data: bytes = await self._in_thread(self._filesystem.cat_file, self._path(name), name=name)
        return data

    async def folders(self) -> list[str]:
        """Return the ids of all stores that use this place. Needs no ``join``. Raises ArtifactsUnavailable."""
        return await self._in_thread(self._folders)

    async def delete(self, name: str) -> None:
        try:
            await self._in_thread(self._filesystem.rm_file, self._path(name), name=name)
        except UnknownArtifact:
            return

    async def clear(self, prefix: str) -> None:
        """Delete the folder ``prefix`` with its unfinished files. No process may write there meanwhile."""
        try:
            await self._in_thread(self._clear, self._path(prefix), name=prefix)
        except UnknownArtifact:
            return

    async def names(self, prefix: str = "") -> list[str]:
        """Return the names of all artifacts in the folder ``prefix``, at any depth, sorted."""
        return sorted(await self.sizes(prefix))

    async def sizes(self, prefix: str = "") -> dict[str, int]:
        folder = self._path(prefix) if prefix else self._folder()
        found = await self._in_thread(self._find, folder)
        start = len(self._folder()) + 1
        return {path[start:]: size for path, size in found.items() if _NAME.fullmatch(path[start:])}

    async def size(self, name: str) -> int:
        return int((await self._in_thread(self._filesystem.info, self._path(name), name=name))["size"])

    async def local_file(self, name: str, size: int, checksum: str) -> Path | None:
        """Return the path of the artifact, or of a local copy, on this machine; None if there is none.

        ``checksum`` is that of its bytes. The file may have other bytes by now, so readers verify them.
        Raises UnknownArtifact, ArtifactsUnavailable.
        """
        if self.is_directory or self.cache is None:
            return self.path(name)
        return await self.cache.get(checksum, size, partial(self.pieces, name))

    def path(self, name: str) -> Path | None:
        """Return the path of the artifact on this machine, for ``mmap``; None if it has none."""
        return Path(self._path(name)) if self.is_directory else None

    async def sweep_unfinished(self) -> int:
        """Delete files that a writer began and never finished; return their number: 0 if the store is not a directory.

        Folders that have been empty for ``UNFINISHED_SECONDS`` are deleted too, and not counted.
        """
        return await self._in_thread(self._sweep) if self.is_directory else 0

    # inside

    def _folder(self) -> str:
        if not self.id:
            raise ArtifactsUnavailable("the artifact store is not visible")
        return f"{self._root}/{self.id}"

    def _path(self, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"not the name of an artifact: {name[:200]!r}")
        return f"{self._folder()}/{name}"

    async def _in_thread(self, call: Callable[..., T], *given: Any, name: str | None = None) -> T:
        """Call in a thread. With ``name``, a missing file raises UnknownArtifact."""
        try:
            self._patience.check()
            work = partial(contextvars.copy_context().run, call, *given)
            return await self._patience.wait(asyncio.get_running_loop().run_in_executor(self._threads, work))
        except FileNotFoundError as error:
            if name is not None:
                raise UnknownArtifact(f"there is no artifact {name}") from None
            raise ArtifactsUnavailable(f"the artifact store cannot be used: {error}") from error
        except _errors() as error:
            raise ArtifactsUnavailable(f"the artifact store cannot be used: {self._without_secret(error)}") from error

    def _ask(self) -> bool:
        """Make a request that a working store answers at once; used to tell a slow store from a silent one."""
        return bool(self._filesystem.exists(f"{self._root}/{self.id}/{MARKER}" if self.id else self._root))

    def _without_secret(self, error: BaseException) -> str:
        who = urlsplit(self.url).netloc.rpartition("@")[0]
        return str(error).replace(who, "***") if who else str(error)

    def _write(self, path: str, data: bytes) -> None:
        if self.is_directory:
            self._write_pieces(path, (data,))
        else:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._filesystem.pipe_file(path, data)

    def _write_pieces(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        if not self.is_directory:
            self._upload(path, pieces)
            return
        target = Path(path)
        beside = target.parent / f".{secrets.token_hex(8)}.part"
        opened, new = _opened(beside)
        try:
            with opened as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_entries(target, new)

    def _link(self, path: str, new: str) -> None:
        if not self.is_directory:
            self._filesystem.makedirs(new.rpartition("/")[0], exist_ok=True)
            self._filesystem.cp_file(path, new)
            return
        target = Path(new)
        made = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            target.hardlink_to(path)
        except FileExistsError:
            return
        except OSError:  # the file system has no links
            self._write(new, Path(path).read_bytes())
            return
        _sync_entries(target, made)

    def _upload(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._filesystem.open(path, "wb", block_size=PIECE_BYTES) as file:
                for piece in pieces:
                    file.write(piece)
        except BaseException:
            if self._filesystem.exists(path):
                self._filesystem.rm_file(path)
            raise

    def _folders(self) -> list[str]:
        if not self._filesystem.exists(self._root):
            return []
        found = [str(path).rstrip("/") for path in self._filesystem.ls(self._root, detail=False)]
        return [path.rpartition("/")[2] for path in found if self._filesystem.exists(f"{path}/{MARKER}")]

    def _clear(self, folder: str) -> None:
        if self._filesystem.exists(folder):
            self._filesystem.rm(folder, recursive=True)

    def _find(self, folder: str) -> dict[str, int]:
        if self._filesystem.async_impl:  # a bucket, which lists all names at once
            found = self._filesystem.find(folder, detail=True).values()
        else:
            found = self._walk(folder)
        return {str(one["name"]): int(one["size"]) for one in found if str(one["name"]).startswith(f"{folder}/")}

    def _walk(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the files below a folder. Raise OSError if a folder cannot be read.

        fsspec's own ``find`` leaves out such a folder, and garbage collection would then delete files in use.
        """
        folders = [folder]
        while folders:
            path = folders.pop()
            try:
                listed = self._filesystem.ls(path, detail=True)
            except FileNotFoundError:  # deleted meanwhile
                continue
            for one in listed:
                if one["type"] != "directory":
                    yield one
                elif one["name"] != path:
                    folders.append(one["name"])

    def _sweep(self) -> int:
        swept = 0
        before = time.time() - UNFINISHED_SECONDS
        for path in Path(self._folder()).rglob(".*.part"):
            try:
                if path.stat().st_mtime < before:
                    path.unlink()
                    swept += 1
            except FileNotFoundError:
                continue
        for folder, _, _ in os.walk(self._folder(), topdown=False):
            with contextlib.suppress(OSError):  # usually because it is not empty
                if folder != self._folder() and os.stat(folder).st_mtime < before:
                    os.rmdir(folder)
        return swept


def _errors() -> tuple[type[BaseException], ...]:
    """Exceptions that mean that an artifact store cannot be used, with those of the loaded drivers."""
    drivers = [getattr(sys.modules[module], name) for module, name in DRIVERS if module in sys.modules]
    return OSError, RuntimeError, TimeoutError, *drivers


async def recorded_id(store: Store) -> str | None:
    known = await _recorded(store)
    return None if known is None else known.id


async def _recorded(store: Store) -> Marker | None:
    with store_errors():
        recorded = await store.client.get(ARTIFACTS_KEY)
    try:
        return msgspec.json.decode(recorded or b"", type=Marker)
    except msgspec.MsgspecError:
        return None


def _opened(path: Path) -> tuple[BinaryIO, list[Path]]:
    """Create a file for writing; return it and the folders created for it.

    Retries, because garbage collection may delete the empty folders in between.
    """
    for _ in range(OPENING_TRIES):
        new = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return path.open("xb"), new
    raise ArtifactsUnavailable(
        f"the folder {path.parent} is deleted again and again while a file is created in it; try again"
    )


def _sync_entries(path: Path, new: list[Path]) -> None:
    """Put the directory entries of a file and of the folders created for it on disk."""
    for folder in {path.parent, *(folder.parent for folder in new)}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
