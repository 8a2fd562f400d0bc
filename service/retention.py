"""Retention: history is kept up to a size and an age; beyond it the oldest segments give way to a base.

1. how many of the oldest segments may go: over the bounds, not pinned, and no adoption behind them replays from them
2. the state at the end of these is made, by a replay of them on top of the base before
3. it is written as an index: the new base
4. in one moment and under the lease the list of history names the new base, and no more the segments
5. their files, and those of the base before, are swept: not at once, since a store that loses its last second points
   to them again
"""

from __future__ import annotations

import contextlib

import msgspec
import structlog

from core.types import Offset
from service import log as stream
from service import pins
from service.archive import Archiving, adoption_after, make_base, swap
from service.compaction import rebuild
from service.history import Contents, HistoryParams, Segment
from service.store import reaching

log = structlog.get_logger(__name__)


async def retain(to: Archiving, contents: Contents) -> Contents:
    """Keep the history of a model within its bounds; what it is then.

    Raises
    ------
    LeaseLost
        Another process has the model.
    Damaged, UnknownApplyVersion
        The segments that should go cannot be applied; history stays as it is.
    ArtifactsUnavailable, StoreUnavailable
    """
    with reaching():
        now, _ = await to.store.client.time()
    n = to_go(contents, to.params, now * 1000)
    if not n:
        return contents
    n = allowed(contents, n, await pins.oldest(to.store, to.keys), await _log_needs(to))
    if not n:
        return contents
    until = Offset.of_entry(contents.segments[n - 1].last)
    model = await rebuild(
        to.store,
        to.living,
        until,
        from_start=True,
        params=to.log_params,
        between=to.between,
        artifacts=to.artifacts,
    )
    base = await make_base(to, model)
    kept = await swap(to, msgspec.structs.replace(contents, base=base, segments=contents.segments[n:]))
    log.info("history gave way to a base", model=to.keys.name, offset=base.offset, segments=n, base_bytes=base.size)
    return kept


def to_go(contents: Contents, params: HistoryParams, now: int) -> int:
    """How many of the oldest segments are beyond the bounds; 0 while it is little. ``now``: milliseconds."""
    segments = contents.segments
    size = sum(segment.size for segment in segments)
    by_size = by_age = 0
    if size > params.keep_bytes * (1 + params.slack):
        while size > params.keep_bytes:
            size -= segments[by_size].size
            by_size += 1
    if params.keep_seconds:
        age = params.keep_seconds * 1000
        if segments and _ended(segments[0]) < now - age * (1 + params.slack):
            by_age = sum(_ended(segment) < now - age for segment in segments)
    return max(by_size, by_age)


def allowed(contents: Contents, n: int, pinned: Offset | None, log_needs: Offset | None) -> int:
    """How many of ``n`` segments may go: the base that takes their place must not be past anything that is needed."""
    while n:
        base = Offset.of_entry(contents.segments[n - 1].last)[:2]
        needs = [Offset.parse(segment.needs) for segment in contents.segments[n:] if segment.needs is not None]
        needs += [offset for offset in (pinned, log_needs) if offset is not None]
        if all(base <= offset[:2] for offset in needs):
            break
        n -= 1
    return n


async def _log_needs(to: Archiving) -> Offset | None:
    """The least offset behind which an adoption in the log replays."""
    link = await to.store.open_link("retain")
    found = []
    try:
        first = (await stream.trim_of(to.store, to.keys.log)).last
        reading = stream.read(
            link, to.keys.log, first, read_bytes=to.log_params.read_bytes, seconds=to.store.params.reply_seconds
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                found += [after for element in elements if (after := adoption_after(element)) is not None]
                await to.between()
    finally:
        link.close()
    return min(found, default=None)


def _ended(segment: Segment) -> int:
    return Offset.of_entry(segment.last).milliseconds
