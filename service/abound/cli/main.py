"""The command ``abound``. Exit codes: 0 for success, 1 for failure, 2 for wrong usage."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from abound.cli import (
    datasets,
    demo,
    evaluate,
    history,
    jobs,
    keys,
    labels,
    learn_classify,
    mcp,
    models,
    serve,
    store,
    verify,
    versions,
)
from abound.processes.kernel_cache import set_cache_dir
from abound_core.errors import AboundError, WrongSetting

app = typer.Typer(
    name="abound",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("serve")(serve.serve)
app.command("learn")(learn_classify.learn)
app.command("classify")(learn_classify.classify)
app.command("evaluate")(evaluate.evaluate)
app.command("methods")(evaluate.methods)
app.command("demo")(demo.demo)
app.add_typer(models.models, name="models")
app.add_typer(labels.labels, name="labels")
app.command("register")(labels.register)
app.command("suspicious")(models.suspicious)
app.add_typer(models.snapshots, name="snapshots")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(versions.versions, name="versions")
app.add_typer(datasets.datasets, name="datasets")
app.add_typer(history.history, name="history")
app.command("verify")(verify.verify)
app.add_typer(store.store, name="store")
app.add_typer(keys.keys, name="keys")
app.command("audit")(keys.audit)
app.command("config")(serve.config)
app.command("worker")(serve.worker)
app.command("mcp")(mcp.mcp)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"abound {metadata.version('abound')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Suggest labels, and learn from every correction: a self-hosted classification service for large label sets."""


HINTS = {
    "/problems/unauthorized": "set ABOUND_KEY, ABOUND_KEY_FILE or --key",
    "/problems/invalid-key": "check ABOUND_KEY, ABOUND_KEY_FILE or --key",
    "/problems/unknown-model": "`abound models list` shows the models, `abound models create NAME` creates one",
}
"""Advice for a refused request, by the type of its problem."""


def _hint(error: AboundError) -> str:
    refused = error.__cause__ if error.__cause__ is not None else error
    hint = HINTS.get(getattr(refused, "problem", {}).get("type", ""))
    return f"; {hint}" if hint else ""


def main() -> None:
    """Run the command line. An AboundError is printed as one sentence on standard error."""
    try:
        set_cache_dir()  # before a command imports numba
        app()
    except AboundError as error:
        sys.stderr.write(f"abound: {error}{_hint(error)}\n")
        sys.exit(2 if isinstance(error, WrongSetting) else 1)


if __name__ == "__main__":
    main()
