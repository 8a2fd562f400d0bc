"""``abound mend``: report what prevents a model from being loaded, and repair it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from abound.core.errors import ArtifactsUnavailable
from abound.service.cli.options import AsJson, DataDir, RedisUrl, print_json
from abound.service.cli.store_access import artifacts_of, operator, settings_of, with_store

if TYPE_CHECKING:
    from abound.service.artifacts.artifact_store import ArtifactStore
    from abound.service.history.repair import Finding
    from abound.service.store.client import Store


def mend(
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Carry out the repairs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report damage in the store that prevents a model from being loaded, and the cost of its repair.

    With `--yes`, carry out the repair. Use this if damaged data in the store keeps the service from starting or from
    following a model. Make a copy of the store first. The command works on the store directly: the one in `--data-dir`,
    which it starts, or the one at `--redis-url`. Exit code 0 if nothing is damaged or everything was repaired, else 1.
    """
    settings = settings_of(data_dir, redis_url)
    findings, mended = with_store(lambda store: _mend(store, artifacts_of(settings), yes), settings)
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


async def _mend(store: Store, artifacts: ArtifactStore | None, yes: bool) -> tuple[list[Finding], list[Finding]]:
    """Return the findings, and those of them that were repaired."""
    from abound.service.history.repair import find_problems, repair_finding
    from abound.service.security.audit import audited

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
