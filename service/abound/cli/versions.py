"""``abound versions``: list, compare, activate, copy and delete the versions of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from abound.cli.file_arguments import CommandFailed, InputFile, OutputFile, open_pieces, write_pieces
from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Model,
    Url,
    format_time,
    format_value,
    print_json,
    print_result,
    print_rows,
    print_table,
    table_console,
)

versions = typer.Typer(
    name="versions", help="Fitted methods: list, show, compare, activate, export, import, delete.", no_args_is_help=True
)

VersionId = Annotated[str, typer.Argument(metavar="ID", help="Id of the version.")]
MEASURES = ("R@1", "R@5", "MRR", "P@1")
WIDE_TERMINAL = 120  # columns from which on the table shows every measure


@versions.command("list")
def list_versions(model: Model = "default", url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """List the versions of a model, newest first."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.versions(model)
    if as_json:
        print_json(answer)
        return
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
    print_rows((*whole, "created", ""), rows, whole)


@versions.command("show")
def show_version(
    version: VersionId, model: Model = "default", url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False
) -> None:
    """Show the card of a version."""
    from abound.client import Client

    with Client(url, key=key) as client:
        card = client.version(model, version)
    if as_json:
        print_json(card)
        return
    shown = {name: value for name, value in card.items() if value is not None}
    print_table("", shown | {"created": format_time(card["created"])})


@versions.command("compare")
def compare_versions(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of versions.  [default: the newest 20]")
    ] = None,
    model: Model = "default",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Compare versions side by side: metrics, sizes, parameters."""
    from abound.client import Client

    with Client(url, key=key) as client:
        names = ids or [card["id"] for card in client.versions(model)["versions"]][:20]
        if not names:
            raise CommandFailed(f"the model {model} has no versions")
        answer = client.compare_versions(model, names)
    if as_json:
        print_json(answer)
        return
    rows = [
        ("method", *answer["methods"]),
        ("created", *map(format_time, answer["created"])),
        ("bytes", *map(format_value, answer["bytes"])),
    ]
    for part in ("sizes", "metrics", "params"):
        rows += [(name, *map(format_value, values)) for name, values in answer[part].items()]
    print_rows(("", *answer["versions"]), rows, whole=("",))


@versions.command("export")
def export_version(
    version: VersionId,
    file: OutputFile,
    model: Model = "default",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Export a version to one file."""
    from abound.client import Client

    with Client(url, key=key) as client:
        size = write_pieces(file, client.export_version(model, version))
    if size is not None:
        answer = {"version": version, "file": str(file), "bytes": size}
        print_result(answer, f"wrote {version} to {file}, {size:,} bytes", as_json)


@versions.command("import")
def import_version(
    file: InputFile,
    model: Model = "default",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Add a version from an exported file to a model."""
    from abound.client import Client

    with Client(url, key=key) as client, open_pieces(file) as pieces:
        card = client.import_version(model, pieces)
    print_result(card, f"imported {card['method']} as {card['id']}, digest {card['digest']}", as_json)


@versions.command("activate")
def activate_version(
    version: Annotated[str, typer.Argument(metavar="ID", help="Id of the version, or live for the index.")],
    reason: Annotated[str, typer.Option(help="Reason to store with the event.")] = "",
    model: Model = "default",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a version answer the requests that name none. All replicas switch at one offset.

    To roll back, activate the former version.
    """
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.activate(model, version, reason)
    print_result(answer, f"{version} is active from {answer['offset']} on; formerly {answer['former']}", as_json)


@versions.command("delete")
def delete_version(
    version: VersionId, model: Model = "default", url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False
) -> None:
    """Delete a version. Fails if it is active or a challenger."""
    from abound.client import Client

    with Client(url, key=key) as client:
        client.delete_version(model, version)
    print_result({"deleted": version}, f"deleted {version}", as_json)
