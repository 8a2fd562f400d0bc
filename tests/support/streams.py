"""Small streams of records for the tests of the store side."""

from __future__ import annotations

import random
from functools import cache

from abound.log.append_group import LearnDraft
from abound.store.client import Store
from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.types import Offset


@cache
def _vectorizer() -> Vectorizer:
    return Vectorizer(ModelConfig(), Limits())


def record(features: str, *labels: str) -> bytes:
    """A record of an instance, its features given as JSON."""
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
    """One request with ``n`` instances."""
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
