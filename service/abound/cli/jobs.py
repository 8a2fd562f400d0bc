"""``abound jobs``: submit background jobs, follow their progress, cancel them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.options import (
    AsJson,
    Model,
    Printed,
    asks_service,
    changes_of,
    format_time,
    print_answer,
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
@asks_service
def submit_job(
    client: Client,
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
    as_json: AsJson = False,
) -> Printed:
    """Submit a job. With `--follow`, exit code 1 unless it succeeds."""
    params = changes_of(assignments)
    if assignments:
        params |= _typed_strings(assignments, params, client, method)
    params |= {} if reason is None else {"reason": reason}
    request = {"method": method, "model": model, "params": params, "data": data, "activate": activate}
    job = client.submit(request)
    if follow:
        job = wait_for_job(client, job["id"])
    print_answer(shown(job), as_json)
    if follow:
        exit_unless_succeeded(job)
    return None


@jobs.command("list")
@asks_service
def list_jobs(
    client: Client,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only jobs in this state: queued, running, succeeded, failed or cancelled."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only jobs of this model.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of jobs.")] = 20,
) -> Printed:
    """List jobs, newest first."""
    answer = client.jobs(state=state, model=model, limit=limit)
    rows = []
    for job in answer["jobs"]:
        far = f" {job['progress']:.0%}" if job["state"] == "running" else ""
        row = {**job, "state": f"{job['state']}{far}", "stage": job["error"] or job["stage"] or "-"}
        rows.append([*(str(row[column]) for column in COLUMNS), format_time(job["created"])])
    return answer, partial(print_rows, (*COLUMNS, "submitted"), rows, UNWRAPPED_COLUMNS)


@jobs.command("show")
@asks_service
def show_job(client: Client, job_id: JobId) -> Printed:
    """Show one job and its outcome."""
    return shown(client.job(job_id))


@jobs.command("follow")
@asks_service
def follow_job(client: Client, job_id: JobId, as_json: AsJson = False) -> Printed:
    """Follow a job until it has ended. Exit code 1 unless it succeeds."""
    job = wait_for_job(client, job_id)
    print_answer(shown(job), as_json)
    exit_unless_succeeded(job)
    return None


@jobs.command("cancel")
@asks_service
def cancel_job(client: Client, job_id: JobId, follow: FollowOption = False) -> Printed:
    """Cancel a job. A running job stops within seconds; `--follow` waits for that."""
    job = client.cancel(job_id)
    if follow:
        job = wait_for_job(client, job_id)
    return shown(job)


@jobs.command("methods")
@asks_service
def list_methods(client: Client) -> Printed:
    """List the methods of jobs with their parameters."""
    answer = client.methods()
    lines = []
    for method in answer["methods"]:
        lines.append(f"{method['name']}: {method['summary']}")
        needed = method["params"].get("required", [])
        for name, schema in method["params"].get("properties", {}).items():
            lines.append(f"    {name}  {_type_of(schema)}{', required' if name in needed else ''}")
    return answer, "\n".join(lines)


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


def shown(job: dict[str, Any]) -> Printed:
    given = {name: value for name, value in job.items() if value not in (None, {}, False)}
    for name in ("created", "started", "ended", "heartbeat"):
        if name in given:
            given[name] = format_time(given[name])
    return job, partial(print_table, "", given | {"progress": f"{job['progress']:.0%}"})


def exit_unless_succeeded(job: dict[str, Any]) -> None:
    if job["state"] != "succeeded":
        sys.stderr.write(f"abound: the job {job['id']} {job['state']}: {job['error'] or 'no reason given'}\n")
        raise typer.Exit(1)


def _kinds_of(schema: dict[str, Any]) -> list[str]:
    return [str(one.get("type", "?")) for one in schema.get("anyOf", [schema])]


def _type_of(schema: dict[str, Any]) -> str:
    default = f", by default {schema['default']}" if schema.get("default") is not None else ""
    return " or ".join(_kinds_of(schema)) + default
