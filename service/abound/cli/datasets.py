"""``abound datasets``: files that jobs can learn from instead of the history."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from abound.cli.file_arguments import PIECE_BYTES
from abound.cli.options import (
    Printed,
    asks_service,
    counted,
    format_time,
    format_value,
    print_rows,
    print_table,
)
from abound.cli.progress import progress_bar
from abound.cli.read_options import reads_files
from abound_core.instances.read_options import ReadOptions

if TYPE_CHECKING:
    from abound.client import Client

datasets = typer.Typer(name="datasets", help="Data sets: put, list, show, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the data set.")]
COLUMNS = ("name", "format", "instances", "features", "classes", "bytes")


@datasets.command("put")
@reads_files
@asks_service
def put_dataset(
    client: Client,
    name: Annotated[str, typer.Argument(help="Name of the data set. Default: the name of the file.")],
    file: Annotated[
        str | None, typer.Argument(help="File or URL to upload; its suffix names the format.", show_default=False)
    ] = None,
    *,
    options: ReadOptions,
) -> Printed:
    """Upload a file. It replaces a data set of the same name."""
    from abound.datasets.files import file_errors, open_stored, size_of

    if file is None:
        file, name = name, Path(name).name.partition(".")[0]
    with progress_bar(f"data set {name}") as bar, file_errors(file), open_stored(file) as data:
        bar.reset(size_of(file))

        def pieces() -> Iterator[bytes]:
            sent = 0
            while piece := data.read(PIECE_BYTES):
                yield piece
                sent += len(piece)
                bar.advance_to(float(sent))
            bar.set_text("checking")

        answer = client.put_dataset(file, name, pieces=pieces(), **msgspec.to_builtins(options))
    sizes = f"{counted(answer['instances'], 'instance')}, {counted(answer['classes'], 'class', 'classes')}"
    return answer, f"stored {name}: {sizes}"


@datasets.command("list")
@asks_service
def list_datasets(client: Client) -> Printed:
    """List the data sets by name."""
    answer = client.datasets()
    rows = [
        (*(format_value(one[column]) for column in COLUMNS), format_time(one["created"])) for one in answer["datasets"]
    ]
    return answer, partial(print_rows, (*COLUMNS, "created"), rows, whole=COLUMNS)


@datasets.command("show")
@asks_service
def show_dataset(client: Client, name: Name) -> Printed:
    """Show one data set."""
    answer = client.dataset(name)
    return answer, partial(print_table, "", answer | {"created": format_time(answer["created"])})


@datasets.command("delete")
@asks_service
def delete_dataset(client: Client, name: Name) -> Printed:
    """Delete a data set. Versions fitted on it are kept."""
    client.delete_dataset(name)
    return {"deleted": name}, f"deleted {name}"
