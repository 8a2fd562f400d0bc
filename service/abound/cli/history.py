"""``abound history``: show the archived log of a model, and give up a damaged part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from abound.cli.direct_store import ArtifactsUrl, DataDir, RedisUrl, load_settings, operator, with_store
from abound.cli.options import AsJson, Model, Yes, confirm, counted, print_json, print_result
from abound_core.errors import ArtifactsUnavailable, UnknownModel, did_you_mean

if TYPE_CHECKING:
    from abound.artifacts.artifact_store import ArtifactStore
    from abound.history.history import HistoryManifest
    from abound.log.catalog import CatalogModel
    from abound.settings import Settings
    from abound.store.client import Store

history = typer.Typer(
    help="The archived log of a model. These commands access the store directly, not the HTTP API.",
    no_args_is_help=True,
)


@history.command("show")
def show(
    model: Model = "default",
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    artifacts_url: ArtifactsUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the extent of a model's history, and check that all of it is present and intact.

    Reads every segment with its entries, and the states that replays begin with.
    Exit code 1 if anything is missing or damaged.
    """

    async def work(
        store: Store, artifacts: ArtifactStore, living: CatalogModel
    ) -> tuple[HistoryManifest | None, list[str]]:
        from abound.history.history import History
        from abound.history.integrity import find_damage

        contents = await History(store, artifacts, living.keys).manifest()
        wrong = await find_damage(store, artifacts, living)
        return contents, wrong

    contents, wrong = _with_model(work, model, load_settings(data_dir, redis_url, artifacts_url))
    if as_json:
        print_json({"model": model, "history": _to_public(contents), "wrong": wrong})
    elif contents is None:
        typer.echo(f"{model}: no history yet; the log holds all events")
    else:
        first, last, n_bytes, n_segments = contents.extent
        begins = "the first event" if contents.base is None else f"{first} (a base of {contents.base.size} bytes)"
        typer.echo(f"{model}: from {begins} to {last.entry}, {counted(n_segments, 'segment')}, {n_bytes} bytes")
        if contents.refitted is not None:
            typer.echo(f"  starts begin with the refit at {contents.refitted.offset}")
    if wrong:
        if not as_json:
            typer.echo("\n".join(f"  {sentence}" for sentence in wrong))
        raise typer.Exit(1)


@history.command("begin-anew")
def begin_anew(
    model: Model = "default",
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    artifacts_url: ArtifactsUrl = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start the history at the oldest snapshot, and give up everything before it.

    Use this if the history is damaged or lost. The model, its snapshots and its log from that snapshot on are kept.
    Earlier events can no longer be replayed or forgotten, and earlier states can no longer be restored.
    """

    async def work(store: Store, artifacts: ArtifactStore, living: CatalogModel) -> HistoryManifest:
        from abound.history import archive
        from abound.history.archive import ArchiveContext
        from abound.security.audit import audited
        from abound.store.lease import acquire

        async with audited(store, operator(), "history.begin_anew", model=model) as details:
            async with acquire(store, living.keys) as lease:
                begun = await archive.restart_history(ArchiveContext(store, artifacts, living, lease))
            details["beginning"] = str(begun.start)
            return begun

    confirm(f"Give up the history of {model} before its oldest snapshot?", yes)
    begun = _with_model(work, model, load_settings(data_dir, redis_url, artifacts_url))
    start = str(begun.start)
    print_result({"model": model, "beginning": start}, f"the history of {model} now begins at {start}", as_json)


def _with_model(work: Any, model: str, settings: Settings) -> Any:
    from abound.artifacts.artifact_store import ArtifactStore
    from abound.log.catalog import read_catalog

    place = settings.artifacts_location()
    if place is None:
        raise ArtifactsUnavailable("no artifact store is configured; give --artifacts-url or set ABOUND_ARTIFACTS_URL")
    artifacts = ArtifactStore(place)

    async def run(store: Store) -> Any:
        catalog = await read_catalog(store)
        living = catalog.get(model)
        if living is None:
            raise UnknownModel(
                f"there is no model {model[:64]!r}", did_you_mean(model, (one.keys.name for one in catalog))
            )
        await artifacts.join(store)
        return await work(store, artifacts, living)

    return with_store(settings, run)


def _to_public(contents: HistoryManifest | None) -> dict[str, Any] | None:
    if contents is None:
        return None
    first, last, n_bytes, n_segments = contents.extent
    return {"beginning": str(first), "end": last.entry, "bytes": n_bytes, "segments": n_segments}
