"""Retention: history is kept up to a size and an age; beyond these a base replaces the oldest segments."""

from __future__ import annotations

import msgspec
import structlog

from abound.history import pins
from abound.history.archive import ArchiveContext, make_base, swap_manifest
from abound.history.history import HistoryManifest, HistoryParams, Segment
from abound.history.replay import replay
from abound_core.types import Offset

log = structlog.get_logger(__name__)


async def enforce_retention(to: ArchiveContext, contents: HistoryManifest) -> HistoryManifest:
    """Cut the history of a model to its bounds and return its manifest.

    Corrupted if the segments to delete cannot be applied; history stays as it is.
    """
    n = segments_over_bounds(contents, to.params, await to.store.now() * 1000)
    if not n:
        return contents
    n = deletable_segments(contents, n, await pins.oldest(to.store, to.keys))
    if not n:
        return contents
    until = Offset.of_entry(contents.segments[n - 1].last)
    model = await replay(
        to.store,
        to.living,
        until,
        from_start=True,
        params=to.log_params,
        between=to.between,
        artifacts=to.artifacts,
    )
    base = await make_base(to, model)
    # Garbage collection deletes the files and the former base later, because a store that loses its last second points
    # to them again.
    refitted = contents.refitted
    if refitted is not None and refitted.position.offset <= until:  # the base contains it
        refitted = None
    changed = msgspec.structs.replace(contents, base=base, segments=contents.segments[n:], refitted=refitted)
    kept = await swap_manifest(to, changed)
    log.info(
        "a base has replaced the oldest segments of history",
        model=to.keys.name,
        offset=base.offset,
        segments=n,
        base_bytes=base.size,
    )
    return kept


def segments_over_bounds(contents: HistoryManifest, params: HistoryParams, now: float) -> int:
    """Return how many of the oldest segments are beyond the bounds of size and age.

    The count is 0 while the bounds are exceeded by at most ``slack``. ``now`` is in milliseconds.
    """
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


def deletable_segments(contents: HistoryManifest, n: int, pinned: Offset | None) -> int:
    """Return how many of ``n`` segments may be deleted: the base in their place must not be past a pin."""
    while n and pinned is not None and Offset.of_entry(contents.segments[n - 1].last)[:2] > pinned[:2]:
        n -= 1
    return n


def _ended(segment: Segment) -> int:
    return Offset.of_entry(segment.last).milliseconds
