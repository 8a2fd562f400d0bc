"""``abound verify``: rebuild models from history and log, and compare them with the replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from abound.cli.direct_store import ArtifactsUrl, DataDir, RedisUrl, join_artifacts, load_settings, with_store
from abound.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from abound.history.verify import Verification
    from abound.settings import Settings
    from abound.store.client import Store


def verify(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Name of the model.  [default: all models]")
    ] = None,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for the replicas' digests.")] = 60.0,
    artifacts_url: ArtifactsUrl = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no replica; compare only the two rebuilt states.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild models from history and log, and compare their digests with those of the replicas.

    Each model is rebuilt twice: from the beginning of its history, and from the newest snapshot. The command accesses
    the store directly, not the HTTP API: the one in `--data-dir`, which it starts if no service runs, or the one at
    `--redis-url`, with its artifact store. Exit code 0 if all digests are equal and every replica answered, and at
    least one did; else 1. A replica with a heartbeat within the last hour that did not shut down must answer, because a
    replica that is cut off from the store still serves.
    """
    settings = load_settings(data_dir, redis_url, artifacts_url)
    results = with_store(settings, lambda store: _verify_all(settings, store, model, wait, offline))
    if as_json:
        print_json(
            {"good": all(result.good for result in results), "models": [_to_public(result) for result in results]}
        )
    else:
        for result in results:
            _show(result)
    if not all(result.good for result in results):
        raise typer.Exit(1)


async def _verify_all(
    settings: Settings, store: Store, model: str | None, wait: float, offline: bool
) -> list[Verification]:
    from abound.history.verify import verify as verify_model
    from abound.log.catalog import read_catalog
    from abound_core.model.live_model import warmup

    artifacts = await join_artifacts(settings, store)
    await asyncio.to_thread(warmup)  # before replicas are asked: compiling, once on a machine, takes half a minute
    names = [model] if model is not None else sorted(living.keys.name for living in await read_catalog(store))
    return [await verify_model(store, name, wait, artifacts, offline=offline) for name in names]


def _to_public(result: Verification) -> dict[str, object]:
    return {
        "model": result.model,
        "good": result.good,
        "offset": str(result.offset),
        "beginning": str(result.start),
        "from_start": result.from_start,
        "from_snapshot": result.from_snapshot,
        "replicas": {marked.replica: marked.digest for marked in result.replicas},
        "silent": result.silent,
    }


def _show(result: Verification) -> None:
    from abound_core.types import START

    word = "good" if result.good else "DIFFERENT" if not result.equal else "NOT ALL COMPARED"
    typer.echo(f"{result.model} at {result.offset}: {word}")
    where = "the first event" if result.start == START else f"{result.start}, the beginning of history"
    typer.echo(f"  {result.from_start}  rebuilt from {where}")
    typer.echo(f"  {result.from_snapshot}  rebuilt from the newest snapshot")
    for marked in result.replicas:
        typer.echo(f"  {marked.digest}  served by {marked.replica}")
    for replica in result.silent:
        typer.echo(f"  {'no answer':<32}  from {replica}")
    if not result.replicas and not result.silent and not result.offline:
        typer.echo(f"  {'no replica':<32}  is running; --offline compares without one")
