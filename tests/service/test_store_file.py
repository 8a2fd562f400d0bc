"""What is said of the store's file after a forgetting."""

from __future__ import annotations

import asyncio

from service.store import Store
from service.store_file import write_file_anew
from tests.service.conftest import QUICK
from tests.service.valkey import Server, free_port


async def test_the_files_of_copies_are_theirs_and_that_is_said() -> None:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    store = Store(primary.url, QUICK)
    try:
        with primary.client() as client:
            async with asyncio.timeout(10):
                while client.info("replication").get("slave0", {}).get("state") != "online":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                client.set("word", "unspeakable")
                while not client.wait(1, 100):
                    pass
                client.delete("word")
                while not client.wait(1, 100):
                    pass
        said = await write_file_anew(store)
        assert said.startswith("rewritten; ")
        assert "send BGREWRITEAOF to each: 1 connected" in said
        assert not holds(primary, b"unspeakable")
        assert holds(copy, b"unspeakable")
        copy.kill()
        with primary.client() as client:
            async with asyncio.timeout(10):
                while client.info("replication")["connected_slaves"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert await write_file_anew(store) == "rewritten"
    finally:
        await store.close()
        copy.close()
        primary.close()


def holds(server: Server, word: bytes) -> bool:
    return any(
        word in path.read_bytes() for path in server.directory.rglob("*") if path.is_file() and "aof" in path.name
    )
