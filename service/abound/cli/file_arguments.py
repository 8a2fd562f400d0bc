"""Input and output files of commands; ``-`` is standard input or standard output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from abound_core.errors import AboundError

PIECE_BYTES = 2**20

OutputFile = Annotated[Path, typer.Argument(help="File to write; - is standard output.", dir_okay=False)]
InputFile = Annotated[Path, typer.Argument(help="File to read; - is standard input.", dir_okay=False)]


class CommandFailed(AboundError):
    """The command cannot be carried out; the message gives the reason."""


def write_pieces(file: Path, pieces: Iterable[bytes]) -> int | None:
    """Write a file atomically and return its size in bytes, None for standard output.

    Raises CommandFailed if the file cannot be written; an existing file is then left as it was.
    """
    if str(file) == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return None
    beside = file.with_name(f".{file.name}.part")
    try:
        with beside.open("wb") as out:
            size = sum(out.write(piece) for piece in pieces)
        beside.replace(file)
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return size


@contextlib.contextmanager
def open_pieces(file: Path) -> Iterator[Iterator[bytes]]:
    """Open a file and provide an iterator over its pieces. Raises CommandFailed if it cannot be read."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as data:
            yield iter(lambda: data.read(PIECE_BYTES), b"")
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error}") from error
