"""Servers that copy the store: whether they have what was written to it.

A failover to one that has not loses that. So where a change cannot be made again, what the store says without it is
only given up when all of its copies have the change.

The store's own file: what was deleted stays in it until it is written anew.
"""

from __future__ import annotations

import asyncio
import secrets

from abound.core.errors import NotReady, StoreUnavailable
from abound.service.store.client import Store, reaching

COPIED_KEY = b"abound:copied"
REPLY_SECONDS = 1.0

COPIED_SECONDS = 120.0
"""Twice as long as a store keeps the connection of a copy that says nothing, by default."""


async def is_copied(store: Store, least: int | None = None) -> bool:
    """Whether the copies have all that was written so far, by anybody; True when none is connected.

    Parameters
    ----------
    least : int or None
        So many are enough. None: all that are connected, also those that are still loading.

    StoreUnavailable. Takes ``REPLY_SECONDS`` at most when they have not.
    """
    with reaching():
        n = int((await store.client.info("replication")).get("connected_slaves", 0))
        n = n if least is None else min(n, least)
        if not n:
            return True
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.set(COPIED_KEY, secrets.token_hex(8))  # WAIT answers for what its own connection has written
            pipe.wait(n, int(1000 * min(REPLY_SECONDS, store.params.reply_seconds / 2)))
            return int((await pipe.execute())[1]) >= n


async def until_copied(store: Store, seconds: float = COPIED_SECONDS) -> None:
    """Wait until all copies have all that was written before.

    Raises
    ------
    NotReady
        That takes longer than ``seconds``.
    StoreUnavailable
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await is_copied(store):
        if loop.time() > deadline:
            raise NotReady("copies of the store have not come so far that a failover to one would lose nothing", 60.0)


REWRITTEN = "rewritten"
"""How it begins what is said of a file that was written anew."""

AOF_SECONDS = 600.0
POLL_SECONDS = 0.2
_COPIED = "; servers that copy the store have files of their own, send BGREWRITEAOF to each: {} connected"


async def write_file_anew(store: Store, seconds: float = AOF_SECONDS) -> str:
    """Let the store write its append-only file anew, so that nothing of what was deleted is left in it.

    Returns
    -------
    ``rewritten``, with how many copies of the store have files of their own, if any are connected; or why it is not
    known to be. The old file is deleted by the store after that; what backups hold is theirs.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    asked = False
    try:
        with reaching():
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
