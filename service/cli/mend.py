"""``abound mend``: report what prevents a model from being loaded, and repair it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abound.core.errors import ArtifactsUnavailable
from abound.service.cli.keys import operator, suppress_logs
from abound.service.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from abound.service.history.repair import Finding
    from abound.service.settings import Settings


def mend(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Data directory of the service.  [default: ./data]")
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option("--redis-url", help="URL of the service's Valkey or Redis, if its store is not embedded."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Carry out the repairs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report damage in the store that prevents a model from being loaded, and the cost of its repair.

    With `--yes`, carry out the repair. Use this if damaged data in the store keeps the service from starting or from
    following a model. Make a copy of the store first. The command works on the store directly: the one in `--data-dir`,
    which it starts, or the one at `--redis-url`. Exit code 0 if nothing is damaged or everything was repaired, else 1.
    """
    from abound.service.processes.embedded_store import running_store
    from abound.service.settings import Settings

    settings = Settings.load(data_dir=data_dir, redis_url=redis_url)
    with running_store(settings) as url, suppress_logs():
        findings, mended = asyncio.run(_mend(settings, url, yes))
    all_mended = yes and len(mended) == len(findings)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings], "mended": all_mended})
    else:
        for finding in findings:
            where = f"the model {finding.model}" if finding.model else "the catalog"
            typer.echo(f"{where}{f', entry {finding.entry}' if finding.entry else ''}: {finding.reason}")
            typer.echo(f"  {'mended' if finding in mended else 'mending'}: {finding.mending}")
        if not findings:
            typer.echo("nothing is wrong")
        elif not yes and any(finding.is_mendable for finding in findings):
            typer.echo("Make a copy of the store, and then: abound mend --yes")
    if findings and not all_mended:
        raise typer.Exit(1)


async def _mend(settings: Settings, url: str, yes: bool) -> tuple[list[Finding], list[Finding]]:
    """Return the findings, and those of them that were repaired."""
    from abound.service.artifacts.artifact_store import ArtifactStore
    from abound.service.history.repair import find_problems, repair_finding
    from abound.service.security.audit import audited
    from abound.service.store.client import Store, StoreParams

    store = Store(url, settings.group(StoreParams))
    place = settings.artifacts_location()
    artifacts = ArtifactStore(place) if place is not None else None
    try:
        if artifacts is not None:
            with contextlib.suppress(ArtifactsUnavailable):  # findings that need it report it
                await artifacts.join(store)
        findings = found = await find_problems(store, artifacts)
        tried: list[Finding] = []
        while yes and (left := [finding for finding in found if finding.is_mendable and finding not in tried]):
            for finding in left:
                async with audited(store, operator(), "store.mend", **finding._asdict()):
                    await repair_finding(store, finding, artifacts)
            tried += left
            found = await find_problems(store, artifacts)  # a repaired finding may have hidden another one
            findings = [*findings, *(finding for finding in found if finding not in findings)]
        return findings, [finding for finding in tried if finding not in found]
    finally:
        await store.close()
