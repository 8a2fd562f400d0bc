"""Adoptions in a history: again and again a model takes over an index of what it has learned so far.

Such an adoption changes nothing: the index and what comes on top of it is what was there. So whatever goes wrong
meanwhile, replicas, snapshots and history are to be what the log says without it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from core.errors import AboundError
from service import rebuild
from service.adoption import Adoption
from service.catalog import DEFAULT_MODEL, read_catalog
from service.history import HistoryParams
from service.lease import LeaseLost
from service.log import LogParams
from service.rebuild import Made
from service.snapshots import SnapshotParams
from service.store import Store
from tests.simulation.hosts import HISTORY, LOG, QUICK, SNAPSHOTS, URL, Host

PARAMS = {LogParams: LOG, SnapshotParams: SNAPSHOTS, HistoryParams: HISTORY}
PAUSE_SECONDS = 0.3


class AdoptingHost(Host):
    """Where jobs run that let the model ``default`` adopt what it is.

    Attributes
    ----------
    n_adopted : int
        Adoptions that have come to their end.
    why : str
        What ended the one before.
    """

    n_begun = 0
    n_adopted = 0
    why = "it was not begun"
    _committed = False
    _number = 0

    async def serve(self) -> None:
        store = Store(URL, QUICK)
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self.n_begun += 1
            try:
                await self._adopt(store)
            except (AboundError, LeaseLost) as error:
                self.why = f"{type(error).__name__}: {error}"
                self._network.note("adoption failed", self.name, self.why)

    async def _adopt(self, store: Store) -> None:
        artifacts = self.artifacts
        assert artifacts is not None
        await artifacts.join(store)
        living = (await read_catalog(store)).get(DEFAULT_MODEL)
        if living is None:
            return
        context: Any = SimpleNamespace(
            store=store,
            artifacts=artifacts,
            living=living,
            job=SimpleNamespace(id=f"adoption{self._number}", committed=self._committed, created=0.0),
            settings=SimpleNamespace(prepare_seconds=0.5, group=PARAMS.__getitem__),
            check=lambda: None,
            will_write=_nothing,
            range=_nothing,
            commit=self._commit,
        )
        place = rebuild._place(context)

        async def make(adoption: Adoption) -> Made:
            live = await rebuild._as_it_was(place, adoption.after)
            return Made(live, {"method": "restore", "to": str(adoption.after)}, {})

        await rebuild._adopted(context, place, "simulated", lambda stage, done: None, make)
        self._number, self._committed = self._number + 1, False
        self.n_adopted += 1
        self._network.note("adopted", self.name)

    async def _commit(self, *prefixes: str) -> None:
        self._committed = True


async def _nothing(*given: Any) -> None:
    """Nobody keeps records of these jobs."""
