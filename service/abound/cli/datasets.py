"""``abound datasets``: files that jobs can learn from instead of the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from abound.cli.file_arguments import PIECE_BYTES
from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Url,
    counted,
    format_time,
    format_value,
    print_json,
    print_result,
    print_rows,
    print_table,
)
from abound.cli.progress import progress_bar
from abound.cli.read_options import reads_files
from abound_core.instances.read_options import ReadOptions

datasets = typer.Typer(name="datasets", help="Data sets: put, list, show, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the data set.")]
COLUMNS = ("name", "format", "instances", "features", "classes", "bytes")


@datasets.command("put")
@reads_files
def put_dataset(
    name: Annotated[str, typer.Argument(help="Name of the data set. Default: the name of the file.")],
    file: Annotated[
        str | None, typer.Argument(help="File or URL to upload; its suffix names the format.", show_default=False)
    ] = None,
    *,
    options: ReadOptions,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Upload a file. It replaces a data set of the same name."""
    from abound.client import Client
    from abound.datasets.files import file_errors, open_stored, size_of

    if file is None:
        file, name = name, Path(name).name.partition(".")[0]
    with (
        progress_bar(f"data set {name}") as bar,
        Client(url, key=key) as client,
        file_errors(file),
        open_stored(file) as data,
    ):
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
    print_result(answer, f"stored {name}: {sizes}", as_json)


@datasets.command("list")
def list_datasets(url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """List the data sets by name."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.datasets()
    if as_json:
        print_json(answer)
        return
    rows = [
        (*(format_value(one[column]) for column in COLUMNS), format_time(one["created"])) for one in answer["datasets"]
    ]
    print_rows((*COLUMNS, "created"), rows, whole=COLUMNS)


@datasets.command("show")
def show_dataset(name: Name, url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """Show one data set."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.dataset(name)
    if as_json:
        print_json(answer)
    else:
        print_table("", answer | {"created": format_time(answer["created"])})


@datasets.command("delete")
def delete_dataset(name: Name, url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """Delete a data set. Versions fitted on it are kept."""
    from abound.client import Client

    with Client(url, key=key) as client:
        client.delete_dataset(name)
    print_result({"deleted": name}, f"deleted {name}", as_json)
