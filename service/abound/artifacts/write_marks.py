"""Write marks: they protect files that are being written, which nothing refers to yet, from garbage collection.

expiring records (``abound/store/expiring.py``): name -> the size of the file; 0 if it is not known
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.times import WRITING_SECONDS
from abound.store import expiring
from abound.store.client import Store


def hold_write_mark(
    store: Store, key: bytes, name: str, n_bytes: int = 0
) -> contextlib.AbstractAsyncContextManager[None]:
    return expiring.hold(store, key, name, b"%d" % n_bytes, WRITING_SECONDS / 10)


async def marked_writes(store: Store, key: bytes) -> dict[str, int]:
    return {name: int(one.payload) for name, one in (await expiring.live(store, key, WRITING_SECONDS)).items()}


async def collect_unmarked(
    store: Store,
    artifacts: ArtifactStore,
    folder: str,
    key: bytes,
    referenced: Callable[[set[str]], Awaitable[Iterable[str]]],
) -> int:
    """Delete the entries of ``folder`` without a write mark and without a reference; return the number of files.

    The entries are listed first, the marks next, and then ``referenced`` is awaited with the entries without a mark. So
    an entry whose writer sets the reference before it removes the mark is never deleted.
    """
    start = len(folder) + 1
    n_files = Counter(name[start:].partition("/")[0] for name in await artifacts.names(folder))
    if not n_files:
        return 0
    marked = await marked_writes(store, key)
    unmarked = n_files.keys() - marked.keys()
    gone = unmarked - set(await referenced(unmarked))
    for name in sorted(gone):
        await artifacts.clear(f"{folder}/{name}")
    return sum(n_files[name] for name in gone)
