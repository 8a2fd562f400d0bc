"""Challengers of a model: versions that are scored on what it learns without being served, and promoted when better.

    ...:challengers    hash: version -> JSON of ``Challenger``; at most ``MAX_CHALLENGERS``

The hash is a request, not replicated state; replicas do not read it. ``abound/versions/promotion/contest.py``
scores the challengers by the rule in ``abound_core/promotion_rule.py``. ``LoadedChallengers`` holds the
loaded versions, and the reasons why others failed to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from abound.artifacts.artifact_store import ArtifactStore
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.versions import LoadedVersion
from abound_core.errors import AboundError, ArtifactsUnavailable, Conflict, Corrupted, StoreUnavailable
from abound_core.model.active_version import LIVE
from abound_core.promotion_rule import MAX_CHALLENGERS

_ENTER = """
local is_new = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0
if is_new and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""

_WITHDRAW = """
local packed = redis.call('HGET', KEYS[1], ARGV[1])
if not packed or cjson.decode(packed).since >= tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""


class Challenger(msgspec.Struct, frozen=True, kw_only=True):
    """Version entered as a challenger; ``reason`` says who or what entered it."""

    version: str
    reason: str
    since: Annotated[float, Meta(description="Seconds since 1970, of the store's clock.")]


_entered = msgspec.json.Decoder(Challenger)


async def enter(store: Store, keys: ModelKeys, version: str, reason: str) -> None:
    """Enter a version as a challenger. If it is one already, its reason and time are replaced.

    Raises Conflict if the model has ``MAX_CHALLENGERS`` challengers already.
    """
    packed = msgspec.json.encode(Challenger(version=version, reason=reason, since=await store.now()))
    with store_errors():
        done = await store.client.eval(_ENTER, 1, keys.key("challengers"), version, packed, MAX_CHALLENGERS)
    if not done:
        raise Conflict(
            f"{MAX_CHALLENGERS} versions of {keys.name} are challengers already, the maximum; remove one of them first"
        )


async def withdraw(store: Store, keys: ModelKeys, version: str, before: float = math.inf) -> bool:
    """Withdraw a challenger if it was entered before a time; return whether it was."""
    with store_errors():
        return bool(await store.client.eval(_WITHDRAW, 1, keys.key("challengers"), version, before))


async def list_challengers(store: Store, keys: ModelKeys) -> list[Challenger]:
    """Return the challengers in the order in which they were entered."""
    with store_errors():
        found = await store.client.hvals(keys.key("challengers"))
    return sorted((_entered.decode(packed) for packed in found), key=lambda one: (one.since, one.version))


log = structlog.get_logger(__name__)


class LoadedChallengers:
    """Loaded versions that take part in the contest of one model, up to ``loaded_bytes`` together."""

    def __init__(self, store: Store, artifacts: ArtifactStore | None, keys: ModelKeys, loaded_bytes: int) -> None:
        self.challengers: list[str] = []
        self.loaded: dict[str, LoadedVersion] = {}
        self.load_errors: dict[str, str] = {}  # versions that failed to load, with the reason
        # one failed because a store was unavailable; others rarely pass without intervention
        self.is_store_away = False
        self._store = store
        self._artifacts = artifacts
        self._keys = keys
        self._loaded_bytes = loaded_bytes

    async def reload(self, others: Iterable[str]) -> None:
        """Load the current challengers and the ``others``, and release all other versions."""
        self.challengers = [one.version for one in await list_challengers(self._store, self._keys)]
        wanted = [name for name in dict.fromkeys([*others, *self.challengers]) if name != LIVE]
        loaded = {name: self.loaded[name] for name in wanted if name in self.loaded}
        trouble, away = {}, False
        for name in wanted:
            if name not in loaded:
                try:
                    loaded[name] = await self._load(name, sum(one.card.n_bytes for one in loaded.values()))
                except AboundError as error:
                    trouble[name] = str(error)
                    away = away or isinstance(error, ArtifactsUnavailable | StoreUnavailable)
        for name in trouble.keys() - self.load_errors.keys():
            log.warning("a version cannot be scored", model=self._keys.name, version=name, reason=trouble[name])
        self.loaded, self.load_errors, self.is_store_away = loaded, trouble, away

    async def _load(self, name: str, n_bytes: int) -> LoadedVersion:
        if self._artifacts is None:
            raise ArtifactsUnavailable("there is no artifact store")
        await self._artifacts.join(self._store)
        card = await versions.card_of(self._artifacts, self._keys, name)
        if n_bytes + card.n_bytes > self._loaded_bytes:
            raise Corrupted(
                f"it has {card.n_bytes} bytes and {self._loaded_bytes - n_bytes} are free; raise "
                "ABOUND_CHALLENGER_LOADED_BYTES"
            )
        return await versions.load(self._artifacts, self._keys, name)
