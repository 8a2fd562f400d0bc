"""Access to the store for commands that work without the HTTP API, and so need no key and no running service."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from abound.service.artifacts.artifact_store import ArtifactStore
    from abound.service.security.audit import Actor
    from abound.service.settings import Settings
    from abound.service.store.client import Store

T = TypeVar("T")


def settings_of(data_dir: Path | None, redis_url: str | None, artifacts_url: str | None = None) -> Settings:
    """Return the settings of the service with these options."""
    from abound.service.settings import Settings

    return Settings.load(data_dir=data_dir, redis_url=redis_url, artifacts_url=artifacts_url)


def artifacts_of(settings: Settings) -> ArtifactStore | None:
    """Return the artifact store of the settings; None if there is none."""
    from abound.service.artifacts.artifact_store import ArtifactStore

    place = settings.artifacts_location()
    return None if place is None else ArtifactStore(place)


async def work_on(url: str, settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return the result of ``work`` on the store at a URL."""
    from abound.service.store.client import Store, StoreParams

    store = Store(url, settings.group(StoreParams))
    try:
        return await work(store)
    finally:
        await store.close()


def with_store(
    work: Callable[[Store], Awaitable[T]], settings: Settings, make: bool = False, accept_loss: bool = False
) -> T:
    """Return the result of ``work`` on the store. ``running_store`` starts an embedded store that is not running.

    Log lines of the service below the level error are suppressed.
    """
    import structlog

    from abound.service.processes.embedded_store import running_store

    before = structlog.get_config()
    with running_store(settings, make, accept_loss) as url:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        try:
            return asyncio.run(work_on(url, settings, work))
        finally:
            structlog.configure(**before)


def operator() -> Actor:
    """Return the user and host that run the command, for the audit log."""
    from abound.service.security.audit import Actor

    user = "unknown"
    with suppress(OSError, KeyError):  # a user id without a name
        user = getpass.getuser()
    return Actor(None, f"{user}@{socket.gethostname()}")
