"""The command ``abound``. Exit codes: 0 for success, 1 for failure, 2 for wrong usage."""

from __future__ import annotations

import sys

import typer

from abound.core.errors import AboundError, WrongSetting
from abound.service.cli import (
    datasets,
    demo,
    evaluate,
    history,
    jobs,
    keys,
    learn_classify,
    mend,
    models,
    serve,
    store,
    verify,
    versions,
)
from abound.service.processes.kernel_cache import set_cache_dir

app = typer.Typer(
    name="abound",
    help="An online streaming learner service for problems with very many classes.",
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
app.add_typer(models.snapshots, name="snapshots")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(versions.versions, name="versions")
app.add_typer(datasets.datasets, name="datasets")
app.add_typer(history.history, name="history")
app.command("verify")(verify.verify)
app.command("mend")(mend.mend)
app.add_typer(store.store, name="store")
app.add_typer(keys.keys, name="keys")
app.command("audit")(keys.audit)
app.command("config")(serve.config)
app.command("worker")(serve.worker)


def main() -> None:
    """Run the command line. An AboundError is printed as one sentence on standard error."""
    try:
        set_cache_dir()  # before a command imports numba
        app()
    except AboundError as error:
        sys.stderr.write(f"abound: {error}\n")
        sys.exit(2 if isinstance(error, WrongSetting) else 1)


if __name__ == "__main__":
    main()
