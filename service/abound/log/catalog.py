"""The catalog: the stream of model creations, replacements and deletions, and the models that result from it.

A model's **incarnation** is the id of the entry that created it, or that began the replacement which made it
(``abound/replace/replace.py``). It is part of all keys of the model, so a reused name shares nothing with the previous
model. The **origin** is a model's first incarnation, and does not change when the model is replaced.

The stream is bounded: once it has grown by many entries, a worker appends one entry with all models
(``KnownModels``) and removes the entries before the previous ``KnownModels``. A reader that has fallen further behind
finds everything in the next entry it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hiredis

from abound.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    CatalogEvent,
    IncarnationDropped,
    KnownModel,
    KnownModels,
    ModelCreated,
    ModelDeleted,
    ModelReplaced,
    ReplacementBegun,
    ReplacementPrepared,
    checksum_of,
    decode_catalog_entry,
    encode,
)
from abound.log.stream import Element
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.raw_connection import ConnectionLost
from abound.store.reconnecting_connection import ReconnectingConnection
from abound.store.server_info import refusal_of
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance, OutcomeUnknown, StoreUnavailable, UnknownApplyVersion
from abound_core.types import START, Offset

CATALOG_KEY = b"abound:catalog"
DEFAULT_MODEL = "default"

GROWN_ENTRIES = 1000
"""The stream is compacted after it has grown by this many entries, or by twice the number of models if that is more."""

_SHORTEN = """
-- KEYS: stream. ARGV: its last entry and that one's checksum, payload and checksum of the next, first one to stay or ''
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if #last == 0 or last[1][1] ~= ARGV[1] or last[1][2][4] ~= ARGV[2] then return 0 end
redis.call('XADD', KEYS[1], '*', 'e', ARGV[3], 'c', ARGV[4])
if ARGV[5] ~= '' then redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[5]) end
return 1
"""


class CatalogModel(NamedTuple):
    keys: ModelKeys
    config: ModelConfig  # at the creation of this incarnation; later changes are in its own log
    origin: str = ""


class Coming(NamedTuple):
    """An incarnation that shall replace a model."""

    keys: ModelKeys
    config: ModelConfig | None  # None until it is prepared


class Former(NamedTuple):
    """The incarnation that a model had before, kept for an undo."""

    keys: ModelKeys
    config: ModelConfig
    replaced: int  # milliseconds


@dataclass
class Catalog:
    """The models that exist, as far as the catalog stream has been applied."""

    offset: Offset = START  # of the last applied entry
    checksum: bytes = b""  # of that entry
    known: Offset = START  # of the last ``KnownModels`` entry
    n_since: int = 0  # entries after that one
    coming: dict[str, Coming] = field(default_factory=dict)
    former: dict[str, Former] = field(default_factory=dict)
    _living: dict[str, CatalogModel] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CatalogModel]:
        return iter(list(self._living.values()))

    def __len__(self) -> int:
        return len(self._living)

    def get(self, name: str) -> CatalogModel | None:
        return self._living.get(name)

    def incarnations(self) -> Iterator[ModelKeys]:
        """Yield the keys of everything that still exists: models, unfinished replacements and replaced models."""
        for known in (self, self.coming.values(), self.former.values()):
            for one in known:
                yield one.keys

    def apply(self, element: Element) -> None:
        """Apply the next entry. If it cannot be read, the catalog is unchanged, and the error says what to do."""
        try:
            self._apply(element)
        except (Corrupted, UnknownApplyVersion) as error:
            advice = ". Restore the store from a backup" if isinstance(error, Corrupted) else ""
            name = element[0].decode()
            raise type(error)(f"entry {name} of the catalogue cannot be applied: {error}{advice}") from error

    def _apply(self, element: Element) -> None:
        entry_id, fields = element
        event = decode_catalog_entry(fields).event
        at, n_since = Offset.of_entry(entry_id), self.n_since + 1
        if isinstance(event, KnownModels):
            listed = Catalog()  # takes effect once all of it could be read
            for one in event.models:
                listed._apply_known(one, self._living.get(one.name))
            self._living, self.coming, self.former = listed._living, listed.coming, listed.former
            self.known, n_since = at, 0
        elif isinstance(event, ModelCreated):
            if event.name not in self._living:
                incarnation = entry_id.decode()
                config = _config(event.name, event.config)
                self._living[event.name] = CatalogModel(ModelKeys(event.name, incarnation), config, incarnation)
        else:
            self._apply_change(event, at)
        self.offset, self.checksum, self.n_since = at, checksum_of(fields), n_since

    def _apply_change(self, event: CatalogEvent, at: Offset) -> None:
        name = event.name  # type: ignore[union-attr]  # ``KnownModels`` is handled elsewhere
        living, coming, former = self._living.get(name), self.coming.get(name), self.former.get(name)
        if living is None:
            return
        incarnation = event.incarnation  # type: ignore[union-attr]
        is_living = living.keys.incarnation == incarnation
        is_coming = coming is not None and coming.keys.incarnation == incarnation
        is_former = former is not None and former.keys.incarnation == incarnation
        if isinstance(event, ModelDeleted) and (is_living or is_former):  # the process may not know of the replacement
            del self._living[name]
            self.coming.pop(name, None)
            self.former.pop(name, None)
        elif isinstance(event, ReplacementBegun) and is_living:
            self.coming[name] = Coming(ModelKeys(name, at.entry), None)
        elif isinstance(event, ReplacementPrepared) and is_coming and coming is not None:
            self.coming[name] = coming._replace(config=_config(name, event.config))
        elif isinstance(event, ModelReplaced) and is_living and coming is not None and coming.config is not None:
            if coming.keys.incarnation == event.by:
                del self.coming[name]
                self.former.pop(name, None)
                if event.keep:
                    self.former[name] = Former(living.keys, living.config, at.milliseconds)
                self._living[name] = CatalogModel(coming.keys, coming.config, living.origin)
        elif isinstance(event, IncarnationDropped) and is_coming:
            del self.coming[name]
        elif isinstance(event, IncarnationDropped) and is_former:
            del self.former[name]

    @property
    def has_grown(self) -> bool:
        return self.n_since >= max(GROWN_ENTRIES, 2 * len(self))

    def known_models(self) -> KnownModels:
        return KnownModels(
            [
                KnownModel(
                    keys.name,
                    keys.incarnation,
                    config.to_dict(),
                    origin,
                    None if coming is None else (coming.keys.incarnation, _plain(coming.config)),
                    None if former is None else (former.keys.incarnation, former.config.to_dict(), former.replaced),
                )
                for keys, config, origin in self
                for coming, former in [(self.coming.get(keys.name), self.former.get(keys.name))]
            ]
        )

    def _apply_known(self, one: KnownModel, before: CatalogModel | None) -> None:
        name = one.name
        if before is not None and before.keys.incarnation == one.incarnation:
            self._living[name] = before
        else:
            self._living[name] = CatalogModel(ModelKeys(name, one.incarnation), _config(name, one.config), one.origin)
        if one.coming is not None:
            incarnation, config = one.coming
            self.coming[name] = Coming(ModelKeys(name, incarnation), None if config is None else _config(name, config))
        if one.former is not None:
            incarnation, plain, replaced = one.former
            self.former[name] = Former(ModelKeys(name, incarnation), _config(name, plain), replaced)


async def read_catalog(store: Store) -> Catalog:
    catalog = Catalog()
    with store_errors():
        elements = await store.client.xrange(CATALOG_KEY)
    for entry_id, fields in elements:
        catalog.apply((entry_id, [part for field in fields.items() for part in field]))
    return catalog


async def reread_catalog(store: Store, known: Catalog) -> Catalog:
    """Return all models that exist now: ``known`` itself if the stream has no newer entry."""
    with store_errors():
        last = await store.client.xrevrange(CATALOG_KEY, count=1)
    if last and (last[0][0].decode(), last[0][1].get(b"c")) == (known.offset.entry, known.checksum):
        return known
    return await read_catalog(store)


async def compact_catalog(store: Store, catalog: Catalog) -> bool:
    """Append an entry with all models of a catalog, and remove the entries before the previous such entry.

    Return False, and change nothing, if the stream does not end where ``catalog`` does. This makes a lease
    unnecessary: of two concurrent or late callers, only the first finds the end that it has read.
    """
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, catalog.known_models()))
    first = catalog.known.entry if catalog.known != START else ""
    words = (catalog.offset.entry, catalog.checksum, payload, checksum, first)
    with store_errors():
        return bool(await store.client.eval(_SHORTEN, 1, CATALOG_KEY, *words))


async def append_to_catalog(connection: ReconnectingConnection, event: CatalogEvent, seconds: float) -> Offset:
    """Append an event and return the offset of its entry. After StoreUnavailable nothing was appended."""
    raw = connection.raw
    if raw is None:
        raise StoreUnavailable("the store is unreachable; nothing was changed")
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    try:
        reply = await raw.call("XADD", CATALOG_KEY, "*", "e", payload, "c", checksum, seconds=seconds)
    except ConnectionLost as error:
        raise OutcomeUnknown("the store did not answer; check whether the change was made") from error
    except hiredis.ReplyError as error:
        if str(error).startswith("READONLY"):  # after a failover, a new connection reaches the new primary
            raw.close()
        raise StoreUnavailable(f"nothing was changed: {refusal_of(error)}") from error
    return Offset.of_entry(reply)


def _config(name: str, config: dict[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.from_stored(config)
    except InvalidInstance as error:
        raise Corrupted(f"the configuration of the model {name} cannot be read: {error}") from None


def _plain(config: ModelConfig | None) -> dict[str, Any] | None:
    return None if config is None else config.to_dict()
