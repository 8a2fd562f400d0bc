"""Small streams of records for the tests of the store side."""

import random
from functools import cache

from abound.log.append_group import LearnDraft
from abound.log.catalog import CATALOG_KEY, DEFAULT_MODEL, CatalogModel, read_catalog
from abound.log.events import APPLY_VERSION, CatalogEntry, Entry, Event, LearnEvent, ModelCreated, encode
from abound.store.client import Store
from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.types import Offset


@cache
def _vectorizer() -> Vectorizer:
    return Vectorizer(ModelConfig(), Limits())


def record(features: str, *labels: str) -> bytes:
    return _vectorizer().vectorize(features.encode(), None) + pack_labels(list(labels), Limits())


def draft(features: str, *labels: str, key: str | None = None, body: bytes = b"") -> LearnDraft:
    return LearnDraft(record(features, *labels), 1, key, body)


def drafts(n: int, seed: int = 1, n_features: int = 40, n_labels: int = 9) -> list[LearnDraft]:
    """``n`` instances of three features and a label that depends on them."""
    rng = random.Random(seed)
    made = []
    for _ in range(n):
        first, second, third = rng.choices(range(n_features), k=3)
        features = f'{{"a{first}": 1, "b{second}": 2.5, "c{third}": 0.5}}'
        made.append(draft(features, f"label {first % n_labels}"))
    return made


def batch(n: int, seed: int = 1, key: str | None = None) -> LearnDraft:
    return LearnDraft(b"".join(one.records for one in drafts(n, seed)), n, key, b"hash" if key else b"")


async def flip(store: Store, log: bytes, at: Offset) -> None:
    """Change a bit of what an entry says; in place of the log comes a copy with it, as a damaged file gives back."""
    for entry_id, fields in await store.client.xrange(log):
        if entry_id.decode() == at.entry:
            payload = bytearray(fields[b"e"])
            payload[len(payload) // 2] ^= 1
            fields[b"e"] = bytes(payload)
        await store.client.xadd("copied", fields, id=entry_id)
    await store.client.rename("copied", log)


def fields_of(entry: Entry | CatalogEntry) -> dict[str | bytes, bytes]:
    """An entry as the store has it."""
    payload, checksum = encode(entry)
    return {"e": payload, "c": checksum}


def logged(event: Event, number: int = 1) -> dict[str | bytes, bytes]:
    """The entry of an event, as another process would append it."""
    return fields_of(Entry(APPLY_VERSION, b"somebody", number, event))


async def append(store: Store, living: CatalogModel, n: int, seed: int) -> None:
    """Append events as another process would."""
    async with store.client.pipeline() as pipe:
        for one in drafts(n, seed):
            pipe.xadd(living.keys.log, logged(LearnEvent(one.records, 1, [Unit(1)]), seed))
        await pipe.execute()


async def create(store: Store, name: str = DEFAULT_MODEL) -> CatalogModel:
    await store.client.xadd(CATALOG_KEY, fields_of(CatalogEntry(APPLY_VERSION, ModelCreated(name, {}))))
    return (await read_catalog(store)).get(name)
