"""The artifact store: a directory, or whatever else fsspec reaches, where large things lie that the store only names.

    <url>/<id>/abound.json                        marker: which store of events this belongs to
    <url>/<id>/<model>/<incarnation>/history/...  segments of the log's past
    <url>/<id>/<model>/<incarnation>/index/...    an index to adopt;  .../versions/...  a fitted model

**id**: made when a store first meets an artifact store, and recorded in the store under ``abound:artifacts``. All
names are below its folder, so several stores may share one URL, and none ever sweeps what belongs to another.
Whoever does not find the marker there looks at another directory (a volume that is not mounted, another host):
artifacts are then *not visible* and nothing is written.

Meeting:  1. the store records a new id as not yet marked   2. the marker is written   3. the store records the id
as marked. Whoever dies on the way is followed by one who goes on from there; of two at one time both write the
same marker.

An artifact is written whole or not at all and never changed: in a directory beside its name, then moved there after
its bytes are on disk; an object store does the same by itself. Readers check checksums of their own all the same.
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

from abound.core.errors import ArtifactsUnavailable, CannotStart, StoreUnavailable, UnknownArtifact
from abound.service.artifacts.file_cache import FileCache
from abound.service.artifacts.timeouts import DaemonThreads, Patience
from abound.service.store.client import Store, reaching

ARTIFACTS_KEY = b"abound:artifacts"
MARKER = "abound.json"

UNFINISHED_SECONDS = 3600.0
"""A file that was begun so long ago and not finished has nobody who writes it."""

_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,127}/){0,7}[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

PIECE_BYTES = 8 * 2**20

OPENING_TRIES = 5

THREADS = 16
"""Calls at one time; they wait for a disk or for a network."""

PATIENCE_SECONDS = 5.0
"""Of whoever answers requests or sees to many models; a call to a silent store ends after twice as long."""

DRIVERS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
)
"""What the drivers of buckets raise beside errors of the system: a network that is down, credentials that are none."""

T = TypeVar("T")


class Marker(msgspec.Struct, frozen=True):
    """What the marker and ``abound:artifacts`` say: the id, and whether the marker has been written."""

    id: str
    marked: bool = True


class Artifacts:
    """The artifact store of one store. ``join`` it once before anything else.

    All calls work in threads of its own: one that hangs holds up nothing else of the process, nor its end.

    With ``patience`` no call waits for a store that is silent, see ``service/artifacts/timeouts.py``.

    Attributes
    ----------
    url : str
        As given; may hold secrets.
    id : str
        Empty before ``join``.
    cache : FileCache or None
        Where files that lie elsewhere are kept here.
    """

    def __init__(self, url: str, cache: FileCache | None = None, patience: float | None = None) -> None:
        """``url``: a directory, or a URL that fsspec knows; CannotStart for any other."""
        self.url = url
        self.id = ""
        self.cache = cache
        try:
            # Any: fsspec has no types. Listings are asked for each time: others write as well.
            filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError, OSError) as error:
            raise CannotStart(f"ABOUND_ARTIFACTS_URL cannot be used: {error}") from None
        self._filesystem: Any = filesystem
        self._root = str(root).rstrip("/")
        self._is_local = isinstance(filesystem, LocalFileSystem)
        self._threads = DaemonThreads(THREADS, "artifacts")
        self._patience = Patience(patience, self._ask)

    async def join(self, store: Store) -> str:
        """Find the folder of this store, made at the very first time; its id. Costs little when it is done again.

        Raises
        ------
        ArtifactsUnavailable
            Not reachable, not writable, or not the one that the store knows. Says what mends it.
        StoreUnavailable
        """
        new = Marker(secrets.token_hex(8), False)
        with reaching():
            await store.client.set(ARTIFACTS_KEY, msgspec.json.encode(new), nx=True)
        known = await _recorded(store)
        if known is None:
            raise StoreUnavailable("the record of the artifact store (abound:artifacts) cannot be read")
        if not known.marked:
            await self._in_thread(self._write, f"{self._root}/{known.id}/{MARKER}", msgspec.json.encode(known))
            with reaching():
                await store.client.set(ARTIFACTS_KEY, msgspec.json.encode(Marker(known.id)))
        if not await self._in_thread(self._filesystem.exists, f"{self._root}/{known.id}/{MARKER}"):
            self.id = ""
            raise ArtifactsUnavailable(
                f"the artifact store has no folder {known.id}, which the store of events knows it by: it is another "
                "one, or not mounted here. Set ABOUND_ARTIFACTS_URL to the same place for every process; if it is "
                f"lost for good, history with it, mend it with: DEL {ARTIFACTS_KEY.decode()} in the store"
            )
        self.id = known.id
        return self.id

    async def is_known_to(self, store: Store) -> bool:
        """Whether the store knows it by the id that it was joined under; a failover may lose that. StoreUnavailable."""
        known = await _recorded(store)
        return known is not None and known.id == self.id

    async def put(self, name: str, data: bytes) -> None:
        """Write an artifact, whole or not at all; it is on disk (or taken by the object store) on return.

        ``name`` has 1 to 8 parts of letters, digits, ``.``, ``_`` and ``-``, with slashes between; ValueError else.
        ArtifactsUnavailable when it cannot be written.
        """
        await self._in_thread(self._write, self._path(name), data)

    async def put_pieces(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """As ``put``, piece by piece; what ``pieces`` raises, in a thread, ends it and nothing is left."""
        await self._in_thread(self._write_pieces, self._path(name), pieces)

    async def put_stream(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """As ``put``, of pieces that come one after the other; what they raise ends it and nothing is left."""
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
            raise ArtifactsUnavailable("nobody waits for the end of it")

        try:
            await self.put_pieces(name, pulled())
        finally:
            ended.set()

    async def pieces(self, name: str, size: int = PIECE_BYTES) -> AsyncIterator[bytes]:
        """The bytes of an artifact, ``size`` at a time. UnknownArtifact when there is none; ArtifactsUnavailable."""
        path = self._path(name)
        at, end = 0, await self.size(name)
        while at < end:
            # By their names: the places of these differ among the file systems.
            read = partial(self._filesystem.cat_file, path, start=at, end=min(at + size, end))
            yield await self._in_thread(read, name=name)
            at += size

    async def get(self, name: str) -> bytes:
        """The bytes of an artifact. UnknownArtifact when there is none; ArtifactsUnavailable."""
        data: bytes = await self._in_thread(self._filesystem.cat_file, self._path(name), name=name)
        return data

    async def kept_by(self, name: str, owner: str | None) -> dict[str, bytes]:
        """An artifact of the store whose id is ``owner``, or of each that has a folder here, by id. Needs no ``join``.

        ArtifactsUnavailable.
        """
        return await self._in_thread(self._kept_by, name, owner)

    async def delete(self, name: str) -> None:
        """Take an artifact away; nothing happens when it is not there."""
        try:
            await self._in_thread(self._filesystem.rm_file, self._path(name), name=name)
        except UnknownArtifact:
            return

    async def clear(self, prefix: str) -> None:
        """Take away everything in the folder ``prefix``, also what was begun and not finished; nobody writes there."""
        try:
            await self._in_thread(self._clear, self._path(prefix), name=prefix)
        except UnknownArtifact:
            return

    async def names(self, prefix: str = "") -> list[str]:
        """The names of all artifacts in the folder ``prefix``, at any depth, in order."""
        return sorted(await self.sizes(prefix))

    async def sizes(self, prefix: str = "") -> dict[str, int]:
        """The bytes of each artifact in the folder ``prefix``, by name."""
        folder = self._path(prefix) if prefix else self._folder()
        found = await self._in_thread(self._find, folder)
        start = len(self._folder()) + 1
        return {path[start:]: size for path, size in found.items() if _NAME.fullmatch(path[start:])}

    async def size(self, name: str) -> int:
        """Bytes of an artifact; UnknownArtifact when there is none."""
        return int((await self._in_thread(self._filesystem.info, self._path(name), name=name))["size"])

    async def file(self, name: str, size: int, checksum: str) -> Path | None:
        """Where the artifact, or a copy of it, lies as a file of this machine; None when it does not.

        ``checksum``: of its bytes, which may be those of another by now; whoever reads them checks them.
        UnknownArtifact, ArtifactsUnavailable.
        """
        if self._is_local or self.cache is None:
            return self.path(name)
        return await self.cache.get(self, name, size, checksum)

    @property
    def is_directory(self) -> bool:
        """Whether its files are mapped where they lie."""
        return self._is_local

    def path(self, name: str) -> Path | None:
        """Where the artifact lies as a file of this machine, for ``mmap``; None when it does not."""
        return Path(self._path(name)) if self._is_local else None

    async def sweep_unfinished(self, older_than: float = UNFINISHED_SECONDS) -> int:
        """Take away files that a writer began and never finished; how many. Only a directory has such.

        Folders that have been empty for as long go as well, and are not counted.
        """
        return await self._in_thread(self._sweep, older_than) if self._is_local else 0

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
        """Call in a thread; a file that is not there is UnknownArtifact where ``name`` is what was asked for."""
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
        """Anything that it should know at once."""
        return bool(self._filesystem.exists(f"{self._root}/{self.id}/{MARKER}" if self.id else self._root))

    def _without_secret(self, error: BaseException) -> str:
        who = urlsplit(self.url).netloc.rpartition("@")[0]
        return str(error).replace(who, "***") if who else str(error)

    def _write(self, path: str, data: bytes) -> None:
        if self._is_local:
            self._write_pieces(path, (data,))
        else:
            self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._filesystem.pipe_file(path, data)

    def _write_pieces(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        if not self._is_local:
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
        # The names must be on disk too, those of new folders as well.
        for folder in {target.parent, *(folder.parent for folder in new)}:
            sync_folder(folder)

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

    def _kept_by(self, name: str, owner: str | None) -> dict[str, bytes]:
        folders = [owner] if owner is not None else []
        if owner is None and self._filesystem.exists(self._root):
            folders = [str(path).rpartition("/")[2] for path in self._filesystem.ls(self._root, detail=False)]
        found = {}
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found[folder] = self._filesystem.cat_file(f"{self._root}/{folder}/{name}")
        return found

    def _clear(self, folder: str) -> None:
        if self._filesystem.exists(folder):
            self._filesystem.rm(folder, recursive=True)

    def _find(self, folder: str) -> dict[str, int]:
        found = self._filesystem.find(folder, detail=True)
        return {str(path): int(info["size"]) for path, info in found.items() if str(path).startswith(f"{folder}/")}

    def _sweep(self, older_than: float) -> int:
        swept = 0
        before = time.time() - older_than
        for path in Path(self._folder()).rglob(".*.part"):
            try:
                if path.stat().st_mtime < before:
                    path.unlink()
                    swept += 1
            except FileNotFoundError:
                continue
        for folder, _, _ in os.walk(self._folder(), topdown=False):
            with contextlib.suppress(OSError):  # mostly it is not empty
                if folder != self._folder() and os.stat(folder).st_mtime < before:
                    os.rmdir(folder)
        return swept


def _errors() -> tuple[type[BaseException], ...]:
    """What says that an artifact store cannot be used, those of the drivers that are loaded among them."""
    drivers = [getattr(sys.modules[module], name) for module, name in DRIVERS if module in sys.modules]
    return OSError, RuntimeError, TimeoutError, *drivers


async def recorded_id(store: Store) -> str | None:
    """The id that the store knows its artifact store by; None when it knows none. StoreUnavailable."""
    known = await _recorded(store)
    return None if known is None else known.id


async def _recorded(store: Store) -> Marker | None:
    """What the store says of its artifact store; None when that is nothing, or cannot be read."""
    with reaching():
        recorded = await store.client.get(ARTIFACTS_KEY)
    try:
        return msgspec.json.decode(recorded or b"", type=Marker)
    except msgspec.MsgspecError:
        return None


def _opened(path: Path) -> tuple[BinaryIO, list[Path]]:
    """A new file to write, and which folders were made for it; somebody may just sweep those that are empty."""
    for _ in range(OPENING_TRIES):
        new = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return path.open("xb"), new
    raise ArtifactsUnavailable(f"the folder {path.parent} is taken away again and again")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
