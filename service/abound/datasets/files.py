"""Data set files: opened by name and read as a stream, in bounded memory.

The options, the suffix and the first lines give the format (``detection.py``), the suffix the compression (none,
``.gz`` or ``.zst``). ``abound_core/instances/data_formats.py`` describes the formats of lines,
``abound_core/instances/tables.py`` the tables: CSV, TSV, Parquet and Arrow. Parquet and Arrow need pyarrow, and
compress inside of the file. The name ``-`` is standard input, read as JSON lines unless another format is named. A
name with ``://`` is a URL for fsspec.

``local_file`` gives the file of an uploaded data set: the artifact itself, or a copy if it is not on this
machine.
"""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, AnyStr, Literal, get_args

import msgspec
from msgspec.structs import replace

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.zstandard import zstd
from abound.datasets.detection import SAMPLE_BYTES, WITH_COLUMNS, resolve
from abound_core.errors import AboundError, Malformed, TooLarge
from abound_core.instances.data_formats import DatasetInstance, at_line, raise_error, read_instances
from abound_core.instances.read_options import Format, ReadOptions
from abound_core.instances.tables import CsvRows, read_batches, read_csv, read_records

MAX_LINE_BYTES = 16 * 2**20  # the service would accept no longer instance
STANDARD_INPUT = "-"

COLUMNAR = ("parquet", "arrow")
FORMATS: tuple[Format, ...] = get_args(Format)
OPENERS: dict[str, Callable[[Any], Any]] = {"gz": gzip.open, "zst": zstd.open}  # by suffix of compressed files

SUFFIXES = ".jsonl, .json, .csv, .tsv, .svm or .txt, optionally followed by .gz or .zst, or in .parquet or .arrow"

ARROW_FILE = b"ARROW1"  # start of the file format of Arrow; its stream format starts otherwise
ROWS_PER_BATCH = 1024  # rows of a Parquet file that are decoded together
BUFFER_BYTES = 2**20  # read ahead of each column of a Parquet file
MAX_BATCH_BYTES = 2**28  # of a record batch: 1,024 rows of a Parquet file, or what the writer of an Arrow file chose
LINES_PER_REPORT = 256  # between two calls of ``progress``


def format_of(name: str, given: Format | None = None) -> tuple[Format, str]:
    """Return the format and compression (empty, ``gz`` or ``zst``) of a file's suffix; raise Malformed.

    ``given`` is the format that the caller names. The content decides between the formats of ``.txt`` and ``.json``.
    """
    if name == STANDARD_INPUT:
        return given or "jsonl", ""
    stem, _, compression = Path(name).name.rpartition(".")
    if compression not in OPENERS:
        stem, compression = Path(name).name, ""
    suffix = stem.rpartition(".")[2]
    if given is None and suffix not in FORMATS:
        raise Malformed(
            f"{name}: cannot tell the format; name it ({', '.join(FORMATS)}), or end the name in {SUFFIXES}"
        )
    form: Format = given or suffix  # type: ignore[assignment]
    if compression and form in COLUMNAR:
        raise Malformed(f"{name}: cannot tell the format; {form} files compress inside")
    return form, compression


def read_file(
    name: str,
    progress: Callable[[int], None] | None = None,
    plain_bytes: int | None = None,
    on_bad: Callable[[Malformed], None] = raise_error,
    options: ReadOptions = ReadOptions(),
) -> Iterator[DatasetInstance]:
    """Yield the instances of a file. Raise TooLarge, or Malformed with the name of the file and the line.

    ``progress`` is called with the number of bytes read, as stored on the disk; see :func:`size_of`. ``plain_bytes``
    bounds all lines together, decompressed. ``on_bad`` is as for ``read_instances``.
    """
    shown = shown_name(name)
    with file_errors(name), _opened(name, options) as (stream, position):
        options = _resolved(stream, name, options)
        tell = None if progress is None else lambda: progress(position())
        if options.format == "parquet" or options.format == "arrow":
            batches = _batches(stream, options.format, tell, shown, plain_bytes)
            yield from read_batches(batches, options, shown, on_bad)
        elif options.format == "csv" or options.format == "tsv":
            yield from read_csv(_texts(stream, options, tell, shown, plain_bytes), options, shown, on_bad)
        else:
            lines = _plain_lines(stream, options, tell, shown, plain_bytes)
            lines = _elements(lines, shown) if options.format == "json" else lines
            by_roles = options.format in WITH_COLUMNS and (options.roles or options.label_separator)
            yield from (read_records if by_roles else read_instances)(lines, options, shown, on_bad)


def resolve_file(name: str, options: ReadOptions) -> ReadOptions:
    """Return the options with what the first lines of a file tell. Raises Malformed."""
    with file_errors(name), _opened(name, options) as (stream, _):
        return _resolved(stream, name, options)


def read_table(name: str, options: ReadOptions) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines and cells of a CSV or TSV file, of which the first line may be the header. Raises Malformed."""
    with file_errors(name), _opened(name, options) as (stream, _):
        rows = CsvRows(_texts(stream, options, None, shown_name(name), None), options)
        try:
            yield from ((rows.line, cells) for cells in rows if cells)
        except Malformed as error:
            raise at_line(shown_name(name), rows.line, error) from error


def read_lines(name: str, options: ReadOptions) -> Iterator[bytes]:
    """Yield the lines of a file of text, decompressed and in UTF-8. Raises Malformed as ``read_file`` does."""
    with file_errors(name), _opened(name, options) as (stream, _):
        yield from _plain_lines(stream, options, None, shown_name(name), None)


def _resolved(stream: Any, name: str, options: ReadOptions) -> ReadOptions:
    if options.is_resolved:
        return options
    form, _ = format_of(name, options.format)
    if form != "parquet" and form != "arrow":
        return resolve(stream.peek(SAMPLE_BYTES)[:SAMPLE_BYTES], form, shown_name(name), options)
    return replace(options, format=form, is_resolved=True)


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
def _opened(name: str, options: ReadOptions) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Open a file; yield its decompressed bytes, and a function that returns the position in the file."""
    if name == STANDARD_INPUT:
        # Not sys.stdin itself: a thread blocked in it would keep the interpreter from exiting.
        with open(sys.stdin.fileno(), "rb", SAMPLE_BYTES, closefd=False) as piped:
            yield piped, int
        return
    form, compression = format_of(name, options.format)
    with open_stored(name) as raw:
        if form in COLUMNAR:
            yield raw, raw.tell
        else:
            plain = OPENERS[compression](raw) if compression else raw
            yield io.BufferedReader(plain, SAMPLE_BYTES), raw.tell


def open_stored(name: str) -> AbstractContextManager[Any]:
    """Open a file or URL; its bytes are not decompressed. May raise what :func:`file_errors` translates."""
    if not is_url(name):
        return Path(name).open("rb")
    import fsspec

    opened: AbstractContextManager[Any] = fsspec.open(name, "rb")
    return opened


def _lines(
    readline: Callable[[int], AnyStr], tell: Callable[[], None] | None, shown: str, plain_bytes: int | None
) -> Iterator[AnyStr]:
    number = size = 0
    while line := readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(line)
        if plain_bytes is not None and size > plain_bytes:
            raise TooLarge(f"the file has over {plain_bytes} bytes, decompressed")
        if len(line) > MAX_LINE_BYTES:
            raise Malformed(f"{shown}: line {number}: longer than {MAX_LINE_BYTES} bytes")
        if tell is not None and number % LINES_PER_REPORT == 0:
            tell()
        yield line


def _texts(stream: Any, options: ReadOptions, *how: Any) -> Iterator[str]:
    # Without translation of line ends, so that a carriage return alone ends a line, and one in quotes stays.
    with io.TextIOWrapper(stream, options.encoding or "utf-8", errors="surrogateescape", newline="") as text:
        lines = _lines(text.readline, *how)
        yield from (line.removeprefix("\ufeff") for line in islice(lines, 1))
        yield from lines


def _plain_lines(stream: Any, options: ReadOptions, *how: Any) -> Iterator[bytes]:
    if options.encoding in (None, "utf-8"):
        return _lines(stream.readline, *how)
    return (line.encode(errors="surrogateescape") for line in _texts(stream, options, *how))


def _elements(lines: Iterator[bytes], shown: str) -> Iterator[bytes]:
    """Yield the elements of a JSON array, which is held in memory."""
    try:
        whole = b"".join(lines).removeprefix(codecs.BOM_UTF8)
        yield from map(bytes, msgspec.json.decode(whole, type=list[msgspec.Raw]))
    except msgspec.DecodeError as error:
        raise Malformed(f"{shown}: not an array in JSON: {error}") from error


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
