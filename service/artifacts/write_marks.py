"""Write marks: they protect files that are being written, which nothing refers to yet, from garbage collection.

expiring records (``service/store/expiring.py``): name -> the size of the file; 0 if it is not known
"""

from __future__ import annotations

import contextlib

from abound.service.store import expiring
from abound.service.store.client import Store

WRITING_SECONDS = 600


def hold_write_mark(
    store: Store, key: bytes, name: str, n_bytes: int = 0
) -> contextlib.AbstractAsyncContextManager[None]:
    """Hold a write mark while the context lasts. StoreUnavailable if it cannot be set."""
    return expiring.hold(store, key, name, b"%d" % n_bytes, WRITING_SECONDS / 10)


async def marked_writes(store: Store, key: bytes) -> dict[str, int]:
    """Return the names with a write mark, and the size of each file; 0 if it is not known. StoreUnavailable."""
    return {name: int(one.payload) for name, one in (await expiring.live(store, key, WRITING_SECONDS)).items()}
