"""The options of reading files, as options of commands, and the report of what files are read as."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
import typer

from abound.cli.options import counted, error_console, print_json
from abound_core.errors import InvalidInstance, Malformed
from abound_core.instances.read_options import PUBLIC, ReadOptions

if TYPE_CHECKING:
    from abound.datasets.inspection import Inspection

PANEL = "Reading files"  # of the help
SHOWN_COLUMNS = 30
SHOWN_CHARACTERS = 40  # of a value
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what the files are read as, and stop.")]
Misread = Annotated[bool, typer.Option("--yes", "-y", help="Go on if most rows would not be read as meant.")]


def reads_files(command: Callable[..., None], names: Collection[str] = PUBLIC) -> Callable[..., None]:
    """Give a command these options of ``ReadOptions``. The command gets them as its argument ``options``."""
    hints = get_type_hints(ReadOptions, include_extras=True)
    several = {name for name in names if getattr(ReadOptions(), name) == ()}

    def parameter(name: str) -> inspect.Parameter:
        hint = hints[name]
        own = {"skip_rows": int | None} | dict.fromkeys(("format", "header", "decimal"), hint.__origin__)
        kind = list[str] | None if name in several else own.get(name, str | None)
        flag = f"--{name.replace('_', '-')}"
        meta = "COLUMN" if name in several or name == "vector" or name.endswith("_column") else None
        option = typer.Option(
            f"{flag}/--no-{name}" if name == "header" else flag,
            metavar=meta,
            help=hint.__metadata__[-1].description + (" May be repeated." if name in several else ""),
            rich_help_panel=PANEL,
            show_default=False,
        )
        annotation = Annotated[kind, option]  # type: ignore[valid-type]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @wraps(command)
    def run(*files: Any, **given: Any) -> None:
        read = {name: value for name in names if (value := given.pop(name, None)) is not None}
        try:
            options = msgspec.convert(read, ReadOptions)
        except (InvalidInstance, msgspec.ValidationError) as error:
            hint = f"--{error.field.replace('_', '-')}" if isinstance(error, InvalidInstance) else None
            raise typer.BadParameter(str(error), param_hint=hint) from error
        command(*files, options=options, **given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.name != "options"]
    run.__signature__ = inspect.Signature([*kept, *map(parameter, names)])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    del run.__wrapped__
    return run


def show_files(
    files: list[str], options: ReadOptions, dry_run: bool, yes: bool, as_json: bool, none: bool = False
) -> list[ReadOptions]:
    """Print to standard error what files are read as; return the options of each, with what was guessed.

    With ``none`` it is no warning that there are no labels.

    Raises Malformed if most rows of a file would not be read as meant, unless ``yes``. Standard input is read later.
    """
    from abound.datasets.files import STANDARD_INPUT
    from abound.datasets.inspection import inspect

    found = [options if name == STANDARD_INPUT else inspect(name, options, none) for name in files]
    reports = [one for one in found if not isinstance(one, ReadOptions)]
    for report in reports:
        _show(report)
    if dry_run:
        if as_json:
            print_json(msgspec.to_builtins(reports))
        raise typer.Exit
    if not yes and (wrong := next((one.misread for one in reports if one.misread), None)):
        raise Malformed(f"{wrong}; nothing was read from it (to go on all the same, use --yes)")
    return [one if isinstance(one, ReadOptions) else one.options for one in found]


def _show(report: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    console, options = error_console(), report.options
    words = [options.format or "", *([options.encoding] if options.encoding else [])]
    if options.delimiter:
        words += [f"separated by {options.delimiter!r}", f"quotes {options.quote}", f"decimal sign {options.decimal!r}"]
        words += [f"dates {options.date_format}"] if options.date_format else []
        words += ["header" if options.header else "no header: columns are numbers"]
        words += [f"{counted(options.skip_rows, 'line')} skipped"] if options.skip_rows else []
    console.print(f"{report.file}: {', '.join(words)}", markup=False, soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("column", "role", "kind", "values"):
        table.add_column(title, overflow="fold")
    for column in report.columns[:SHOWN_COLUMNS]:
        values = ", ".join(value[:SHOWN_CHARACTERS] for value in column.values)
        table.add_row(*map(Text, (column.name, column.role, column.kind, values)))
    if report.columns:
        console.print(table)
    some = ", ".join(report.labels[:3])
    console.print(f"{counted(len(report.labels), 'label')} in {counted(report.rows, 'row')}: {some}", markup=False)
    for warning in report.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
