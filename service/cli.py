"""The command ``abound``. Exit code 0: done; 1: failed; 2: wrong use."""

from __future__ import annotations

import sys

import typer

from core.errors import AboundError, WrongSetting
from service.commands import (
    datasets,
    demo,
    evaluating,
    history,
    jobs,
    keys,
    mending,
    models,
    reproducing,
    serving,
    storing,
    streaming,
    verifying,
    versions,
)
from service.kernel_cache import place

app = typer.Typer(
    name="abound",
    help="An online streaming learner service for problems with very many classes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("serve")(serving.serve)
app.command("learn")(streaming.learn)
app.command("classify")(streaming.classify)
app.command("evaluate")(evaluating.evaluate)
app.command("methods")(evaluating.methods)
app.command("reproduce")(reproducing.reproduce)
app.command("demo")(demo.demo)
app.add_typer(models.models, name="models")
app.add_typer(models.snapshots, name="snapshots")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(versions.versions, name="versions")
app.add_typer(datasets.datasets, name="datasets")
app.add_typer(history.history, name="history")
app.command("verify")(verifying.verify)
app.command("mend")(mending.mend)
app.add_typer(storing.store, name="store")
app.add_typer(keys.keys, name="keys")
app.command("audit")(keys.audit)
app.command("config")(serving.config)
app.command("worker")(serving.worker)


def main() -> None:
    """Run the command line; every error of the product is one sentence on standard error."""
    try:
        place()  # before a command imports numba
        app()
    except AboundError as error:
        sys.stderr.write(f"abound: {error}\n")
        sys.exit(2 if isinstance(error, WrongSetting) else 1)


if __name__ == "__main__":
    main()
