"""``abound models`` and ``abound snapshots``: models and snapshots of a running service."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.file_arguments import CommandFailed, InputFile, OutputFile, open_pieces, write_pieces
from abound.cli.options import (
    AsJson,
    Assignments,
    Printed,
    Yes,
    asks_service,
    changes_of,
    confirm,
    counted,
    format_value,
    print_answer,
    print_rows,
    print_table,
)
from abound_core.limits import MODEL_NAME

if TYPE_CHECKING:
    from abound.client import Client

models = typer.Typer(no_args_is_help=True, help="The models of a running service.")
snapshots = typer.Typer(no_args_is_help=True, help="The snapshots of a model.")


def _checked_name(name: str) -> str:
    if not re.fullmatch(MODEL_NAME, name):
        raise typer.BadParameter(
            f"{name!r} is not the name of a model: it has at most 64 letters, digits and _ . -, and begins with a "
            f"letter or digit"
        )
    return name


Name = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", callback=_checked_name)]


@models.command("list")
@asks_service
def list_models(client: Client) -> Printed:
    """List all models with their sizes."""
    answer = client.models()
    sizes = ("learned", "features", "classes", "connections", "memory")
    columns = ("model", *sizes, "offset")
    rows = [(model["name"], *(f"{model[size]:,}" for size in sizes), model["offset"]) for model in answer["models"]]
    return answer, partial(print_rows, columns, rows, whole=columns, right=sizes)


@asks_service
def suspicious(
    client: Client,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of events.")] = 50,
) -> Printed:
    """List the events whose label may be wrong: another label was probable before the model learned them.

    Of a model with calibrate or decide.
    """
    answer, columns = client.suspicious(name, limit=limit), ("offset", "taught", "was sure of", "source", "features")
    doubts = ("label", "probability"), ("first", "first_probability")
    rows = [
        (
            one["offset"],
            *(f"{one[label]} ({one[chance]:.1%})" for label, chance in doubts),
            *(one["source"] or "", " ".join(one["features"] or ())),
        )
        for one in answer["events"]
    ]

    def show() -> None:
        print_rows(columns, rows, whole=columns[:1])
        if answer["total"] > len(rows):
            typer.echo(f"{len(rows):,} of {counted(answer['total'], 'event')}", err=True)

    return answer, show


@models.command("show")
@asks_service
def show_model(client: Client, name: Name) -> Printed:
    """Show one model: configuration, sizes, digest, running score and calibration of its probabilities."""
    model = client.describe(name)
    stats = client.stats(name)

    def show() -> None:
        print_table("", {field: value for field, value in model.items() if not isinstance(value, (dict, list))})
        print_table("\nconfiguration", model["config"])
        _show_score(stats)

    return model | {"stats": stats}, show


@models.command("create")
@asks_service
def create_model(client: Client, name: Name, assignments: Assignments = None) -> Printed:
    """Create a model. Fails if a model of this name exists."""
    changes = changes_of(assignments)
    if _exists(client, name):
        raise CommandFailed(f"the model {name} exists already; change it with: abound models configure {name}")
    answer = client.configure(name, changes)
    return answer, f"created {name}"


@models.command("configure")
@asks_service
def configure_model(client: Client, name: Name, assignments: Assignments = None) -> Printed:
    """Change fields of a model's configuration."""
    changes = changes_of(assignments)
    if not changes:
        raise typer.BadParameter("give at least one field to change", param_hint="--set")
    client.describe(name)
    answer = client.configure(name, changes)
    return answer, f"configured {name}"


@models.command("undo")
@asks_service
def undo_replacement(
    client: Client,
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", help="Reason to store with the job.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Printed:
    """Undo the last refit, restore or undo of a model. Keep what it has learned since.

    Submits the job `undo`, and waits until it has ended.
    """
    from abound.cli.jobs import exit_unless_succeeded, shown, wait_for_job

    confirm(f"Undo the last replacement of {name}?", yes)
    params = {} if reason is None else {"reason": reason}
    job = wait_for_job(client, client.submit({"method": "undo", "model": name, "params": params})["id"])
    print_answer(shown(job), as_json)
    exit_unless_succeeded(job)
    return None


@models.command("delete")
@asks_service
def delete_model(client: Client, name: Name, yes: Yes = False) -> Printed:
    """Delete a model and everything it has learned."""
    confirm(f"Delete {name} and everything it has learned?", yes)
    client.delete(name)
    return {"deleted": name}, f"deleted {name}"


@models.command("export")
@asks_service
def export_model(client: Client, name: Name, file: OutputFile) -> Printed:
    """Write a whole model into one file."""
    size = write_pieces(file, client.export(name))
    answer = {"model": name, "file": str(file), "bytes": size}
    return None if size is None else (answer, f"wrote {name} to {file}, {size:,} bytes")


@models.command("import")
@asks_service
def import_model(client: Client, name: Name, file: InputFile) -> Printed:
    """Create a model from an exported file. Fails if a model of this name has already learned."""
    with open_pieces(file) as pieces:
        answer = client.import_(name, pieces)
    return answer, f"imported {name}: {answer['learned']:,} learned, digest {answer['digest']}"


@snapshots.command("list")
@asks_service
def list_snapshots(client: Client, name: Name = "default") -> Printed:
    """List the snapshots of a model, newest first."""
    answer = client.snapshots(name)
    columns = ("id", "offset", "bytes", "digest")
    rows = [[str(snapshot.get(column, "-")) for column in columns] for snapshot in answer["snapshots"]]
    return answer, partial(print_rows, columns, rows, columns[:3])


@snapshots.command("create")
@asks_service
def create_snapshot(client: Client, name: Name = "default") -> Printed:
    """Request a snapshot. The worker makes it."""
    answer = client.snapshot(name)
    return answer, f"a snapshot of {name} will be made, at or after {answer.get('offset', 'now')}"


def _exists(client: Any, name: str) -> bool:
    from abound.client import Refused

    try:
        client.describe(name)
    except Refused as error:
        if error.status == 404:
            return False
        raise
    return True


def _show_score(stats: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("n", "R@1", "R@5", "MRR")
    table = Table("running score", *columns, box=None, padding=(0, 2, 0, 0))
    for part, shown in (("all", "all"), ("window", "newest 10,000"), ("recent", "newest 500")):
        score = stats.get(part, {})
        for name, row in {"": score, **score.get("groups", {})}.items():
            table.add_row(f"{shown}, {name} labels" if name else shown, *map(format_value, map(row.get, columns)))
    console = Console(highlight=False)
    console.print()
    console.print(table)
    if stats.get("calibration"):
        _show_reliability(stats["calibration"], console)
    if stats.get("reranking"):
        _show_reranking(stats["reranking"], console)
    for replica in stats.get("replicas", []):
        state = "ready" if replica.get("ready") else "not ready"
        typer.echo(f"replica {replica.get('replica')}: {state}, at {replica.get('offset')}, lag {replica.get('lag')}")


def _show_reranking(reranking: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    table = Table("re-ranking", "R@1", "MRR", box=None, padding=(0, 2, 0, 0))
    for name, shown in (("answers", f"answers to {reranking['n']} vectors"), ("index", "the index alone")):
        table.add_row(shown, *(format_value(reranking[name][measure]) for measure in ("R@1", "MRR")))
    weights = ", ".join(f"{name} {format_value(weight)}" for name, weight in reranking["weights"].items())
    console.print(table)
    console.print(f"weights: {weights}" + ("" if reranking["used"] else "; not used at present"))
    console.print()


def _show_reliability(calibration: dict[str, Any], console: Any) -> None:
    """Print the reliability of the probabilities by bin: number of labels, mean estimate, fraction that was true."""
    from rich.table import Table

    columns = ("labels", "estimate", "true")
    table = Table("probabilities", *columns, *(f"newest {name}" for name in columns), box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    parts = [calibration["all"], calibration["newest"]]
    for tenth, pair in enumerate(zip(*(part["bins"] for part in parts), strict=True)):
        figures = (format_value(one[key]) for one in pair for key in ("n", "estimate", "true"))
        table.add_row(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", *figures)
    for measure in ("error", "brier"):
        table.add_row(measure, *(cell for part in parts for cell in ("", "", format_value(part[measure]))))
    console.print()
    console.print(table)
    console.print()
