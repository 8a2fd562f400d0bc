"""``abound store``: what is done to the store as a whole."""

from __future__ import annotations

import asyncio

import typer

from service.commands.keys import DataDir, RedisUrl, operator, quiet
from service.commands.options import AsJson, print_json

store = typer.Typer(
    help="The store itself: log, snapshots, keys. These ask the store, not the HTTP interface.", no_args_is_help=True
)


@store.command("rewrite")
def rewrite(data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Let the store write its append-only file anew, and wait for it: nothing of what was deleted is in it afterwards.

    Nobody has to stop for it. It takes memory and disk for the time, like any rewriting that the store does by itself.
    Exit code 0 when it is written, else 1.
    """
    from service.audit import act
    from service.reached import reached
    from service.settings import Settings
    from service.store import Store, StoreParams
    from service.store_file import REWRITTEN, write_file_anew

    settings = Settings.load(data_dir=data_dir, redis_url=redis_url)

    async def run(url: str) -> str:
        opened = Store(url, settings.group(StoreParams))
        try:
            async with act(opened, operator(), "store.rewrite") as details:
                details["store_file"] = said = await write_file_anew(opened)
            return said
        finally:
            await opened.close()

    with reached(settings) as url, quiet():
        said = asyncio.run(run(url))
    if as_json:
        print_json({"store_file": said})
    else:
        typer.echo(said)
    if not said.startswith(REWRITTEN):
        raise typer.Exit(1)
