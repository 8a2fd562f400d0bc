"""The store's own file: what was deleted stays in it until it is written anew."""

from __future__ import annotations

import asyncio

from core.errors import StoreUnavailable
from service.store import Store, reaching

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
