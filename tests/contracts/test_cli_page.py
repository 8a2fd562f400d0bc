"""docs/reference/cli.md has all commands and options; ``python -m tests.contracts.test_cli_page`` writes it."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from abound.cli.main import app
from abound.cli.read_options import PANEL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
HEAD = """\
# Command line

This page is generated from the program. `abound COMMAND --help` shows the same, with the defaults.
Exit codes: 0 for success, 1 for failure, 2 for wrong usage.

"""
COMMON_HEAD = "\nThese options mean the same everywhere, and are not repeated below:\n\n"
COMMON = ("--url", "--key", "--model", "--data-dir", "--redis-url")
"""Options of many commands."""

READING_HEAD = (
    "\n`learn`, `classify`, `evaluate` and `datasets put` take the options of [reading files](files.md#options); "
    "`register`\ntakes those from `--format` to `--encoding`:\n\n"
)


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, *path, name)
    else:
        yield " ".join(path), command


def table(options: dict[str, str]) -> str:
    return "| option | meaning |\n|---|---|\n" + "".join(f"| `{name}` | {says} |\n" for name, says in options.items())


def named(option: Any) -> str:
    return "`, `".join([*option.opts, *option.secondary_opts])


def meaning_of(option: Any) -> str:
    said, bracket, default = " ".join((option.help or "").split()).replace("|", "\\|").partition(" [")
    return f"{said[:1].upper()}{said[1:].removesuffix('.')}.{bracket}{default.removesuffix('.')}"


def section(name: str, command: Any) -> str:
    """A command: its usage, its help and the options that only few commands have."""
    options, arguments = {}, []
    for one in command.params:
        if one.param_type_name == "argument":
            words = one.metavar or one.name.upper()
            arguments.append(words if one.required or words.startswith("[") else f"[{words}]")
        elif not set(one.opts) & {*COMMON, "--help"} and one.rich_help_panel != PANEL:
            options[named(one)] = meaning_of(one)
    usage = " ".join([name, *arguments])
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    prose = "\n\n".join(
        textwrap.fill(" ".join(one.split()), 100, break_long_words=False, break_on_hyphens=False) for one in paragraphs
    )
    return f"## {usage}\n\n{prose}\n" + (f"\n{table(options)}" if options else "")


def page() -> str:
    every = dict(commands(typer.main.get_command(app), "abound"))
    common = {
        name: meaning_of(next(one for command in every.values() for one in command.params if name in one.opts))
        for name in COMMON
    }
    reading = {
        named(one): meaning_of(one)
        for one in every["abound learn"].params
        if getattr(one, "rich_help_panel", "") == PANEL
    }
    head = HEAD.rstrip("\n") + "\n" + COMMON_HEAD + table(common) + READING_HEAD + table(reading)
    return "\n".join([head, *(section(*one) for one in every.items())])


def test_the_page_has_every_command_and_option() -> None:
    written = PAGE.read_text()
    assert len(re.findall("^## abound ", written, re.MULTILINE)) > 40
    assert written == page(), "python -m tests.contracts.test_cli_page writes it"


if __name__ == "__main__":
    PAGE.write_text(page())
