"""Data set files: opened by name and read as a stream, in bounded memory.

The extension gives the format and the compression (none, ``.gz`` or ``.zst``).
``abound_core/instances/data_formats.py`` describes ``.txt``, ``.svm`` and ``.jsonl``.
``abound_core/instances/tables.py`` describes the tables: ``.csv``, ``.tsv``, ``.parquet`` and ``.arrow``. Parquet and
Arrow need pyarrow, and compress inside of the file. The name ``-`` is standard input, read as JSON lines. A name with
``://`` is a URL for fsspec.

``local_file`` gives the file of an uploaded data set: the artifact itself, or a copy if it is not on this
machine.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.zstandard import zstd
from abound_core.errors import AboundError, Malformed, TooLarge
from abound_core.instances.data_formats import DatasetInstance, Format, raise_error, read_instances
from abound_core.instances.tables import TableColumns, read_batches, read_csv

MAX_LINE_BYTES = 16 * 2**20  # the service would accept no longer instance
STANDARD_INPUT = "-"

FileFormat = Format | Literal["csv", "tsv", "parquet", "arrow"]
COLUMNAR = ("parquet", "arrow")
FORMATS: tuple[FileFormat, ...] = (*get_args(Format), "csv", "tsv", "parquet", "arrow")

SUFFIXES = ".jsonl, .csv, .tsv, .svm or .txt, optionally followed by .gz or .zst, or in .parquet or .arrow"

ARROW_FILE = b"ARROW1"  # start of the file format of Arrow; its stream format starts otherwise
ROWS_PER_BATCH = 1024  # rows of a Parquet file that are decoded together
BUFFER_BYTES = 2**20  # read ahead of each column of a Parquet file
MAX_BATCH_BYTES = 2**28  # of a record batch: 1,024 rows of a Parquet file, or what the writer of an Arrow file chose
LINES_PER_REPORT = 256  # between two calls of ``progress``


class _Readable(Protocol):
    def readline(self, size: int = -1, /) -> bytes: ...


def format_of(name: str) -> tuple[FileFormat, str]:
    """Return the format and compression (empty, ``gz`` or ``zst``) of a file's extension; raise Malformed."""
    if name == STANDARD_INPUT:
        return "jsonl", ""
    stem, compression = Path(name).name, ""
    for ending in ("gz", "zst"):
        if stem.endswith(f".{ending}"):
            stem, compression = stem.removesuffix(f".{ending}"), ending
            break
    for form in FORMATS:
        if stem.endswith(f".{form}") and not (compression and form in COLUMNAR):
            return form, compression
    raise Malformed(f"{name}: cannot tell the format; the name must end in {SUFFIXES}")


def check_columns(name: str, columns: TableColumns) -> None:
    """Raise Malformed if the extension is unknown, or columns are named for a file that has none."""
    form, _ = format_of(name)
    if form == "jsonl":
        columns = msgspec.structs.replace(columns, ignore=())
    if columns != TableColumns() and form in get_args(Format):
        raise Malformed(
            f"{shown_name(name)}: only CSV, TSV, Parquet and Arrow files have columns; leave the options of columns out"
        )


def read_file(
    name: str,
    progress: Callable[[int], None] | None = None,
    plain_bytes: int | None = None,
    on_bad: Callable[[Malformed], None] | None = None,
    columns: TableColumns = TableColumns(),
) -> Iterator[DatasetInstance]:
    """Yield the instances of a file. Raise TooLarge, or Malformed with the name of the file and the line.

    ``progress`` is called with the number of bytes read, as stored on the disk; see :func:`size_of`. ``plain_bytes``
    bounds all lines together, decompressed. ``on_bad`` is as for ``read_instances``. Of JSON lines, ``columns`` has the
    fields to ignore.
    """
    form, compression = format_of(name)
    shown = shown_name(name)
    with file_errors(name), _opened(name, compression) as (stream, position):
        tell = None if progress is None else lambda: progress(position())
        if form == "parquet" or form == "arrow":
            batches = _batches(stream, form, tell, shown, plain_bytes)
            yield from read_batches(batches, columns, shown, on_bad or raise_error)
            return
        lines = _lines(stream, tell, shown, plain_bytes)
        if form == "csv" or form == "tsv":
            yield from read_csv(lines, columns, shown, on_bad or raise_error, tabs=form == "tsv")
        else:
            yield from read_instances(lines, form, shown, on_bad, columns.ignore)


def read_lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a file of text, decompressed. Raises Malformed as ``read_file`` does."""
    _, compression = format_of(name)
    with file_errors(name), _opened(name, compression) as (stream, _):
        yield from _lines(stream, None, shown_name(name), None)


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Raise Malformed, with the name of the file, where it cannot be opened, read or decompressed."""
    shown = shown_name(name)
    try:
        yield
    except (EOFError, zlib.error, zstd.ZstdError) as error:
        raise Malformed(f"{shown}: the compressed data are damaged or cut off: {error}") from error
    except AboundError:
        raise
    except FileNotFoundError as error:  # that of a file system of fsspec may say no more than the name
        raise Malformed(f"{shown}: no such file") from error
    except OSError as error:  # gzip.BadGzipFile is one
        raise Malformed(f"{shown}: {error.strerror or error}") from error
    except Exception as error:  # each file system of fsspec has errors of its own
        if not is_url(name):
            raise
        raise Malformed(f"{shown}: {error}") from error


def is_url(name: str) -> bool:
    return "://" in name


def shown_name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


def size_of(name: str) -> int | None:
    """Return the size of a file as stored; None if it is unknown, as for standard input."""
    if is_url(name):
        from fsspec.core import url_to_fs

        try:
            system, path = url_to_fs(name)
            return int(system.size(path))
        except Exception:  # each file system has errors of its own; opening the file tells the reason
            return None
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
    with open_stored(name) as raw:
        if compression == "gz":
            with gzip.open(raw, "rb") as plain:
                yield plain, raw.tell
        elif compression == "zst":
            with zstd.open(raw, "rb") as plain:
                yield plain, raw.tell
        else:
            yield raw, raw.tell


def open_stored(name: str) -> AbstractContextManager[Any]:
    """Open a file or URL; its bytes are not decompressed. May raise what :func:`file_errors` translates."""
    if not is_url(name):
        return Path(name).open("rb")
    import fsspec

    opened: AbstractContextManager[Any] = fsspec.open(name, "rb")
    return opened


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


def _batches(
    stream: Any, form: Literal["parquet", "arrow"], tell: Callable[[], None] | None, shown: str, plain_bytes: int | None
) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise Malformed(f"{shown}: a .{form} file needs pyarrow: pip install 'abound[arrow]'") from error
    size = 0
    try:
        if form == "parquet":
            file = parquet.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False)
            batches = file.iter_batches(ROWS_PER_BATCH, use_threads=False)
        else:
            start = stream.read(len(ARROW_FILE))
            stream.seek(0)
            options = ipc.IpcReadOptions(use_threads=False)
            if start == ARROW_FILE:
                file = ipc.open_file(stream, options=options)
                batches = map(file.get_batch, range(file.num_record_batches))
            else:
                batches = ipc.open_stream(stream, options=options)
        for batch in batches:
            size += batch.nbytes
            if plain_bytes is not None and size > plain_bytes:
                raise TooLarge(f"the file has over {plain_bytes} bytes, decompressed")
            if batch.nbytes > MAX_BATCH_BYTES:
                raise Malformed(f"{shown}: a batch has {batch.nbytes} bytes; write batches of up to {MAX_BATCH_BYTES}")
            yield batch
            if tell is not None:
                tell()
    except MemoryError:
        raise
    except pyarrow.ArrowException as error:
        raise Malformed(f"{shown}: not a .{form} file, or a damaged one: {error}") from error


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
