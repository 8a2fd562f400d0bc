"""Adoptions in a history: again and again a model takes over an index of what it has learned so far, or up to then.

The first kind changes nothing: the index and what comes on top of it is what was there. The other kind is ``restore``.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from abound.history.lineage import entry_end
from abound.replace.adoption import Adoption

from abound.history.history import HistoryParams
from abound.jobs import replace as rebuild
from abound.jobs.replace import RebuiltModel, RestoreParams
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.stream import LogParams
from abound.state.snapshots import SnapshotParams
from abound.store.client import Store, store_errors
from abound.store.lease import LeaseLost
from abound_core.errors import AboundError, InvalidInstance, UnknownOffset
from abound_core.types import Offset
from tests.simulation.hosts import HISTORY, LOG, QUICK, SNAPSHOTS, URL, Host

PARAMS = {LogParams: LOG, SnapshotParams: SNAPSHOTS, HistoryParams: HISTORY}
PAUSE_SECONDS = 0.15


class AdoptingHost(Host):
    """Where jobs run that let the model ``default`` adopt what it is.

    Attributes
    ----------
    n_adopted : int
        Adoptions that have come to their end.
    restored : dict
        By id of the adoption, the offset that it goes back to.
    why : str
        What ended the one before.
    """

    rng = random.Random()
    n_begun = 0
    n_adopted = 0
    why = "it was not begun"
    _committed = False
    _number = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.restored: dict[str, Offset] = {}
        self._is_chosen = False

    async def serve(self) -> None:
        store = Store(URL, QUICK)
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self.n_begun += 1
            try:
                await self._adopt(store)
            except (InvalidInstance, UnknownOffset) as error:  # to where the log does not reach any more, or to before
                self._next()
                self._network.note("adoption refused", self.name, str(error))
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
        name = f"adoption{self._number}"
        if not self._is_chosen:
            await self._choose(store, living, name)
        context: Any = SimpleNamespace(
            store=store,
            artifacts=artifacts,
            living=living,
            job=SimpleNamespace(id=name, committed=self._committed, outcome={}),
            settings=SimpleNamespace(prepare_seconds=0.5, group=PARAMS.__getitem__),
            check=lambda: None,
            will_write=_nothing,
            range=_nothing,
            so_far=_nothing,
            commit=self._commit,
        )
        if name in self.restored:
            params = RestoreParams(to=str(self.restored[name]), reason="simulated")
            await rebuild.restore(context, params, lambda stage, done: None)
        else:
            await self._adopt_as_it_is(context)
        self._next()
        self.n_adopted += 1
        self._network.note("adopted", self.name)

    async def _choose(self, store: Store, living: CatalogModel, name: str) -> None:
        """What the next adoption is to do."""
        if self.rng.random() < 0.5:
            with store_errors():
                found = await store.client.xrevrange(living.keys.log, count=8)
            if found:
                at = Offset.of_entry(self.rng.choice(found)[0])
                self.restored[name] = at._replace(position=self.rng.choice((0, 1, 3, 100)))
        self._is_chosen = True

    def _next(self) -> None:
        self._number, self._committed, self._is_chosen = self._number + 1, False, False

    async def _adopt_as_it_is(self, context: Any) -> None:
        place = rebuild._place(context)

        async def make(adoption: Adoption) -> RebuiltModel:
            live = await rebuild.state_at(place, entry_end(adoption.after))
            return RebuiltModel(live, {"method": "restore", "to": str(adoption.after)}, {})

        await rebuild._rebuild_and_adopt(context, place, "simulated", lambda stage, done: None, make)

    async def _commit(self, *prefixes: str) -> None:
        self._committed = True


async def _nothing(*given: Any) -> None:
    """Nobody keeps records of these jobs."""
