"""Challengers of a model: versions that are scored on what it learns without being served, and promoted when better.

    ...:contenders    hash: version -> JSON of ``Challenger``; at most ``MOST``

The hash is a request, not replicated state; replicas do not read it. ``service/versions/promotion/contest.py``
scores the challengers by the rule in ``core/comparison/sequential_test.py``. ``LoadedChallengers`` holds the
loaded versions, and the reasons why others failed to load.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from abound.core.comparison.sequential_test import MOST
from abound.core.errors import AboundError, ArtifactsUnavailable, Conflict, Damaged, StoreUnavailable
from abound.core.model.active_version import LIVE
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.store.client import Store, reaching
from abound.service.store.keys import ModelKeys
from abound.service.versions import repository as versions
from abound.service.versions.repository import Loaded

_ENTER = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """Version entered as a challenger.

    Attributes
    ----------
    version : str
    reason : str
        Who or what entered it.
    since : float
        Seconds since 1970, by the store's clock.
    """

    version: str
    reason: str
    since: float


_entered = msgspec.json.Decoder(Entered)


async def enter(store: Store, keys: ModelKeys, version: str, reason: str) -> None:
    """Enter a version as a challenger; does nothing if it is one already.

    Raises
    ------
    Conflict
        The model has ``MOST`` challengers already.
    StoreUnavailable
    """
    with reaching():
        seconds, microseconds = await store.client.time()
        packed = msgspec.json.encode(Entered(version=version, reason=reason, since=seconds + microseconds / 1e6))
        done = await store.client.eval(_ENTER, 1, keys.of("contenders"), version, packed, MOST)
    if not done:
        raise Conflict(f"{MOST} versions of {keys.name} are contenders already, the maximum; remove one of them first")


async def leave(store: Store, keys: ModelKeys, version: str) -> bool:
    """Withdraw a challenger; return whether it was one. Raises StoreUnavailable."""
    with reaching():
        return bool(await store.client.hdel(keys.of("contenders"), version))


async def entered(store: Store, keys: ModelKeys) -> list[Entered]:
    """Return the challengers in the order in which they were entered. Raises StoreUnavailable."""
    with reaching():
        found = await store.client.hvals(keys.of("contenders"))
    return sorted((_entered.decode(packed) for packed in found), key=lambda one: (one.since, one.version))


log = structlog.get_logger(__name__)


class Roster:
    """Loaded versions that take part in the contest of one model.

    Parameters
    ----------
    loaded_bytes : int
        Bytes of all loaded versions together; versions beyond it are not loaded.

    Attributes
    ----------
    challengers : list of str
        Challengers in the order in which they were entered.
    loaded : dict of LoadedVersion
    load_errors : dict of str
        Versions that failed to load, with the reason.
    is_store_away : bool
        Whether one of them failed because a store was unavailable; other failures rarely pass without intervention.
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
        """Load the current challengers and the ``others``, and release all other versions. Raises StoreUnavailable."""
        self.entered = [one.version for one in await entered(self._store, self._keys)]
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
                f"it has {card.n_bytes} bytes and {self._loaded_bytes - n_bytes} are free; raise "
                "ABOUND_CONTENDING_LOADED_BYTES"
            )
        return await versions.load(self._artifacts, self._keys, name)
