"""Rate limits: how many instances a key, and a ``source`` under it, may send per period, over all replicas.

The library ``limits`` counts in the store: a sliding window of two counters, by the store's clock. If that
clock was set back, earlier counts are deleted. An instance of a batch and a line of NDJSON count as one. The
store is asked only where a rate is set.

If the store is unreachable or slow, uncounted instances are not learned. A learn request waits for the store
as long as an append does. Classification continues without counting, and ``abound_rates_unchecked_total``
counts these instances. To slow down at most one such request, a store that did not answer is not asked again
for a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from limits import RateLimitItem
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from abound.security.key import rate_of
from abound.store.client import Store, store_errors
from abound_core.errors import RateLimited, StoreUnavailable, TooLarge

if TYPE_CHECKING:
    from abound.security.key_ring import Grant

log = structlog.get_logger(__name__)

PREFIX = "abound:rates"

ANSWER_SECONDS = 0.25  # longest wait for the store to count instances to classify
RETRY_STORE_SECONDS = 1.0  # pause before a store that did not answer is asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class RateParams:
    """Default rates for keys without their own.

    Attributes
    ----------
    key : str
        Instances by one key, like ``1000/second`` or ``5000/minute``; empty: unlimited.
    source : str
        Instances to learn with one ``source``, by one key; empty: unlimited.
    """

    key: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("key", "source"):
            if getattr(self, name):
                try:
                    rate_of(getattr(self, name))
                except ValueError as error:
                    raise ValueError(f"{name} {error}") from None


class RateLimiter:
    def __init__(self, store: Store, params: RateParams | None = None) -> None:
        given = params or RateParams()
        self.key = rate_of(given.key) if given.key else None
        self.source = rate_of(given.source) if given.source else None
        self._unchecked = 0
        self._patience = store.params.reply_seconds
        self._pool = store.client.connection_pool
        self._storage: RedisStorage | None = None
        self._resting_until = 0.0
        self._away = False

    def take_unchecked_count(self) -> int:
        """Return the number of classified instances that the store could not count since the last call."""
        n, self._unchecked = self._unchecked, 0
        return n

    def limits(self, grant: Grant | None) -> bool:
        if self.source is not None:
            return True
        return grant is not None and (self.key is not None or grant.is_limited)

    async def admit(self, grant: Grant | None, n: int, source: str | None = None, *, learns: bool = False) -> None:
        # The source first: instances that exceed its rate must not use up the rate of the key.
        if source is not None:
            await self.admit_source(grant, n, source)
        if grant is not None and (rate := grant.rate or self.key) is not None:
            await self.count(rate, "key", grant.id, n, learns)

    async def admit_source(self, grant: Grant | None, n: int, source: str) -> None:
        rate = (grant.source_rate if grant is not None else None) or self.source
        if rate is not None:
            name = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            await self.count(rate, "source", f"{grant.id if grant is not None else '-'}:{name}", n, True)

    async def count(self, rate: RateLimitItem, kind: str, name: str, n: int, learns: bool = False) -> None:
        """Count ``n`` instances of a ``kind``: ``key`` or ``source``.

        Raises RateLimited if the rate is exceeded now, and counts none; TooLarge if the instances exceed it by
        themselves. StoreUnavailable: instances to learn may or may not have been counted, as the store does not answer
        in time.
        """
        if n > rate.amount:
            raise TooLarge(
                f"{n} instances at once exceed the rate of this {kind}, {rate.amount} {_per(rate)}; send fewer"
            )
        if not learns and time.monotonic() < self._resting_until:
            self._unchecked += n
            return
        try:
            with store_errors():
                async with asyncio.timeout(self._patience if learns else ANSWER_SECONDS):
                    wait = await self._hit(rate, (kind, name), n)
        except StoreUnavailable as error:
            if not self._away:
                log.warning(
                    "the store does not count instances; classification continues without rate limits",
                    reason=str(error),
                )
            self._away = True
            self._resting_until = time.monotonic() + RETRY_STORE_SECONDS
            if learns:
                raise StoreUnavailable(
                    f"instances of this {kind} cannot be counted against its rate; nothing was appended"
                ) from error
            self._unchecked += n
            return
        if self._away:
            self._away = False
            log.info("the store counts instances again; rate limits are enforced")
        if wait is not None:
            raise RateLimited(f"this {kind} may send {rate.amount} instances {_per(rate)}; try again later", wait)

    async def _hit(self, rate: RateLimitItem, who: tuple[str, str], n: int) -> float | None:
        """Count the instances. Return None, or the seconds after which a retry makes sense."""
        if self._storage is None:
            self._storage = RedisStorage(
                "redis://not-used:1", implementation="redispy", key_prefix=PREFIX, connection_pool=self._pool
            )
        limiter, key, window = SlidingWindowCounterRateLimiter(self._storage), rate.key_for(*who), rate.get_expiry()
        if await limiter.hit(rate, *who, cost=n):
            return None
        counts = await self._storage.get_sliding_window(key, window)
        if (
            max(counts[1], counts[3]) > 2 * window
        ):  # the clock was set back: these counts would stay until it catches up
            await self._storage.clear_sliding_window(key, window)
            if await limiter.hit(rate, *who, cost=n):
                return None
            counts = await self._storage.get_sliding_window(key, window)
        return min(max(0.05, _wait(rate.amount, window, n, *counts)), 2.0 * window)


def _wait(most: int, window: int, n: int, before: int, before_ends: float, now: int, now_ends: float) -> float:
    """Return the seconds until ``n`` more fit below ``most``, if nothing else arrives.

    The count of the previous window, ``before``, falls linearly to 0 at ``before_ends``. The current window ends at
    ``now_ends - window``. Until then its count ``now`` stays; afterwards it falls linearly and is 0 at ``now_ends``.
    """
    room = most - now - n
    if room >= 0:
        return before_ends - room * window / before if before else 0.0
    return max(0.0, now_ends - window) + window * (1 - (most - n) / now)


def _per(rate: RateLimitItem) -> str:
    unit = rate.GRANULARITY.name
    return f"a {unit}" if rate.multiples == 1 else f"in {rate.multiples} {unit}s"
