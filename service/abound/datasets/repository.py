"""Data sets: uploaded files that jobs can learn from instead of history.

    abound:datasets             hash: name -> JSON of ``DatasetCard``: the pointer
    abound:datasets:checking    expiring records: name -> share of the bytes of the uploaded file that was checked
    abound:datasets:writing     hash: files that are being written (``abound/artifacts/write_marks.py``)
    <artifacts>/datasets/<id>.<format>[.gz|.zst]     the uploaded file, unchanged

A name has either its old file or its new one, and both are complete. The worker deletes files that no data set refers
to and no process is writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import decoding
from abound.artifacts.write_marks import collect_unmarked, hold_write_mark
from abound.datasets.files import COLUMNAR, MAX_BATCH_BYTES, format_of, local_file, read_file
from abound.store import expiring
from abound.store.client import Store, store_errors
from abound_core.errors import (
    ArtifactsUnavailable,
    Conflict,
    InvalidInstance,
    Malformed,
    Overloaded,
    StoreUnavailable,
    TooLarge,
    UnknownDataset,
)
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.read_options import ReadOptions

log = structlog.get_logger(__name__)

KEY = b"abound:datasets"
CHECKING_KEY = b"abound:datasets:checking"
WRITING_KEY = b"abound:datasets:writing"
FOLDER = "datasets"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
RESERVED = ("history", "import")

HEAD_BYTES = 2**20  # that ``head`` reads of a file
SHOWN_BYTES = 4 * HEAD_BYTES  # of the instances that ``head`` returns, as JSON
MAX_SAID_BYTES = 2**20  # longest line of the checking process; an error may quote a long name from the file
CHECK_SECONDS = 3600.0  # longest check of a file; the client waits for it, and the balancer in front of the service
CHECKING_SECONDS = 60.0  # a share that was reported longer ago is not shown
MAX_DATASETS = 1000  # ``_SET`` and the list of data sets read all cards
MAX_EXPANSION = 16  # most bytes of a decompressed file, per byte of the largest upload; bounds what a bomb costs
MAX_CHECKS = 2  # files that one process checks at a time

_SET = """
local total = tonumber(ARGV[3])
local n = 0
for i, packed in ipairs(redis.call('HGETALL', KEYS[1])) do
  if i % 2 == 1 then n = n + 1
  else
    local card = cjson.decode(packed)
    if card['name'] ~= ARGV[1] then total = total + card['bytes'] end
  end
end
if total > tonumber(ARGV[4]) then return -1 end
local before = redis.call('HGET', KEYS[1], ARGV[1])
if not before and n >= tonumber(ARGV[5]) then return -2 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return before or 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetParams:
    """Bounds of data sets.

    Attributes
    ----------
    max_bytes : int
        Maximum size of one uploaded file.
    total_bytes : int
        Maximum size of all uploaded files together.
    """

    max_bytes: int = 4 * 2**30
    total_bytes: int = 32 * 2**30

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")


class DatasetCard(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a data set; ``file`` is its name in the artifact store.

    ``options`` are those of reading the file, with what was guessed.
    """

    name: str
    file: str
    format: str
    compression: str
    bytes: Annotated[int, Meta(ge=0, description="Bytes of the file as uploaded.")]
    instances: Annotated[int, Meta(ge=0)]
    labelled: Annotated[int, Meta(ge=0, description="Instances with a label.")]
    features: Annotated[int, Meta(ge=0, description="Distinct features.")]
    classes: Annotated[int, Meta(ge=0)]
    nnz: Annotated[int, Meta(ge=0, description="Total active features of all instances.")]
    assertions: Annotated[int, Meta(ge=0, description="Total labels of all instances.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]
    options: ReadOptions = ReadOptions()

    @property
    def upload(self) -> str:
        """Id of the upload; it differs from every other upload under this name."""
        return self.file.rpartition("/")[2].partition(".")[0]


_card = msgspec.json.Decoder(DatasetCard)


class DatasetRepository:
    def __init__(self, store: Store, params: DatasetParams | None = None) -> None:
        self._store = store
        self._params = params or DatasetParams()
        self._checking = 0

    async def get(self, name: str) -> DatasetCard:
        with store_errors():
            packed = await self._store.client.hget(KEY, name)
        if packed is None:
            raise UnknownDataset(f"there is no data set {name[:64]!r}")
        return _decoded(packed)

    async def all(self) -> list[DatasetCard]:
        with store_errors():
            found = await self._store.client.hvals(KEY)
        return sorted((_decoded(packed) for packed in found), key=lambda card: card.name)

    async def checking(self) -> dict[str, float]:
        """Return the names whose uploaded files are checked now, and the share of the bytes of each that was read."""
        found = await expiring.live(self._store, CHECKING_KEY, CHECKING_SECONDS)
        return {name: float(one.payload) for name, one in found.items()}

    async def put(
        self,
        artifacts: ArtifactStore,
        name: str,
        filename: str,
        pieces: AsyncIterator[bytes],
        environment: dict[str, str],
        client_left: Callable[[], Coroutine[Any, Any, None]],
        options: ReadOptions = ReadOptions(),
    ) -> tuple[DatasetCard, bool]:
        """Store a file as a data set, replacing the one of this name. Return it, and whether the name is new.

        ``environment`` is that of the process that checks the file. ``client_left`` is called after the last piece and
        raises once the client has left: the check then stops, and this error is raised.

        Raises InvalidInstance, with the number of an invalid line, TooLarge for the file, and Conflict for all data
        sets.
        """
        form, compression = format_of(filename, options.format)
        if name in RESERVED:
            raise InvalidInstance(f"name: {name} is reserved; choose another name", "name")
        if self._checking >= MAX_CHECKS:
            raise Overloaded(f"{MAX_CHECKS} data sets are being uploaded already; try again later", retry_after=10.0)
        upload = f"{secrets.token_hex(8)}.{form}{'.' + compression if compression else ''}"
        file = f"{FOLDER}/{upload}"
        self._checking += 1
        try:
            async with hold_write_mark(self._store, WRITING_KEY, upload):
                try:
                    # Under a new name, as it arrives: its size is bounded, and it is not held in memory.
                    size = await self._stored(artifacts, file, pieces)
                    # Another process reads it line by line, as a job would, and refuses an invalid file.
                    counts = await self._counts(name, file, options, environment, client_left)
                    options = msgspec.convert(counts.pop("options"), ReadOptions)
                    created = await self._store.now()
                except BaseException:
                    await artifacts.delete(file)
                    raise
                card = DatasetCard(
                    name=name,
                    file=file,
                    format=options.format or form,
                    compression=compression,
                    bytes=size,
                    created=created,
                    options=options,
                    **counts,
                )
                try:
                    # One script checks the quota and sets the pointer.
                    before = await self._point(card)
                except Conflict:
                    # Only here is the pointer surely not set. After other errors garbage collection decides.
                    await artifacts.delete(file)
                    raise
        finally:
            self._checking -= 1
        if before is not None:
            await artifacts.delete(before.file)
        return card, before is None

    async def head(self, artifacts: ArtifactStore, name: str, n: int) -> list[DatasetInstance]:
        """Return the first ``n`` instances of a data set; fewer if they take more than ``HEAD_BYTES``.

        Raises TooLarge for a Parquet or Arrow file that would have to be copied here, of over ``MAX_BATCH_BYTES``.
        """
        card = await self.get(name)
        if card.format in (*COLUMNAR, "json"):  # the schema may be at the end, and an array is read as a whole
            if card.bytes > MAX_BATCH_BYTES and artifacts.path(card.file) is None:
                raise TooLarge(
                    f"{name} has {card.bytes:,} bytes and is in a remote artifact store; rows of {card.format} files "
                    f"are shown up to {MAX_BATCH_BYTES:,} bytes there"
                )
            async with local_file(artifacts, card.file) as path:
                return await asyncio.to_thread(_first_instances, path, card.options, n, MAX_BATCH_BYTES)
        piece = await anext(artifacts.pieces(card.file, HEAD_BYTES), b"")
        if len(piece) < card.bytes and not card.compression:
            piece = piece[: piece.rfind(b"\n") + 1]
        with tempfile.TemporaryDirectory(prefix="abound-") as directory:
            path = Path(directory) / card.file.rpartition("/")[2]
            path.write_bytes(piece)
            return await asyncio.to_thread(_first_instances, path, card.options, n, SHOWN_BYTES)

    async def delete(self, artifacts: ArtifactStore, name: str) -> None:
        card = await self.get(name)
        with store_errors():
            await self._store.client.hdel(KEY, name)
        await artifacts.delete(card.file)

    async def collect_garbage(self, artifacts: ArtifactStore) -> int:
        """Delete files that no data set refers to and no process is writing. Return their number."""

        async def referenced(_: set[str]) -> list[str]:
            return [card.file.removeprefix(f"{FOLDER}/") for card in await self.all()]

        return await collect_unmarked(self._store, artifacts, FOLDER, WRITING_KEY, referenced)

    async def _stored(self, artifacts: ArtifactStore, file: str, pieces: AsyncIterator[bytes]) -> int:
        size = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in pieces:
                size += len(piece)
                if size > self._params.max_bytes:
                    raise TooLarge(
                        f"the file is over {self._params.max_bytes} bytes; split it or raise ABOUND_DATASETS_MAX_BYTES"
                    )
                if piece:
                    yield piece

        await artifacts.put_stream(file, counted())
        return size

    async def _counts(
        self,
        name: str,
        file: str,
        options: ReadOptions,
        environment: dict[str, str],
        client_left: Callable[[], Coroutine[Any, Any, None]],
    ) -> dict[str, Any]:
        """Check a file in another process, and return its counts and options. Report the share that was read."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "abound.datasets.check",
            file,
            str(MAX_EXPANSION * self._params.max_bytes),
            msgspec.json.encode(options).decode(),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_SAID_BYTES,
        )
        assert process.stdout is not None
        found: dict[str, Any] = {}
        leaving = asyncio.create_task(client_left())
        leaving.add_done_callback(lambda _: _kill(process))  # which ends the loop
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                async for line in process.stdout:
                    found = json.loads(line)
                    if (share := found.pop("share", None)) is not None:
                        with contextlib.suppress(StoreUnavailable):
                            await expiring.put(self._store, CHECKING_KEY, name, b"%.4f" % share)
        except ValueError:
            found = {}
        except TimeoutError:
            raise TooLarge(f"checking the file takes more than {CHECK_SECONDS:g} s; split it") from None
        finally:
            leaving.cancel()
            _kill(process)
            await process.wait()
            with contextlib.suppress(StoreUnavailable):
                await expiring.remove(self._store, CHECKING_KEY, name)
        if leaving.done() and not leaving.cancelled():
            leaving.result()
        if not found:
            raise Overloaded("the process that checks the file has died, perhaps for lack of memory; try again")
        if "too_large" in found:
            raise TooLarge(found["too_large"])
        if "away" in found:
            raise ArtifactsUnavailable(f"the file could not be checked: {found['away']}")
        if "error" in found:
            raise InvalidInstance(found["error"], "body")
        return found

    async def _point(self, card: DatasetCard) -> DatasetCard | None:
        params = self._params
        with store_errors():
            answer = await self._store.client.eval(
                _SET, 1, KEY, card.name, msgspec.json.encode(card), card.bytes, params.total_bytes, MAX_DATASETS
            )
        if answer == -1:
            raise Conflict(f"all data sets together would exceed {params.total_bytes} bytes; delete one first")
        if answer == -2:
            raise Conflict(f"there are {MAX_DATASETS} data sets already; delete one first")
        return _decoded(answer) if isinstance(answer, bytes) else None


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _first_instances(path: Path, options: ReadOptions, n: int, plain_bytes: int) -> list[DatasetInstance]:
    """Return up to ``n`` instances of a file, or of the beginning of one, and at most ``SHOWN_BYTES`` of them."""
    found: list[DatasetInstance] = []
    room = SHOWN_BYTES
    with contextlib.suppress(Malformed, TooLarge):  # the beginning may end within a line
        for instance in islice(read_file(str(path), plain_bytes=plain_bytes, options=options), n):
            room -= len(instance.to_json())
            if room < 0:
                break
            found.append(instance)
    return found


def _decoded(packed: bytes) -> DatasetCard:
    with decoding("the list of data sets"):
        return _card.decode(packed)
