"""The catalog: which models there are, as a stream of their comings and goings.

A model's **incarnation** is the id of the entry that created it. It is part of all keys of the model, so a name
that is used again shares nothing with the one before. All keys of an incarnation carry one hash tag and lie
together on a cluster; nothing spans two models.

The stream is bounded. Once it has grown by many entries, a worker appends all that it says as one entry (``Known``), if
nothing was appended meanwhile, and in the same moment takes out what is before the one of the last time. A reader that
is behind that finds all it needs in the entry that it comes to next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hiredis

from abound.core.config import ModelConfig
from abound.core.errors import Damaged, InvalidInstance, OutcomeUnknown, StoreUnavailable
from abound.core.types import START, Offset
from abound.service.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    Created,
    Deleted,
    Known,
    checksum_of,
    decode_catalog_entry,
    encode,
)
from abound.service.log.stream import Element
from abound.service.store.client import Store, reaching
from abound.service.store.connection import LinkLost
from abound.service.store.keys import ModelKeys
from abound.service.store.reconnecting import Line

CATALOG_KEY = b"abound:catalog"
DEFAULT_MODEL = "default"

GROWN_ENTRIES = 1000
"""The stream is made shorter when it has grown by so many entries, or by twice the models that there are."""

_SHORTEN = """
-- KEYS: stream. ARGV: its last entry and that one's checksum, payload and checksum of the next, first one to stay or ''
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if #last == 0 or last[1][1] ~= ARGV[1] or last[1][2][4] ~= ARGV[2] then return 0 end
redis.call('XADD', KEYS[1], '*', 'e', ARGV[3], 'c', ARGV[4])
if ARGV[5] ~= '' then redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[5]) end
return 1
"""


class Living(NamedTuple):
    """A model that there is.

    Attributes
    ----------
    keys : ModelKeys
    config : ModelConfig
        As it was created; later changes stand in its own log.
    """

    keys: ModelKeys
    config: ModelConfig


@dataclass
class Catalog:
    """The models that there are, as far as the catalog stream has been applied.

    Attributes
    ----------
    offset : Offset
        Of the entry applied last.
    checksum : bytes
        Of that entry.
    known : Offset
        Of the last entry that said all that there was, START when there is none.
    n_since : int
        Entries after that one.
    """

    offset: Offset = START
    checksum: bytes = b""
    known: Offset = START
    n_since: int = 0
    _living: dict[str, Living] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Living]:
        return iter(list(self._living.values()))

    def __len__(self) -> int:
        return len(self._living)

    def get(self, name: str) -> Living | None:
        """The model of this name, or None."""
        return self._living.get(name)

    def apply(self, element: Element) -> None:
        """Take the next entry of the catalog stream.

        Raises
        ------
        Damaged, UnknownApplyVersion
            It cannot be read; the catalog stays as it was.
        """
        entry_id, fields = element
        event = decode_catalog_entry(fields).event
        at, n_since = Offset.of_entry(entry_id), self.n_since + 1
        if isinstance(event, Known):
            self._living = {one[0]: self._as_known(*one) for one in event.models}
            self.known, n_since = at, 0
        elif isinstance(event, Created):
            if event.name not in self._living:
                keys = ModelKeys(event.name, entry_id.decode())
                self._living[event.name] = Living(keys, _config(event.name, event.config))
        else:
            living = self._living.get(event.name)
            if living is not None and living.keys.incarnation == event.incarnation:
                del self._living[event.name]
        self.offset, self.checksum, self.n_since = at, checksum_of(fields), n_since

    @property
    def has_grown(self) -> bool:
        """Whether it is worth while to make the stream shorter."""
        return self.n_since >= max(GROWN_ENTRIES, 2 * len(self))

    def _as_known(self, name: str, incarnation: str, config: dict[str, Any]) -> Living:
        living = self._living.get(name)
        if living is not None and living.keys.incarnation == incarnation:
            return living
        return Living(ModelKeys(name, incarnation), _config(name, config))


async def read_catalog(store: Store) -> Catalog:
    """All models that there are now.

    Raises
    ------
    StoreUnavailable
    Damaged, UnknownApplyVersion
        The catalog cannot be read.
    """
    catalog = Catalog()
    with reaching():
        elements = await store.client.xrange(CATALOG_KEY)
    for entry_id, fields in elements:
        catalog.apply((entry_id, [part for field in fields.items() for part in field]))
    return catalog


async def read_on(store: Store, known: Catalog) -> Catalog:
    """All models that there are now: ``known`` itself while that ends where the stream does. Raises as read_catalog."""
    with reaching():
        last = await store.client.xrevrange(CATALOG_KEY, count=1)
    if last and (last[0][0].decode(), last[0][1].get(b"c")) == (known.offset.entry, known.checksum):
        return known
    return await read_catalog(store)


async def shorten_catalog(store: Store, catalog: Catalog) -> bool:
    """Say all that a catalog says in one entry more, and take out what is before the last such one.

    False, and nothing of it, when the stream does not end where ``catalog`` does. No lease is needed: of two that are
    at it, or one that comes late, only the first finds the end that it has read to. StoreUnavailable.
    """
    models = [(one.keys.name, one.keys.incarnation, one.config.written()) for one in catalog]
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, Known(models)))
    first = catalog.known.entry if catalog.known != START else ""
    words = (catalog.offset.entry, catalog.checksum, payload, checksum, first)
    with reaching():
        return bool(await store.client.eval(_SHORTEN, 1, CATALOG_KEY, *words))


async def append_to_catalog(line: Line, event: Created | Deleted, seconds: float) -> Offset:
    """Append an event to the catalog; the offset of its entry.

    Raises
    ------
    StoreUnavailable
        The store is away or refuses; nothing was appended.
    OutcomeUnknown
        The store went away before it had answered.
    """
    link = line.link
    if link is None:
        raise StoreUnavailable("the store is away; nothing was changed")
    payload, checksum = encode(CatalogEntry(APPLY_VERSION, event))
    try:
        reply = await link.call("XADD", CATALOG_KEY, "*", "e", payload, "c", checksum, seconds=seconds)
    except LinkLost as error:
        raise OutcomeUnknown("the store went away in the middle of the change") from error
    except hiredis.ReplyError as error:
        raise StoreUnavailable(f"the store refused the change: {error}") from error
    return Offset.of_entry(reply)


def _config(name: str, config: dict[str, Any]) -> ModelConfig:
    try:
        return ModelConfig.stored(config)
    except InvalidInstance as error:
        raise Damaged(f"the configuration of the model {name} cannot be read: {error}") from None
