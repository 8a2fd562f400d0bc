"""The roster of a contest: the versions that are asked, loaded, and those that should be and cannot."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from core.errors import AboundError, ArtifactsUnavailable, Damaged, StoreUnavailable
from core.serving import LIVE
from service import contenders, versions
from service.artifacts import Artifacts
from service.catalog import ModelKeys
from service.store import Store
from service.versions import Loaded

log = structlog.get_logger(__name__)


class Roster:
    """The versions of one model that are asked.

    Parameters
    ----------
    loaded_bytes : int
        Of all of them together; what goes beyond is trouble.

    Attributes
    ----------
    entered : list of str
        Those that contend, in the order in which they came.
    loaded : dict of Loaded
    trouble : dict of str
        Why the others are not loaded.
    away : bool
        Whether a store was away for one of these; the others seldom heal by themselves.
    """

    def __init__(self, store: Store, artifacts: Artifacts | None, keys: ModelKeys, loaded_bytes: int) -> None:
        self.entered: list[str] = []
        self.loaded: dict[str, Loaded] = {}
        self.trouble: dict[str, str] = {}
        self.away = False
        self._store = store
        self._artifacts = artifacts
        self._keys = keys
        self._loaded_bytes = loaded_bytes

    async def call(self, others: Iterable[str]) -> None:
        """See who contends by now, and load them and the ``others``; whoever is neither goes. StoreUnavailable."""
        self.entered = [one.version for one in await contenders.entered(self._store, self._keys)]
        wanted = [name for name in dict.fromkeys([*others, *self.entered]) if name != LIVE]
        loaded = {name: self.loaded[name] for name in wanted if name in self.loaded}
        trouble, away = {}, False
        for name in wanted:
            if name not in loaded:
                try:
                    loaded[name] = await self._load(name, sum(one.card.n_bytes for one in loaded.values()))
                except AboundError as error:
                    trouble[name] = str(error)
                    away = away or isinstance(error, ArtifactsUnavailable | StoreUnavailable)
        for name in trouble.keys() - self.trouble.keys():
            log.warning("a version cannot be scored", model=self._keys.name, version=name, reason=trouble[name])
        self.loaded, self.trouble, self.away = loaded, trouble, away

    async def _load(self, name: str, n_bytes: int) -> Loaded:
        if self._artifacts is None:
            raise ArtifactsUnavailable("there is no artifact store")
        await self._artifacts.join(self._store)
        card = await versions.card_of(self._artifacts, self._keys, name)
        if n_bytes + card.n_bytes > self._loaded_bytes:
            raise Damaged(
                f"it has {card.n_bytes} bytes, and {self._loaded_bytes - n_bytes} are left for it "
                "(ABOUND_CONTENDING_LOADED_BYTES)"
            )
        return await versions.load(self._artifacts, self._keys, name)
