"""Options shared by several commands, and the output of results."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from abound_core.errors import InvalidInstance

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from abound_core.config import ModelConfig

DEFAULT_URL = "http://127.0.0.1:8000"

_NUMBERS = re.compile(r"\d+(,\d+)+")

UNLIMITED_WIDTH = 100_000  # columns of output that is not a terminal
Url = Annotated[str, typer.Option("--url", envvar="ABOUND_URL", help="URL of the service.", show_default=True)]


def _key_or_file(key: str | None) -> str | None:
    """Return the key, else the content of the file that ABOUND_KEY_FILE names."""
    path, hint = os.environ.get("ABOUND_KEY_FILE"), None
    if not key and path:
        hint = "ABOUND_KEY_FILE"
        try:
            key = Path(path).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {path}: {error}", param_hint=hint) from error
    if key and not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("a key is printable ASCII, without a line break", param_hint=hint)
    return key


Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="ABOUND_KEY",
        callback=_key_or_file,
        help="API key. Other users of this machine can see it here; ABOUND_KEY and ABOUND_KEY_FILE hide it.",
    ),
]
Model = Annotated[str, typer.Option("--model", "-m", envvar="ABOUND_MODEL", help="Name of the model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A field of the model's configuration, such as update=sls or analyzer.kind=char. May be repeated.",
    ),
]


def changes_of(assignments: list[str] | None) -> dict[str, Any]:
    """Return assignments like ``["update=sls", "analyzer.kind=char"]`` as fields of a configuration.

    A value is parsed as JSON if possible, else it is a string; ``1,2`` is a list of numbers. Raises
    typer.BadParameter for a malformed assignment.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{assignment!r} is not of the form NAME=VALUE", param_hint="--set")
        try:
            value = json.loads(f"[{text}]" if _NUMBERS.fullmatch(text) else text, parse_constant=str)
        except ValueError:
            value = text
        outer, dot, inner = name.partition(".")
        if not dot:
            changes[name] = value
        elif isinstance(changes.setdefault(outer, {}), dict):
            changes[outer][inner] = value
        else:
            raise typer.BadParameter(f"{name} conflicts with {outer}; give only one of them", param_hint="--set")
    return changes


def config_of(assignments: list[str] | None) -> ModelConfig:
    from abound_core.config import ModelConfig

    try:
        return ModelConfig.from_dict(changes_of(assignments))
    except InvalidInstance as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error


def confirm(question: str, yes: bool) -> None:
    """Ask on standard error, unless ``yes``; "no" ends the command. Raises typer.BadParameter without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("standard input is not a terminal; confirm with --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


Printed = tuple[Mapping[str, Any], str | Callable[[], None]] | None


def print_answer(printed: Printed, as_json: bool) -> None:
    if printed is None:
        return
    answer, text = printed
    if as_json:
        print_json(answer)
    elif isinstance(text, str):
        typer.echo(text)
    else:
        text()


def asks_service(command: Callable[..., Printed]) -> Callable[..., None]:
    """Give a command the options --url, --key and --json, and a client as its first argument.

    It returns the answer, which --json prints, and a sentence or a function that prints; or None, if it prints itself.
    """

    @wraps(command)
    def run(*, url: str, key: str | None, as_json: bool, **given: Any) -> None:
        from abound.client import Client

        if takes_json:
            given["as_json"] = as_json
        with Client(url, key=key) as client:
            print_answer(command(client, **given), as_json)

    own = list(inspect.signature(command).parameters.values())[1:]
    takes_json = any(one.name == "as_json" for one in own)
    hints = get_type_hints(command, localns={"Client": object}, include_extras=True)
    more = {"url": (Url, DEFAULT_URL), "key": (Key, None), "as_json": (AsJson, False)}
    kept = [
        one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for one in own
        if one.name != "as_json"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in more.items()
    ]
    run.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    del run.__wrapped__
    return run


def print_result(answer: Mapping[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        typer.echo(sentence)


def error_console() -> Console:
    """Return a console for progress and messages on standard error. Standard output holds results only."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_table(title: str, rows: Mapping[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(format_value(value)))
    Console(highlight=False).print(table)


def table_console() -> Console:
    """Return a console for tables, as wide as the terminal or ``COLUMNS``; without either, of unlimited width."""
    from rich.console import Console

    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, width=None if is_known else UNLIMITED_WIDTH)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    whole: Collection[str],
    right: Collection[str] = (),
) -> None:
    """Print a table. Columns in ``whole`` are never wrapped, so they can be copied; ``right`` aligns to the right."""
    from rich.table import Table

    console = table_console()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, no_wrap=column in whole, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*row)
    # Widen the console if the unwrapped columns do not fit: the terminal wraps the line, and no value is cut.
    needed = console.measure(table, options=console.options.update(width=UNLIMITED_WIDTH)).minimum
    console.width = max(console.width, needed)
    console.print(table)


def format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_format_line(item)}" for name, item in value.items())
    return _format_line(value)


def _format_line(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_line(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_format_line, value))
    return str(value)


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def counted(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
