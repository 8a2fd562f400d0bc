"""Files that commands write and read whole; ``-`` is standard output, or standard input."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from abound.core.errors import AboundError

PIECE_BYTES = 2**20

Written = Annotated[Path, typer.Argument(help="The file to write; - is standard output.", dir_okay=False)]
Read = Annotated[Path, typer.Argument(help="The file to read; - is standard input.", dir_okay=False)]


class Refusal(AboundError):
    """The command does not do what was asked, and says why."""


def write(file: Path, pieces: Iterable[bytes]) -> int | None:
    """Write a file, or leave what was there; its bytes, None for standard output. Refusal when it cannot be written."""
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
        raise Refusal(f"cannot write {file}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return size


@contextlib.contextmanager
def reading(file: Path) -> Iterator[Iterator[bytes]]:
    """The pieces of a file, as long as the context lasts. Refusal when it cannot be read."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as data:
            yield iter(lambda: data.read(PIECE_BYTES), b"")
    except OSError as error:
        raise Refusal(f"cannot read {file}: {error}") from error
