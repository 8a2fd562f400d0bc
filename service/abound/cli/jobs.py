"""``abound jobs``: submit background jobs, follow their progress, cancel them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Model,
    Url,
    changes_of,
    format_time,
    print_json,
    print_rows,
    print_table,
)
from abound.cli.progress import progress_bar

if TYPE_CHECKING:
    from abound.client import Client

jobs = typer.Typer(name="jobs", help="Background jobs: submit, list, show, follow, cancel.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait until the job has ended, with a progress bar.")
]
COLUMNS = ("id", "state", "method", "model", "stage")
UNWRAPPED_COLUMNS = ("id", "state", "method")


@jobs.command("submit")
def submit_job(
    method: Annotated[str, typer.Argument(help="A method listed by `abound jobs methods`.")],
    model: Model = "default",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method. May be repeated."),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Reason to store with the job.")] = None,
    data: Annotated[str, typer.Option("--data", help="`history`, or the name of a data set.")] = "history",
    activate: Annotated[str, typer.Option("--activate", help="`never` or `if_better`.")] = "never",
    follow: FollowOption = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job. With `--follow`, exit code 1 unless it succeeds."""
    from abound.client import Client

    params = changes_of(assignments)
    with Client(url, key=key) as client:
        if assignments:
            params |= _typed_strings(assignments, params, client, method)
        params |= {} if reason is None else {"reason": reason}
        request = {"method": method, "model": model, "params": params, "data": data, "activate": activate}
        job = client.submit(request)
        if follow:
            job = wait_for_job(client, job["id"])
    print_job(job, as_json)
    if follow:
        exit_unless_succeeded(job)


@jobs.command("list")
def list_jobs(
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only jobs in this state: queued, running, succeeded, failed or cancelled."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only jobs of this model.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of jobs.")] = 20,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.jobs(state=state, model=model, limit=limit)
    if as_json:
        print_json(answer)
        return
    rows = []
    for job in answer["jobs"]:
        far = f" {job['progress']:.0%}" if job["state"] == "running" else ""
        shown = {**job, "state": f"{job['state']}{far}", "stage": job["error"] or job["stage"] or "-"}
        rows.append([*(str(shown[column]) for column in COLUMNS), format_time(job["created"])])
    print_rows((*COLUMNS, "submitted"), rows, UNWRAPPED_COLUMNS)


@jobs.command("show")
def show_job(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """Show one job and its outcome."""
    from abound.client import Client

    with Client(url, key=key) as client:
        print_job(client.job(job_id), as_json)


@jobs.command("follow")
def follow_job(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """Follow a job until it has ended. Exit code 1 unless it succeeds."""
    from abound.client import Client

    with Client(url, key=key) as client:
        job = wait_for_job(client, job_id)
    print_job(job, as_json)
    exit_unless_succeeded(job)


@jobs.command("cancel")
def cancel_job(
    job_id: JobId, follow: FollowOption = False, url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False
) -> None:
    """Cancel a job. A running job stops within seconds; `--follow` waits for that."""
    from abound.client import Client

    with Client(url, key=key) as client:
        job = client.cancel(job_id)
        if follow:
            job = wait_for_job(client, job_id)
    print_job(job, as_json)


@jobs.command("methods")
def list_methods(url: Url = DEFAULT_URL, key: Key = None, as_json: AsJson = False) -> None:
    """List the methods of jobs with their parameters."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.methods()
    if as_json:
        print_json(answer)
        return
    for method in answer["methods"]:
        typer.echo(f"{method['name']}: {method['summary']}")
        needed = method["params"].get("required", [])
        for name, schema in method["params"].get("properties", {}).items():
            typer.echo(f"    {name}  {_type_of(schema)}{', required' if name in needed else ''}")


def _typed_strings(assignments: list[str], params: dict[str, Any], client: Client, method: str) -> dict[str, str]:
    """Return as typed, such as ``12345``, the parameters that must be strings and were parsed as something else."""
    schemas = {one["name"]: one["params"].get("properties", {}) for one in client.methods()["methods"]}
    typed = dict(assignment.split("=", 1) for assignment in assignments)
    strings: dict[str, str] = {}
    for name, schema in schemas.get(method, {}).items():
        kinds, value = {*_kinds_of(schema)}, params.get(name, "")
        if kinds <= {"string", "null"} and not isinstance(value, str) and (value is not None or "null" not in kinds):
            strings[name] = typed[name]
    return strings


def wait_for_job(client: Client, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = {}
    with progress_bar(f"job {job_id}") as bar:
        bar.reset(1.0)
        for job in client.follow(job_id):
            bar.advance_to(job["progress"])
            bar.set_text(" ".join(_status_words(job)))
    return job


def _status_words(job: dict[str, Any]) -> Iterable[str]:
    yield "stopping" if job["cancelling"] else job["state"]
    if job["stage"] and job["state"] == "running":
        yield f"({job['stage']})"
    if job["attempt"] > 1:
        yield f"attempt {job['attempt']}"


def print_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    shown = {name: value for name, value in job.items() if value not in (None, {}, False)}
    for name in ("created", "started", "ended", "heartbeat"):
        if name in shown:
            shown[name] = format_time(shown[name])
    print_table("", shown | {"progress": f"{job['progress']:.0%}"})


def exit_unless_succeeded(job: dict[str, Any]) -> None:
    if job["state"] != "succeeded":
        sys.stderr.write(f"abound: the job {job['id']} {job['state']}: {job['error'] or 'no reason given'}\n")
        raise typer.Exit(1)


def _kinds_of(schema: dict[str, Any]) -> list[str]:
    return [str(one.get("type", "?")) for one in schema.get("anyOf", [schema])]


def _type_of(schema: dict[str, Any]) -> str:
    default = f", by default {schema['default']}" if schema.get("default") is not None else ""
    return " or ".join(_kinds_of(schema)) + default
