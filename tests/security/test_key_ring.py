"""The key ring and a store whose clock goes back."""

from __future__ import annotations

import pytest

from abound.security import key_store
from abound.security.key import KeyTerms
from abound.security.key_ring import KeyRing
from abound.store.client import Store
from abound_core.errors import InvalidKey


async def test_the_clock_does_not_go_back(store: Store) -> None:
    ring = KeyRing(store)
    made = await key_store.create(store, KeyTerms(["learn"], seconds=60))
    header = b"Bearer " + made.secret.encode()
    await ring.load()
    ring.find(header)
    now = ring.now()
    ring._set_clock(now + 61)
    ring._set_clock(now - 3600)
    with pytest.raises(InvalidKey, match="has expired"):
        ring.find(header)
    await ring.load()
    with pytest.raises(InvalidKey, match="has expired"):
        ring.find(header)
