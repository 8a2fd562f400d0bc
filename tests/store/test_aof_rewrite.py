"""What is said of the store's file after a forgetting."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from abound.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound.processes.embedded_store import EmbeddedStore
from abound.security.audit import newest_acts
from abound.state.snapshots import delete_incarnation
from abound.store.client import Store
from abound.store.replication import rewrite_aof
from abound_core.model.entry_application import Unit
from benchmarks.serving import free_port
from tests.state.test_snapshots import create
from tests.support.streams import record
from tests.support.valkey import PATIENT, Server

ABOUND = (sys.executable, "-m", "abound")


async def test_the_files_of_copies_are_theirs_and_that_is_said() -> None:
    port = free_port()
    primary = Server(port=str(port), **{"repl-diskless-sync-delay": "0"})
    copy = Server(replicaof=f"127.0.0.1 {port}")
    store = Store(primary.url, primary.store_params)
    try:
        with primary.client() as client:
            async with asyncio.timeout(60):
                while client.info("replication").get("slave0", {}).get("state") != "online":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                client.set("word", "unspeakable")
                while not client.wait(1, 100):
                    pass
                client.delete("word")
                while not client.wait(1, 100):
                    pass
        said = await rewrite_aof(store)
        assert said.startswith("rewritten; ")
        assert "send BGREWRITEAOF to each: 1 connected" in said
        assert not holds(primary, b"unspeakable")
        with copy.client() as client:
            async with asyncio.timeout(60):
                while client.info("persistence")["aof_rewrite_in_progress"]:  # noqa: ASYNC110  it moves its files
                    await asyncio.sleep(0.05)
        assert holds(copy, b"unspeakable")
        copy.kill()
        with primary.client() as client:
            async with asyncio.timeout(60):
                while client.info("replication")["connected_slaves"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert await rewrite_aof(store) == "rewritten"
    finally:
        await store.close()
        copy.close()
        primary.close()


@pytest.mark.parametrize("runs", [True, False])
async def test_what_was_deleted_is_gone_from_the_file_once_the_command_was_given(tmp_path: Path, runs: bool) -> None:
    """Of an embedded store, which a service runs or not: deleting a model leaves what it learned in the file."""
    embedded = EmbeddedStore(tmp_path)
    url = embedded.start()
    try:
        store = Store(url, PATIENT)
        living = await create(store, "gone")
        payload, checksum = encode(
            Entry(APPLY_VERSION, b"somebody", 1, LearnEvent(record('{"a": 1}', "unspeakable"), 1, [Unit(1)]))
        )
        await store.client.xadd(living.keys.log, {"e": payload, "c": checksum})
        await delete_incarnation(store, living.keys)
        assert in_files(tmp_path, b"unspeakable")
        if not runs:
            await store.close()
            embedded.stop()
        words = ("store", "rewrite", "--data-dir", str(tmp_path), "--json")
        done = await asyncio.to_thread(subprocess.run, [*ABOUND, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"store_file": "rewritten"}), done.stderr
        assert not in_files(tmp_path, b"unspeakable")
        if runs:
            [act] = await newest_acts(store)
            assert (act.action, act.outcome, act.details) == ("store.rewrite", "done", {"store_file": "rewritten"})
            await store.close()
    finally:
        embedded.stop()


def in_files(folder: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def holds(server: Server, word: bytes) -> bool:
    return any(
        word in path.read_bytes() for path in server.directory.rglob("*") if path.is_file() and "aof" in path.name
    )
