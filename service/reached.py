"""The store of a service, for a command that needs it whether the service runs or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import CannotStart
from service.embedded import EmbeddedStore
from service.settings import Settings


@contextmanager
def reached(settings: Settings, make: bool = False, accept_loss: bool = False) -> Iterator[str]:
    """The URL of the store, which is there while the block runs. Call it in the main thread.

    An embedded store that no service runs is started for the time. Where there is none yet, one is made with ``make``
    only, and that is said; one whose log is lost is started as an empty one with ``accept_loss`` only.

    Raises
    ------
    CannotStart
        There is none, or it cannot be started.
    """
    if settings.redis_url is not None:
        yield settings.store_url()
        return
    embedded = EmbeddedStore(settings.data_dir, accept_loss=accept_loss)
    if not embedded.has_files():
        if not make:
            raise CannotStart(f"there is no store in {settings.data_dir}; name its --data-dir or --redis-url")
        sys.stderr.write(f"a new store is made in {settings.data_dir}\n")
    try:
        embedded.start()
    except CannotStart:
        if not embedded.is_run_by_other():
            raise
        yield embedded.url
        return
    try:
        yield embedded.url
    finally:
        embedded.stop()
