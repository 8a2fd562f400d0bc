"""Replication of the store: whether its replicas have received all writes. Rewriting of the store's file.

A failover to a store replica that lacks a write loses that write. Where a change cannot be made again, the data that
it supersedes is therefore deleted only after all store replicas have the change.

Deleted data stays in the store's append-only file until the file is rewritten.
"""

from __future__ import annotations

import asyncio
import secrets

from abound.store.client import Store, store_errors
from abound.tasks import wait_until
from abound_core.errors import NotReady, StoreUnavailable

REPLICATION_PROBE_KEY = b"abound:copied"
REPLY_SECONDS = 1.0

REPLICATION_SECONDS = 120.0
"""Twice as long as a store keeps the connection of a silent replica, by default."""


async def is_replicated(store: Store, least: int | None = None) -> bool:
    """Return whether the store replicas have received all writes of all clients so far; True when none is connected.

    ``least`` replicas suffice; by default all connected ones are needed, also those that are still loading. Takes at
    most ``REPLY_SECONDS`` when the answer is False.
    """
    with store_errors():
        n = int((await store.client.info("replication")).get("connected_slaves", 0))
        n = n if least is None else min(n, least)
        if not n:
            return True
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.set(
                REPLICATION_PROBE_KEY, secrets.token_hex(8)
            )  # WAIT covers the writes up to the last of its own connection
            pipe.wait(n, int(1000 * min(REPLY_SECONDS, store.params.reply_seconds / 2)))
            return int((await pipe.execute())[1]) >= n


async def wait_replicated(store: Store, seconds: float = REPLICATION_SECONDS) -> None:
    """Wait until all store replicas have received all earlier writes. Raises NotReady after ``seconds``."""
    if not await wait_until(lambda: is_replicated(store), 0.0, seconds):
        raise NotReady("replicas of the store are still behind, so a failover would lose data; try again later", 60.0)


REWRITTEN = "rewritten"  # first word of the result when the file was rewritten

AOF_SECONDS = 600.0
POLL_SECONDS = 0.2
_COPIED = "; replicas of the store have files of their own, send BGREWRITEAOF to each: {} connected"


async def rewrite_aof(store: Store) -> str:
    """Have the store rewrite its append-only file, so that it holds no deleted data. Backups are not affected.

    Returns ``rewritten``, with the number of connected store replicas that have files of their own, if any; else why
    the rewrite is not confirmed. The store deletes the old file afterwards.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + AOF_SECONDS
    asked = False
    try:
        with store_errors():
            while loop.time() < deadline:
                facts = await store.client.info("persistence")
                busy = int(facts.get("aof_rewrite_in_progress", 0)) or int(facts.get("aof_rewrite_scheduled", 0))
                if asked and not busy:
                    good = facts.get("aof_last_bgrewrite_status") == "ok"
                    if not good:
                        return "the store could not rewrite its file; send it BGREWRITEAOF"
                    copies = int((await store.client.info("replication")).get("connected_slaves", 0))
                    return REWRITTEN + (_COPIED.format(copies) if copies else "")
                if not busy:
                    await store.client.bgrewriteaof()
                    asked = True
                await asyncio.sleep(POLL_SECONDS)
    except StoreUnavailable as error:
        return f"not rewritten, send BGREWRITEAOF to the store: {error}"
    return "the store is still rewriting its file"
