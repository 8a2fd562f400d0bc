"""Start the promotion process beside a worker once it is needed, and keep it running.

The process costs memory, and a short-lived service does not need it. It is therefore started when the first
version becomes a challenger or active, or for drift marks after ``DRIFT_DELAY_SECONDS``. From then on it stays.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from abound.core.errors import Corrupted, StoreUnavailable, UnknownApplyVersion
from abound.service.log.catalog import read_catalog
from abound.service.processes.child import Child
from abound.service.settings import Settings
from abound.service.store.client import Store, store_errors
from abound.service.tasks import cancel_and_wait
from abound.service.versions.promotion.params import ContendingParams

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
DRIFT_DELAY_SECONDS = 30.0
"""A worker that has run for this long is not short-lived."""

STOP_SECONDS = 5.0

PROCESS_MODULE = "abound.service.versions.promotion.process"


class PromotionLauncher:
    """Supervises the promotion process. ``module`` is the module that ``python -m`` runs."""

    def __init__(self, settings: Settings, store: Store, module: str = PROCESS_MODULE) -> None:
        self._store = store
        self._drift = settings.group(ContendingParams).drift
        self._child = Child(
            "contests",
            module,
            [],
            settings.child_environment(),
            [],
            changed=lambda: None,
            say=lambda sentence: log.warning(sentence),
            essential=False,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Supervise until ``stopping`` is set."""
        stopped = asyncio.create_task(stopping.wait())
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.wait([stopped, keeping], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
        finally:
            await self._child.stop(STOP_SECONDS)
            await cancel_and_wait(stopped, keeping)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            if await self._is_contended() or (self._drift and loop.time() - began > DRIFT_DELAY_SECONDS):
                break
            await asyncio.sleep(LOOK_SECONDS)
        await self._child.run()

    async def _is_contended(self) -> bool:
        with contextlib.suppress(StoreUnavailable, Corrupted, UnknownApplyVersion):
            models = [living.keys for living in await read_catalog(self._store)]
            async with self._store.client.pipeline(transaction=False) as pipe:
                for keys in models:
                    pipe.hlen(keys.key("contenders"))
                    pipe.hget(keys.key("active"), "version")
                with store_errors():
                    found = await pipe.execute()
            return any(answer not in (None, 0, b"live") for answer in found)
        return False
