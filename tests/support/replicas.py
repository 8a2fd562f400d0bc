"""What tests of replicas do: teach one, wait, compare the digests of several."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from abound.replica.replica import Replica
from abound_core.types import Offset
from tests.support.streams import drafts


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives once that is true; it may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


async def teach(replica: Replica, n: int = 50, seed: int = 1, name: str = "default") -> Offset:
    learned = await replica.learn(name, drafts(n, seed))
    return learned[-1].offset


async def digests(*replicas: Replica, name: str = "default") -> set[str | None]:
    offset = replicas[0].model(name).offset
    for replica in replicas:
        await replica.wait_for(name, offset, 60)
    return {await replica.model(name).compute_digest() for replica in replicas}
