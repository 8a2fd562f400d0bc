"""``abound mend``: report what cannot be read in the store, and replace unreadable log entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from abound.service.cli.direct_store import DataDir, RedisUrl, join_artifacts, load_settings, operator, with_store
from abound.service.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from abound.service.history.integrity import Damage
    from abound.service.settings import Settings
    from abound.service.store.client import Store


def mend(
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace unreadable log entries.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report what cannot be read in the store or in histories, and the way out of each damage.

    With `--yes`, replace unreadable log entries by marks: the events in them are lost. Make a copy of the store first.
    Use this if damaged data keeps the service from starting or from following a model. The command works on the store
    directly: the one in `--data-dir`, which it starts, or the one at `--redis-url`. Exit code 0 if everything can be
    read or was replaced, else 1.
    """
    settings = load_settings(data_dir, redis_url)
    findings = with_store(settings, lambda store: _mend(settings, store, yes))
    replaceable = [finding for finding in findings if finding.entry]
    mended = yes and len(replaceable) == len(findings)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings], "mended": mended})
    else:
        for finding in findings:
            typer.echo(finding.reason + (" (done)" if yes and finding.entry else ""))
        if not findings:
            typer.echo("nothing is wrong")
        elif replaceable and not yes:
            typer.echo("Make a copy of the store, and then: abound mend --yes")
    if findings and not mended:
        raise typer.Exit(1)


async def _mend(settings: Settings, store: Store, yes: bool) -> list[Damage]:
    """Return what cannot be read; with ``yes``, replace those entries that can be."""
    from abound.service.history.repair import find_problems, replace_entry
    from abound.service.security.audit import audited

    artifacts = await join_artifacts(settings, store)
    findings = await find_problems(store, artifacts)
    for finding in findings:
        if yes and finding.entry:
            async with audited(store, operator(), "store.mend", **finding._asdict()):
                await replace_entry(store, artifacts, finding)
    return findings
