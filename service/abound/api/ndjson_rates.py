"""Rate limits of NDJSON requests: the service admits or refuses each line separately, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from abound.api.ndjson import NdjsonLine
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.tasks import TimeSlice
from abound_core.errors import AboundError, RateLimited, StoreUnavailable, TooLarge


class _Sourced(msgspec.Struct):
    source: str | None = None


_sourced = msgspec.json.Decoder(_Sourced)


async def admit_lines(rates: RateLimiter, grant: Grant | None, lines: list[NdjsonLine], learns: bool) -> None:
    """Count as many lines as the rates allow; the other lines get the error."""
    by_source: dict[str, list[NdjsonLine]] = {}
    pace = TimeSlice()
    for line in lines if learns else ():
        if line.error is None and (source := _source_of(line.body)) is not None:
            by_source.setdefault(source, []).append(line)
        if pace.due():
            await pace.pause()
    away: StoreUnavailable | None = None
    for source, some in by_source.items():
        if away is None:
            away = await _as_many(some, partial(rates.admit_source, grant, source=source))
        else:
            _refuse(some, away)
    await _as_many(lines, partial(rates.admit, grant, learns=learns))


async def _as_many(lines: list[NdjsonLine], take: Callable[[int], Awaitable[None]]) -> StoreUnavailable | None:
    """Admit as many of the first lines as possible; return the error if the store could not count."""
    lines = [line for line in lines if line.error is None]
    at, step = 0, len(lines)
    while at < len(lines):
        try:
            await take(len(lines[at : at + step]))
            at += step
        except (RateLimited, TooLarge) as error:
            if step == 1:
                _refuse(lines[at:], error)
                return None
            step //= 2
        except StoreUnavailable as error:
            _refuse(lines[at:], error)
            return error
    return None


def _refuse(lines: list[NdjsonLine], error: AboundError) -> None:
    for line in lines:
        line.error = error


def _source_of(body: bytes) -> str | None:
    """Return the source that a line names. Return None for an invalid line too; its error is reported later."""
    try:
        return _sourced.decode(body).source
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
