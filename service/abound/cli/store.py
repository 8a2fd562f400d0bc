"""``abound store``: maintenance of the store as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from abound.cli.direct_store import ArtifactsUrl, DataDir, RedisUrl, load_settings, operator, with_store
from abound.cli.options import AsJson, Yes, confirm, print_json, print_result

if TYPE_CHECKING:
    from abound.store.client import Store

store = typer.Typer(
    help="Maintenance of the store: log, snapshots, keys. These commands access it directly, not through the HTTP API.",
    no_args_is_help=True,
)


@store.command("rewrite")
def rewrite(data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Rewrite the append-only file of the store and wait for it. Afterwards the file holds no deleted data.

    The service keeps running. Meanwhile the rewrite takes memory and disk space, like any rewrite that the store starts
    on its own. Exit code 0 if the file was rewritten, else 1.
    """
    from abound.security.audit import audited
    from abound.store.replication import REWRITTEN, rewrite_aof

    async def work(opened: Store) -> str:
        async with audited(opened, operator(), "store.rewrite") as details:
            details["store_file"] = said = await rewrite_aof(opened)
        return said

    said = with_store(load_settings(data_dir, redis_url), work)
    print_result({"store_file": said}, said, as_json)
    if not said.startswith(REWRITTEN):
        raise typer.Exit(1)


@store.command("accept-loss")
def accept_loss(
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    artifacts_url: ArtifactsUrl = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Accept a store that has lost events, or a new store beside an old artifact store.

    Use this if the service refuses to start because its store is behind its last known state, and there is no backup
    to restore. The command gives up the events that the store lacks. An unreadable log of an embedded store is moved
    aside in the data directory.
    """
    from abound.artifacts.artifact_store import ArtifactStore
    from abound.history import high_water
    from abound.security.audit import audited

    settings = load_settings(data_dir, redis_url, artifacts_url)
    confirm("Give up the lost events and continue with the rest?", yes)

    async def work(opened: Store) -> list[str]:
        place = settings.artifacts_location()
        if place is None:
            return []
        artifacts = ArtifactStore(place)
        if lacking := await high_water.losses(opened, artifacts):
            async with audited(opened, operator(), "store.accept_loss", lost=lacking):
                await high_water.accept(opened, artifacts)
        return lacking

    lacking = with_store(settings, work, accept_loss=True)
    if as_json:
        print_json({"given_up": lacking})
        return
    for sentence in lacking:
        typer.echo(f"given up: {sentence}")
    typer.echo("the store is accepted as it is" if lacking else "the store has no known losses")
