"""Retention: history is kept up to a size and an age; beyond these a base replaces the oldest segments."""

from __future__ import annotations

import contextlib

import msgspec
import structlog

from abound.history import pins
from abound.history.archive import BASE_PREFIX, ArchiveContext, least_replay_offset, make_base, swap_manifest
from abound.history.history import History, HistoryManifest, HistoryParams, Segment
from abound.history.replay import replay
from abound.log import stream
from abound.log.events import adopted_state_files
from abound.state import state_files
from abound_core.errors import Corrupted, UnknownArtifact
from abound_core.types import Offset

log = structlog.get_logger(__name__)


async def enforce_retention(to: ArchiveContext, contents: HistoryManifest) -> HistoryManifest:
    """Cut the history of a model to its bounds and return its manifest.

    Corrupted if the segments to delete cannot be applied; history stays as it is.
    """
    n = max(
        segments_over_bounds(contents, to.params, await to.store.now() * 1000),
        segments_over_state_file_bound(await _needed(to, contents), to.params),
    )
    if not n:
        return contents
    # The new base must not lie past a pin, nor past the offset from which a later adoption replays.
    log_needs = await least_replay_offset(to, (await stream.trim_of(to.store, to.keys.log)).last)
    n = deletable_segments(contents, n, await pins.oldest(to.store, to.keys), log_needs)
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
    kept = await swap_manifest(to, msgspec.structs.replace(contents, base=base, segments=contents.segments[n:]))
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


def segments_over_state_file_bound(needed: list[int], params: HistoryParams) -> int:
    """Return how many of the oldest segments to delete so that the state files they need are within their bound.

    ``needed`` has the bytes of these files for each segment. The last segment that needs any always stays.
    """
    size, n = sum(needed), 0
    if size > params.keep_indexes_bytes * (1 + params.slack):
        last = max(i for i, n_bytes in enumerate(needed) if n_bytes)
        while size > params.keep_indexes_bytes and n < last:
            size -= needed[n]
            n += 1
        while n and not needed[n - 1]:  # deleting these segments frees no state file
            n -= 1
    return n


def deletable_segments(contents: HistoryManifest, n: int, pinned: Offset | None, log_needs: Offset | None) -> int:
    """Return how many of ``n`` segments may be deleted: the base in their place must not be past a needed offset."""
    while n:
        base = Offset.of_entry(contents.segments[n - 1].last)[:2]
        needs = [Offset.parse(segment.needs) for segment in contents.segments[n:] if segment.needs is not None]
        needs += [offset for offset in (pinned, log_needs) if offset is not None]
        if all(base <= offset[:2] for offset in needs):
            break
        n -= 1
    return n


async def _needed(to: ArchiveContext, contents: HistoryManifest) -> list[int]:
    """Return for each segment the bytes of the state files that it needs and no later segment does.

    All are 0 while the state files of the model are within their bound.
    """
    needed = [0] * len(contents.segments)
    found = await state_files.sizes(to.artifacts, to.keys)
    sizes = {name: size for name, size in found.items() if not name.startswith(BASE_PREFIX)}
    if sum(sizes.values()) <= to.params.keep_indexes_bytes:
        return needed
    history = History(to.store, to.artifacts, to.keys)
    for i in reversed(range(len(needed))):
        if contents.segments[i].needs is not None:
            with contextlib.suppress(Corrupted, UnknownArtifact):  # reported by its next reader; counts as 0 here
                for name in adopted_state_files(await history.elements(contents.segments[i])):
                    needed[i] += sizes.pop(name, 0)
            await to.between()
    return needed


def _ended(segment: Segment) -> int:
    return Offset.of_entry(segment.last).milliseconds
