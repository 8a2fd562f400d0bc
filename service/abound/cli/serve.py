"""``abound serve``, ``abound worker`` and ``abound config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abound.cli.options import AsJson, print_json, print_rows


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 takes a free one.  [default: 8000]")] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", help="Number of replicas on the port.  [default: 1]")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Data directory, with the embedded store.  [default: ./data]")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", help="URL of a Valkey or Redis to use instead of the embedded store.")
    ] = None,
    worker: Annotated[
        bool | None, typer.Option("--worker/--no-worker", help="Run a worker beside the service.  [default: worker]")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Listen on addresses that others can reach, even without API keys."),
    ] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write log lines as JSON.")] = False,
) -> None:
    """Run the service until it receives SIGINT or SIGTERM.

    Every setting can also be given as an environment variable; `abound config` lists them.
    """
    from abound.processes.supervisor import serve as run
    from abound.settings import Settings

    settings = Settings.load(
        host=host,
        port=port,
        processes=processes,
        data_dir=data_dir,
        redis_url=redis_url,
        worker=worker,
        insecure=insecure,
        log_level=log_level,
        log_format="json" if as_json else None,
    )
    raise typer.Exit(run(settings))


def config(as_json: AsJson = False) -> None:
    """Show the settings in effect and the origin of each. Passwords are masked."""
    import os

    from abound.settings import Settings, unknown_variables

    described = Settings.load().describe()
    unknown = unknown_variables(os.environ)
    if as_json:
        fields = {line.name: {"value": line.plain, "from": line.origin, "meaning": line.meaning} for line in described}
        print_json({"settings": fields, "unknown": unknown})
        return
    from rich.text import Text

    rows = []
    for line in described:
        style = "" if line.origin == "default" else "bold"
        cells = (line.name, line.value or "-", line.origin, line.meaning)
        rows.append([Text(cell, style=style) for cell in cells])
    print_rows(("setting", "value", "from", "meaning"), rows, whole=("setting",))
    for sentence in unknown:
        typer.echo(f"warning: {sentence}", err=True)


def worker(
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", help="URL of the Valkey or Redis to work for.")
    ] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write log lines as JSON.")] = False,
) -> None:
    """Run a worker until it receives SIGINT or SIGTERM. It makes the snapshots of all models of a store and runs jobs.

    `abound serve` starts a worker by default.
    """
    from abound.metrics import configure_logging
    from abound.processes.child_main import load_kernels
    from abound.processes.status_pipe import Reporter
    from abound.settings import Settings
    from abound.worker import run

    settings = Settings.load(redis_url=redis_url, log_level=log_level, log_format="json" if as_json else None)
    settings.store_url()
    configure_logging(settings.log_level, settings.log_format)
    reporter = Reporter(None)
    load_kernels(reporter)
    run(settings, reporter)
