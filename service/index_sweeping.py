"""Sweeping indexes: those that nothing needs any more leave the artifact store.

An index is needed by an adoption in history or in the log, by history as its base, and by whoever is about to adopt it.
Retention takes adoptions away, and a process that dies between writing an index and its adoption leaves one.

1. while no index of a model is being made: what nothing needs is noted
2. one sweep later, with the fence of adoptions (``pending.py``): what was noted, and still is not needed, goes

Two sweeps, since a store that loses its last second may need it again. Whoever comes back after it was thought to be
dead, while this had the fence, looks at its index once more before it is adopted (``adoption.py``).
"""

from __future__ import annotations

import contextlib

import structlog

from core.errors import Conflict, Damaged, StoreUnavailable, UnknownApplyVersion, UnknownArtifact
from service import indexes, pending
from service import log as stream
from service.archive import BASE_PREFIX, adopted
from service.artifacts import Artifacts
from service.catalog import Catalog, ModelKeys
from service.history import Contents, History
from service.lease import Lease, LeaseLost, take
from service.log import LogParams
from service.pending import SWEEP, Pending
from service.store import Store

log = structlog.get_logger(__name__)


class IndexSweep:
    """What was noted of each model from one sweep to the next."""

    def __init__(self, store: Store, params: LogParams | None = None) -> None:
        self._store = store
        self._params = params or LogParams()
        self._unneeded: dict[ModelKeys, set[str]] = {}
        self._needed: dict[ModelKeys, tuple[set[str], str | None]] = {}

    async def sweep(self, artifacts: Artifacts, catalog: Catalog) -> int:
        """Take away what nothing needs, now and the sweep before; how many indexes.

        A model that somebody else works on, or whose past cannot be read, is left alone.
        ArtifactsUnavailable, StoreUnavailable.
        """
        living = {one.keys for one in catalog}
        self._unneeded = {keys: names for keys, names in self._unneeded.items() if keys in living}
        self._needed = {keys: known for keys, known in self._needed.items() if keys in living}
        swept = 0
        for keys in [one.keys for one in catalog]:
            with contextlib.suppress(Conflict, LeaseLost):
                try:
                    swept += await self._sweep(artifacts, keys)
                except (Damaged, UnknownApplyVersion, UnknownArtifact) as error:
                    log.warning("indexes are not swept", model=keys.name, reason=str(error))
        if swept:
            log.info("took away indexes that nothing needs", indexes=swept)
        return swept

    async def _sweep(self, artifacts: Artifacts, keys: ModelKeys) -> int:
        there = {name for name in await indexes.ids(artifacts, keys) if not name.startswith(BASE_PREFIX)}
        (busy,) = await pending.pending(self._store, [keys])
        contents = await History(self._store, artifacts, keys).contents()
        base = contents.base.index if contents is not None and contents.base is not None else None
        if busy is not None or not there or self._needed.get(keys) == (there, base):
            return 0  # what is needed stays so until history begins later
        noted = self._unneeded.get(keys, set()) & there
        async with take(self._store, keys) as lease:
            if not noted:
                unneeded = there - await self._needed_by(artifacts, keys, lease)
                self._unneeded[keys] = unneeded
                if not unneeded:
                    self._needed[keys] = (there, base)
                return 0
            if not await pending.say(self._store, keys, Pending(SWEEP)):
                return 0
            try:
                swept = await self._delete(artifacts, keys, noted, lease)
                self._unneeded.pop(keys, None)
                return swept
            finally:
                with contextlib.suppress(StoreUnavailable):
                    await pending.let_go(self._store, keys, SWEEP)

    async def _delete(self, artifacts: Artifacts, keys: ModelKeys, noted: set[str], lease: Lease) -> int:
        swept = 0
        for name in sorted(noted - await self._needed_by(artifacts, keys, lease)):
            if not await pending.say(self._store, keys, Pending(SWEEP)):
                break
            await indexes.delete(artifacts, keys, name)
            swept += 1
        return swept

    async def _needed_by(self, artifacts: Artifacts, keys: ModelKeys, lease: Lease) -> set[str]:
        """The indexes that history and log need; whoever has the lease sees no entry on its way from one to other."""
        history = History(self._store, artifacts, keys)
        contents = await history.contents()
        trim = await stream.trim_of(self._store, keys.log)
        if not _is_whole(contents, artifacts, trim):
            raise Damaged(f"the history of {keys.name} is not the one that its log goes on from")
        needed = set()
        for segment in contents.segments if contents is not None else ():
            if segment.needs is not None:  # it has an adoption
                needed |= adopted(await history.elements(segment))
        if contents is not None and contents.base is not None:
            needed.add(contents.base.index)
        link = await self._store.open_link("sweep")
        try:
            reading = stream.read(
                link,
                keys.log,
                trim.last,
                read_bytes=self._params.read_bytes,
                seconds=self._store.params.reply_seconds,
            )
            async with contextlib.aclosing(reading):
                async for elements in reading:
                    needed |= adopted(elements)
        except stream.Trimmed as error:
            raise LeaseLost from error
        finally:
            link.close()
        await lease.check()
        return needed


def _is_whole(contents: Contents | None, artifacts: Artifacts, trim: stream.Trim) -> bool:
    """Whether history has all that the log has no more."""
    if contents is None:
        return trim.n_entries == 0
    return contents.artifacts == artifacts.id and contents.end[:2] >= trim.last[:2]
