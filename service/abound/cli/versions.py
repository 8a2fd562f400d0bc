"""``abound versions``: list, compare, activate, copy and delete the versions of a model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from abound.cli.file_arguments import CommandFailed, InputFile, OutputFile, open_pieces, write_pieces
from abound.cli.options import (
    Model,
    Printed,
    asks_service,
    format_time,
    format_value,
    print_rows,
    print_table,
    table_console,
)

if TYPE_CHECKING:
    from abound.client import Client

versions = typer.Typer(
    name="versions", help="Fitted methods: list, show, compare, activate, export, import, delete.", no_args_is_help=True
)

VersionId = Annotated[str, typer.Argument(metavar="ID", help="Id of the version.")]
MEASURES = ("R@1", "R@5", "MRR", "P@1")
WIDE_TERMINAL = 120  # columns from which on the table shows every measure


@versions.command("list")
@asks_service
def list_versions(client: Client, model: Model = "default") -> Printed:
    """List the versions of a model, newest first."""
    answer = client.versions(model)
    narrow = table_console().width < WIDE_TERMINAL
    names, sizes = (MEASURES[:1], ("instances",)) if narrow else (MEASURES, ("instances", "bytes"))
    rows = []
    for card in answer["versions"]:
        measures = (format_value(card["metrics"].get(name)) for name in names)
        counts = (format_value({**card["sizes"], "bytes": card["bytes"]}[size]) for size in sizes)
        rows.append(
            [card["id"], card["method"], *measures, *counts, format_time(card["created"]), card["needed"] or ""]
        )
    whole = ("id", "method", *names, *sizes)
    return answer, partial(print_rows, (*whole, "created", ""), rows, whole)


@versions.command("show")
@asks_service
def show_version(client: Client, version: VersionId, model: Model = "default") -> Printed:
    """Show the card of a version."""
    card = client.version(model, version)
    shown = {name: value for name, value in card.items() if value is not None}
    return card, partial(print_table, "", shown | {"created": format_time(card["created"])})


@versions.command("compare")
@asks_service
def compare_versions(
    client: Client,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of versions.  [default: the newest 20]")
    ] = None,
    model: Model = "default",
) -> Printed:
    """Compare versions side by side: metrics, sizes, parameters."""
    names = ids or [card["id"] for card in client.versions(model)["versions"]][:20]
    if not names:
        raise CommandFailed(f"the model {model} has no versions")
    answer = client.compare_versions(model, names)
    rows = [
        ("method", *answer["methods"]),
        ("created", *map(format_time, answer["created"])),
        ("bytes", *map(format_value, answer["bytes"])),
    ]
    for part in ("sizes", "metrics", "params"):
        rows += [(name, *map(format_value, values)) for name, values in answer[part].items()]
    return answer, partial(print_rows, ("", *answer["versions"]), rows, whole=("",))


@versions.command("export")
@asks_service
def export_version(client: Client, version: VersionId, file: OutputFile, model: Model = "default") -> Printed:
    """Export a version to one file."""
    size = write_pieces(file, client.export_version(model, version))
    answer = {"version": version, "file": str(file), "bytes": size}
    return None if size is None else (answer, f"wrote {version} to {file}, {size:,} bytes")


@versions.command("import")
@asks_service
def import_version(client: Client, file: InputFile, model: Model = "default") -> Printed:
    """Add a version from an exported file to a model."""
    with open_pieces(file) as pieces:
        card = client.import_version(model, pieces)
    return card, f"imported {card['method']} as {card['id']}, digest {card['digest']}"


@versions.command("activate")
@asks_service
def activate_version(
    client: Client,
    version: Annotated[str, typer.Argument(metavar="ID", help="Id of the version, or live for the index.")],
    reason: Annotated[str, typer.Option(help="Reason to store with the event.")] = "",
    model: Model = "default",
) -> Printed:
    """Make a version answer the requests that name none. All replicas switch at one offset.

    To roll back, activate the former version.
    """
    answer = client.activate(model, version, reason)
    return answer, f"{version} is active from {answer['offset']} on; formerly {answer['former']}"


@versions.command("delete")
@asks_service
def delete_version(client: Client, version: VersionId, model: Model = "default") -> Printed:
    """Delete a version. Fails if it is active or a challenger."""
    client.delete_version(model, version)
    return {"deleted": version}, f"deleted {version}"
