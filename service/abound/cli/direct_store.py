"""Direct access of commands to the store, without a service and without a key."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from abound_core.errors import ArtifactsUnavailable

if TYPE_CHECKING:
    from abound.artifacts.artifact_store import ArtifactStore
    from abound.security.audit import Actor
    from abound.settings import Settings
    from abound.store.client import Store

T = TypeVar("T")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory of the service, with its embedded store.  [default: ./data]"),
]
RedisUrl = Annotated[
    str | None, typer.Option("--redis-url", help="URL of the service's Valkey or Redis, if its store is not embedded.")
]
ArtifactsUrl = Annotated[
    str | None, typer.Option("--artifacts-url", help="URL of the artifact store.  [default: as for the service]")
]


def load_settings(data_dir: Path | None, redis_url: str | None, artifacts_url: str | None = None) -> Settings:
    from abound.settings import Settings

    return Settings.load(data_dir=data_dir, redis_url=redis_url, artifacts_url=artifacts_url)


def with_store(
    settings: Settings, work: Callable[[Store], Awaitable[T]], make: bool = False, accept_loss: bool = False
) -> T:
    """Return the result of ``work`` on the store. An embedded store that is not running is started for it.

    ``make`` and ``accept_loss`` are those of ``running_store``. CannotStart if the store has lost data, unless
    ``accept_loss``: whatever a command did to such a store could hide the loss from the next start of the service.
    """
    from abound.history import high_water
    from abound.processes.embedded_store import running_store
    from abound.store.client import Store, StoreParams

    async def run(url: str) -> T:
        store = Store(url, settings.group(StoreParams))
        try:
            if not accept_loss:
                await high_water.check(settings, store)
            return await work(store)
        finally:
            await store.close()

    with running_store(settings, make, accept_loss) as url, _suppress_logs():
        return asyncio.run(run(url))


async def join_artifacts(settings: Settings, store: Store) -> ArtifactStore | None:
    """Return the artifact store of the service, None if none is set. If it is unavailable, say so on standard error."""
    from abound.artifacts.artifact_store import ArtifactStore

    place = settings.artifacts_location()
    if place is None:
        return None
    artifacts = ArtifactStore(place)
    try:
        await artifacts.join(store)
    except ArtifactsUnavailable as error:  # a complete log needs no artifact store
        typer.echo(str(error), err=True)
    return artifacts


def operator() -> Actor:
    """Return the user and host that run the command, for the audit log."""
    from abound.security.audit import Actor

    user = "unknown"
    with suppress(OSError, KeyError):  # a user id without a name
        user = getpass.getuser()
    return Actor(None, f"{user}@{socket.gethostname()}")


@contextmanager
def _suppress_logs() -> Iterator[None]:
    import structlog

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)
