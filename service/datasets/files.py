"""Data set files: opened by name and read as a stream, in bounded memory.

The extension gives the format (``.txt``, ``.svm``, ``.jsonl``; see ``core/instances/data_formats.py``) and
the compression (none, ``.gz`` or ``.zst``). The name ``-`` is standard input, read as JSON lines.

``local_file`` gives the file of an uploaded data set: the artifact itself, or a copy if it is not on this
machine.
"""

from __future__ import annotations

import gzip
import io
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, get_args

import zstandard

from abound.core.errors import Malformed, TooLarge
from abound.core.instances.data_formats import DatasetInstance, Format, read_instances
from abound.service.artifacts.artifact_store import ArtifactStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES = 16 * 2**20
"""Longer lines are refused: the service would accept no such instance."""

STANDARD_INPUT = "-"

LINES_PER_REPORT = 256
"""Progress is reported each time that this many lines were read."""


class _Readable(Protocol):
    def readline(self, size: int = -1, /) -> bytes: ...


def format_of(name: str) -> tuple[Format, str]:
    """Return the format and compression (empty, ``gz`` or ``zst``) that a file's extension gives.

    Raises
    ------
    Malformed
        The extension is unknown.
    """
    if name == STANDARD_INPUT:
        return "jsonl", ""
    stem, compression = Path(name).name, ""
    for ending in ("gz", "zst"):
        if stem.endswith(f".{ending}"):
            stem, compression = stem.removesuffix(f".{ending}"), ending
            break
    for form in get_args(Format):
        if stem.endswith(f".{form}"):
            return form, compression
    raise Malformed(
        f"{name}: cannot tell the format; the name must end in .txt, .svm or .jsonl, then .gz, .zst or nothing"
    )


def read_file(
    name: str,
    progress: Callable[[int], None] | None = None,
    plain_bytes: int | None = None,
    on_bad: Callable[[Malformed], None] | None = None,
) -> Iterator[DatasetInstance]:
    """Yield the instances of a file.

    Parameters
    ----------
    name : str
    progress : callable or None
        Called from time to time with the number of bytes read, as stored on the disk; see :func:`size_of`.
    plain_bytes : int or None
        Maximum size of all its lines together, decompressed; None: unlimited.
    on_bad : callable or None
        As for ``read_instances``.

    Raises
    ------
    TooLarge
        The file has more than ``plain_bytes``.
    Malformed
        The file cannot be opened or read, is damaged, or a line is invalid; the message names the file and
        the line.
    """
    form, compression = format_of(name)
    shown = shown_name(name)
    try:
        with _opened(name, compression) as (stream, position):
            tell = None if progress is None else lambda: progress(position())
            yield from read_instances(_lines(stream, tell, shown, plain_bytes), form, shown, on_bad)
    except OSError as error:  # gzip.BadGzipFile is one
        raise Malformed(f"{shown}: {error.strerror or error}") from error
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise Malformed(f"{shown}: the compressed data are damaged or cut off: {error}") from error


def shown_name(name: str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if name == STANDARD_INPUT else name


def size_of(name: str) -> int | None:
    """Return the size of a file on the disk; None for standard input and anything but a regular file."""
    path = Path(name)
    return path.stat().st_size if name != STANDARD_INPUT and path.is_file() else None


@contextmanager
def _opened(name: str, compression: str) -> Iterator[tuple[_Readable, Callable[[], int]]]:
    """Open a file; yield its decompressed bytes, and a function that returns the position in the file."""
    if name == STANDARD_INPUT:
        # Not sys.stdin itself: a thread blocked in it would keep the interpreter from exiting.
        with open(sys.stdin.fileno(), "rb", closefd=False) as piped:
            yield piped, int
        return
    with Path(name).open("rb") as raw:
        if compression == "gz":
            with gzip.open(raw, "rb") as plain:
                yield plain, raw.tell
        elif compression == "zst":
            with io.BufferedReader(_Zstandard(raw), 2**16) as plain:
                yield plain, raw.tell
        else:
            yield raw, raw.tell


class _Zstandard(io.RawIOBase):
    """The contents of consecutive zstandard frames. Reading raises EOFError if the last one is cut off."""

    # A frame expands up to 32,768 times: pieces of this size need at most 32 MiB of memory.
    _PIECE = 1024

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._within = True
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer, /) -> int:
        while not self._ready:
            piece = self._raw.read(self._PIECE)
            if not piece:
                if self._within:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._ready = memoryview(self._decompressed(piece))
        target = memoryview(into).cast("B")
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompressed(self, piece: bytes) -> bytes:
        parts = []
        while piece:
            parts.append(self._frame.decompress(piece))
            piece = self._frame.unused_data
            self._within = not self._frame.eof
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        return b"".join(parts)


def _lines(stream: _Readable, tell: Callable[[], None] | None, shown: str, plain_bytes: int | None) -> Iterator[bytes]:
    number = size = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(line)
        if plain_bytes is not None and size > plain_bytes:
            raise TooLarge(f"the file has over {plain_bytes} bytes, decompressed")
        if len(line) > MAX_LINE_BYTES:
            raise Malformed(f"{shown}: line {number}: longer than {MAX_LINE_BYTES} bytes")
        if tell is not None and number % LINES_PER_REPORT == 0:
            tell()
        yield line


@asynccontextmanager
async def local_file(artifacts: ArtifactStore, name: str) -> AsyncIterator[Path]:
    """Yield the path of a local file with the bytes and extension of an artifact. Raise UnknownArtifact."""
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
