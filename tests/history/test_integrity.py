"""Damage that good snapshots hide, and state files that are lost: both are found, with the way out."""

from __future__ import annotations

import asyncio
import json
import zlib

import msgspec
import pytest
from typer.testing import CliRunner

from abound.artifacts.artifact_store import ArtifactStore
from abound.cli.main import app
from abound.history.history import Base, HistoryParams, history_key
from abound.history.verify import verify
from abound.log.events import APPLY_VERSION
from abound.replica.replica import Replica
from abound.state import state_files
from abound.state.state_image import MANIFEST
from abound.store.client import Store
from abound_core.errors import AboundError, CannotStart, Corrupted
from tests.support.lab import Lab, digest_at, events, model_of, refitted


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
