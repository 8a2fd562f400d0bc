import asyncio
import json
import os
import zlib

import msgspec
import pytest
from typer.testing import CliRunner

from abound.artifacts.artifact_store import ArtifactStore
from abound.cli.main import app
from abound.history.history import Base, HistoryParams, history_key
from abound.history.verify import verify
from abound.log.events import APPLY_VERSION
from abound.replica import heartbeat
from abound.replica.replica import Replica
from abound.state import replica_status, state_files
from abound.state.state_image import MANIFEST
from abound.store import expiring
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.errors import AboundError, CannotStart, Corrupted
from tests.support.lab import Lab, digest_at, events, model_of, refitted
from tests.support.replicas import until
from tests.support.streams import drafts


async def publish_aged(store: Store, keys: ModelKeys, age: float, said: replica_status.PublishedStatus) -> None:
    now, _ = await store.client.time()
    await store.client.hset(keys.key("replicas"), said.replica, expiring.pack(now - age, msgspec.json.encode(said)))


async def shown(store: Store, *replicas: Replica) -> None:
    keys = replicas[0].model("default").keys
    async with asyncio.timeout(60):
        while len(await replica_status.live_replicas(store, keys)) < len(replicas):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_replica_that_serves_something_else_is_found(server, start_replica, store):
    one, other = await start_replica(server), await start_replica(server)
    await one.learn("default", drafts(50))
    await other.wait_for("default", one.model("default").offset, 60)
    await shown(store, one, other)
    other.model("default").live.configure({"margin": 0.25})  # behind the log's back
    verified = await verify(store, "default")
    assert not verified.good
    digests = {marked.replica: marked.digest for marked in verified.replicas}
    assert digests[one.id] == verified.from_start == verified.from_snapshot
    assert digests[other.id] != digests[one.id]


async def test_a_replica_that_is_not_heard_of_any_more_must_still_answer(server, start_replica, store):
    one = await start_replica(server)
    await one.learn("default", drafts(10))
    await shown(store, one)
    keys = one.model("default").keys
    (own,) = await replica_status.live_replicas(store, keys)
    cut_off = msgspec.structs.replace(own, replica="cut-off")
    await publish_aged(store, keys, 300, cut_off)
    assert [live.replica for live in await replica_status.live_replicas(store, keys)] == [one.id]
    verified = await verify(store, "default", wait_seconds=2.0)
    assert verified.silent == ["cut-off"]
    assert verified.equal
    assert not verified.good
    verifying = asyncio.create_task(verify(store, "default", wait_seconds=30))
    await until(lambda: store.client.keys(keys.key("marks:*").decode()))
    await replica_status.withdraw(store, [keys], "cut-off")
    assert (await verifying).good
    await publish_aged(store, keys, replica_status.STALE_SECONDS + 60, cut_off)
    assert (await verify(store, "default")).good
    assert not await store.client.hexists(keys.key("replicas"), "cut-off")


async def test_without_a_replica_nothing_is_good_unless_none_was_asked(server, start_replica, store):
    one = await start_replica(server)
    await one.learn("default", drafts(10))
    await one.stop()
    verified = await verify(store, "default")
    assert (verified.replicas, verified.silent, verified.equal, verified.good) == ([], [], True, False)
    assert (await verify(store, "default", offline=True)).good


async def test_what_was_killed_is_let_go_by_the_next_on_its_host(server, start_replica, store, monkeypatch):
    monkeypatch.setattr(heartbeat, "CLEAR_TICKS", 1)
    monkeypatch.setattr(replica_status, "FRESH_SECONDS", 60.0)
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    first = await start_replica(server)
    await shown(store, first)
    keys = first.model("default").keys
    (own,) = await replica_status.live_replicas(store, keys)
    said = {
        "killed": {"pid": ended.pid},
        "now": {"pid": ended.pid},
        "runs": {"pid": os.getppid()},
        "elsewhere": {"pid": ended.pid, "host": "another"},
        "container": {"pid": ended.pid, "numbering": "its own"},
    }
    for name, changed in said.items():
        age = 0 if name == "now" else 300
        await publish_aged(store, keys, age, msgspec.structs.replace(own, replica=name, **changed))
    other = await start_replica(server)
    async with asyncio.timeout(60):
        while "killed" in (there := {one.replica for one in await replica_status.known_replicas(store, keys)}):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert there == {first.id, other.id, "now", "runs", "elsewhere", "container"}
    assert own.numbering == replica_status.pid_namespace()


async def run(lab: Lab, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it says, also as an error."""
    runner = CliRunner(env={"ABOUND_ARTIFACTS_URL": str(lab.folder)})
    done = await asyncio.to_thread(runner.invoke, app, [*words, "--redis-url", lab.server.url])
    error = done.exception if isinstance(done.exception, AboundError) else ""
    return done.exit_code, f"{done.stdout}{error}"


async def flip_state_file(lab: Lab, name: str) -> None:
    path = state_files.file_name((await lab.living()).keys, name, "0")
    part = bytearray(await lab.artifacts.get(path))
    part[len(part) // 2] ^= 1
    await lab.artifacts.put(path, bytes(part))


async def test_a_start_without_the_state_that_it_begins_with_names_the_way_out(lab: Lab) -> None:
    await lab.append(*events(20))
    base = await refitted(lab, model_of(30, 9))
    await flip_state_file(lab, base.index)
    stuck = Replica(Store(lab.server.url, lab.server.store_params), artifacts=ArtifactStore(str(lab.folder)))
    with pytest.raises(CannotStart, match=rf"{base.index}.*from a backup"):
        await stuck.start()
    await stuck.stop()
    code, said = await run(lab, "history", "show")
    assert (code, base.index in said, "from a backup" in said) == (1, True, True)
    await flip_state_file(lab, base.index)  # it is restored
    assert await digest_at(await lab.replica(), (await lab.elements())[-1][0]) is not None
    assert (await run(lab, "history", "show"))[0] == 0


@pytest.mark.parametrize("of", ["refit", "base", "manifest"])
async def test_damage_that_snapshots_hide_is_found_with_the_way_out(lab: Lab, of: str) -> None:
    await lab.append(*events(20))
    base: Base | None = await refitted(lab, model_of(30, 9))
    for seed in (3, 4):
        await lab.append(*events(20, seed))
        await lab.snapshot()
    contents = await lab.archive(HistoryParams(segment_bytes=2000, keep_bytes=1 if of == "base" else 2**30))
    base = contents.base if of == "base" else base
    name = base.index
    assert (await run(lab, "history", "show"))[0] == 0
    if of == "manifest":
        name = "manifest"
        await lab.store.client.setrange(history_key((await lab.living()).keys), 20, "damage")
    else:
        await flip_state_file(lab, name)
    code, said = await run(lab, "history", "show")
    assert (code, name in said, "history begin-anew" in said) == (1, True, True)
    with pytest.raises(Corrupted, match=rf"{name}.*`abound history (show|begin-anew)`"):
        await verify(lab.store, "default", artifacts=lab.artifacts, offline=True)
    assert (await run(lab, "history", "begin-anew", "--yes"))[0] == 0
    assert (await run(lab, "history", "show"))[0] == 0
    assert (await verify(lab.store, "default", artifacts=lab.artifacts, offline=True)).good


async def test_a_state_file_of_another_release_is_reported(lab: Lab) -> None:
    await lab.append(*events(20))
    base = await refitted(lab, model_of(30, 9))
    path = state_files.file_name((await lab.living()).keys, base.index, MANIFEST)
    changed = json.loads(await lab.artifacts.get(path)) | {"format": 99}
    await lab.artifacts.put(path, json.dumps(changed).encode())
    code, said = await run(lab, "history", "show")
    assert (code, "has the format 99" in said, "run the release that wrote it" in said) == (1, True, True)


@pytest.mark.parametrize("kind", ["damaged", "newer"])
async def test_an_unreadable_entry_of_the_log_is_named_with_the_way_out(lab: Lab, kind: str) -> None:
    await lab.append(*events(20))
    log = (await lab.living()).keys.log
    payload = b"\x94nonsense" if kind == "damaged" else msgspec.msgpack.encode((APPLY_VERSION + 1, b"o", 1, ["new", 1]))
    entry = (await lab.store.client.xadd(log, {"e": payload, "c": b"%08x" % zlib.crc32(payload)})).decode()
    code, said = await run(lab, "history", "show")
    assert (code, entry in said, "run the release that wrote it" in said) == (1, True, kind == "newer")
    assert ("from a backup" in said, "history begin-anew" in said) == (kind == "damaged", kind == "damaged")
