"""Adoptions whose index is lost, with every snapshot past them: a start says so, and `abound mend` gives them up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import structlog.testing
from typer.testing import CliRunner

from abound.core.errors import Corrupted
from abound.core.model.live_model import LiveModel, warmup
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.cli.main import app
from abound.service.history.archive import ArchiveContext, archive
from abound.service.history.history import HistoryParams
from abound.service.history.repair import find_problems, repair_finding
from abound.service.history.replay import compact
from abound.service.history.retention import enforce_retention
from abound.service.history.verify import verify
from abound.service.log import stream
from abound.service.log.events import AdoptEvent, LearnEvent
from abound.service.replica import loader, standbys
from abound.service.replica.replica import Replica
from abound.service.security.audit import newest_acts
from abound.service.snapshots import manifest as manifests
from abound.service.snapshots import state_files
from abound.service.snapshots.state_files import StateFileManifest
from abound.service.store.client import Store
from abound.service.store.lease import acquire
from tests.history.test_repair import command_in
from tests.support.adoption_house import SMALL, House, apply, digest_at, digest_of, events, model_of, until
from tests.support.valkey import QUICK, Server


@pytest.fixture
async def house(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    warmup()
    monkeypatch.setenv("ABOUND_ARTIFACTS_URL", str(tmp_path))
    house = House(server, tmp_path)
    await house.open()
    yield house
    await house.close()


async def type_mend(house: House, *words: str) -> tuple[int, str]:
    """Type `abound mend`; its exit code and what it says."""
    words = ("mend", *words, "--redis-url", house.server.url)
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    return done.exit_code, done.output


async def type_history(house: House, *words: str) -> tuple[int, str]:
    """Type a command of `abound history`; its exit code and what it says."""
    words = ("history", *words, "--redis-url", house.server.url, "--artifacts-url", str(house.folder))
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    return done.exit_code, done.output


async def adopt(house: House, seed: int = 9) -> tuple[StateFileManifest, Offset]:
    """Adopt a model of something else; the index, and where."""
    after = (await house.elements())[-1][0]
    index = await house.index(model_of(30, seed), after)
    await house.append(*events(3, seed))
    (at,) = await house.append(AdoptEvent(f"of {seed}", index.id, index.after, index.digest, "a test"))
    return index, at


async def snapshot(house: House, seed: int) -> None:
    await house.append(*events(20, seed))
    await compact(house.store, await house.living(), SMALL, artifacts=house.artifacts)


async def move(house: House) -> None:
    """What no snapshot needs goes from the log to history."""
    living = await house.living()
    async with acquire(house.store, living.keys) as lease:
        await archive(ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(segment_bytes=2000)))


async def flip_index(house: House, index: StateFileManifest) -> None:
    name = state_files.part_name((await house.living()).keys, index.id, 0)
    part = bytearray(await house.artifacts.get(name))
    part[len(part) // 2] ^= 1
    await house.artifacts.put(name, bytes(part))


async def flip_snapshots(house: House) -> None:
    """A byte of every snapshot, in its size as it was."""
    keys = (await house.living()).keys
    for manifest in await manifests.read_manifests(house.store, keys):
        name = manifests.part_key(keys, manifest.id, 0)
        part = bytearray(await house.store.client.get(name))
        part[len(part) // 2] ^= 1
        await house.store.client.set(name, bytes(part))


async def without(past: list[tuple[Offset, LearnEvent]]) -> str:
    """The digest of a model that has adopted nothing."""
    live: LiveModel = model_of(0, 1)
    for at, event in past:
        apply(live, at, event)
    return await digest_of(live)


async def test_a_start_names_the_command_and_the_command_gives_the_adoption_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has its beginning in history: the start must not take that for a tail that was lost, for ever."""
    for module in (loader, standbys):
        monkeypatch.setattr(module, "log", structlog.get_logger())  # an older one may be bound elsewhere by now
    await snapshot(house, 1)
    await snapshot(house, 2)
    past = [event for event in await house.elements() if isinstance(event[1], LearnEvent)]
    await move(house)
    index, at = await adopt(house)
    await snapshot(house, 3)
    await snapshot(house, 4)
    past += [event for event in await house.elements() if isinstance(event[1], LearnEvent) and event[0] > past[-1][0]]
    keys = (await house.living()).keys
    assert (await stream.trim_of(house.store, keys.log)).n_entries
    await flip_snapshots(house)
    await flip_index(house, index)

    stages: set[str] = set()
    stuck = Replica(Store(house.server.url, QUICK), artifacts=ArtifactStore(str(house.folder)))
    with structlog.testing.capture_logs() as lines:
        starting = asyncio.create_task(stuck.start(lambda stage, done: stages.add(stage)))
        await until(lambda: "abound mend" in str(stuck.status().reason))
        await until(lambda: any("abound mend" in stage for stage in stages))
    reason = str(stuck.status().reason)
    assert index.id in reason
    assert str(at) in reason
    assert any(line["event"] == "a model is halted" and "abound mend" in line["reason"] for line in lines)
    assert len([line for line in lines if "halts before" in line["event"]]) == 1  # it waits, and does not load anew
    starting.cancel()
    await asyncio.wait([starting])
    await stuck.stop()

    code, said = await type_mend(house)
    assert (code, f"entry {at.entry}" in said, index.id in said) == (1, True, True)
    assert "that adoption is given up" in said
    assert "abound mend --yes" in said
    code, said = await type_mend(house, *command_in(reason)[1:], "--yes", "--json")
    assert (code, json.loads(said)["mended"]) == (0, True)
    (act,) = await newest_acts(house.store)
    assert (act.details["kind"], act.details["entry"]) == ("unadoptable", at.entry)
    assert await type_mend(house) == (0, "nothing is wrong\n")

    replica = await house.replica()
    assert replica.model("default").position.adopted == START
    assert replica.model("default").offset == past[-1][0]
    assert await digest_at(replica, past[-1][0]) == await without(past)


async def test_an_adoption_in_history_is_given_up_there(house: House) -> None:
    await house.append(*events(20))
    index, at = await adopt(house)
    await snapshot(house, 3)
    past = [event for event in await house.elements() if isinstance(event[1], LearnEvent)]
    await snapshot(house, 4)
    past = [event for event in await house.elements() if isinstance(event[1], LearnEvent)]
    await move(house)
    keys = (await house.living()).keys
    log_bytes = (await manifests.read_manifests(house.store, keys))[0].log_bytes
    assert (await stream.trim_of(house.store, keys.log)).covers(at)
    await flip_snapshots(house)
    await flip_index(house, index)
    [finding] = await find_problems(house.store, house.artifacts)
    assert (finding.kind, finding.entry) == ("unadoptable", at.entry)
    await repair_finding(house.store, finding, house.artifacts)
    assert await find_problems(house.store, house.artifacts) == []
    replica = await house.replica()
    assert await digest_at(replica, past[-1][0]) == await without(past)
    assert len(await manifests.ids(house.store, keys)) == 0  # those that were damaged do not come back either
    assert replica.model("default").log_bytes == log_bytes  # as it was appended
    living = await house.living()
    async with acquire(house.store, keys) as lease:
        to = ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(keep_bytes=1))
        contents = await archive(to)
        assert contents is not None
        assert (await enforce_retention(to, contents)).segments == []


async def test_what_was_passed_over_for_it_does_not_come_in_its_place(house: House) -> None:
    """And an adoption after both stays as it is."""
    await house.append(*events(20))
    after = (await house.elements())[-1][0]
    first, second = await house.index(model_of(30, 9), after), await house.index(model_of(30, 10), after)
    one, other = await house.append(
        AdoptEvent("a", first.id, first.after, first.digest), AdoptEvent("b", second.id, second.after, second.digest)
    )
    _, last = await adopt(house, 12)
    expected = await house.expected()
    await flip_index(house, first)
    findings = await find_problems(house.store, house.artifacts)
    assert [(finding.kind, finding.entry) for finding in findings] == [
        ("unadoptable", one.entry),
        ("unadoptable", other.entry),
    ]
    assert (await type_mend(house, "--yes"))[0] == 0
    replica = await house.replica()
    assert replica.model("default").position.adopted == last
    assert await digest_at(replica, last) == expected


async def test_an_index_that_a_snapshot_stands_in_for_is_nothing_to_mend(house: House) -> None:
    await house.append(*events(20))
    index, _ = await adopt(house)
    await snapshot(house, 3)
    await flip_index(house, index)
    assert await find_problems(house.store, house.artifacts) == []


@pytest.mark.parametrize("of", ["index", "base"])
async def test_what_history_is_made_of_is_looked_at_where_snapshots_hide_what_is_damaged(house: House, of: str) -> None:
    await house.append(*events(20))
    index, at = await adopt(house)
    for seed in (3, 4):
        await snapshot(house, seed)
    await move(house)
    living = await house.living()
    if of == "base":
        async with acquire(house.store, living.keys) as lease:
            to = ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(keep_bytes=1))
            contents = await archive(to)
            assert contents is not None
            base = (await enforce_retention(to, contents)).base
        assert base is not None
    assert (await type_history(house, "show"))[0] == 0
    name = base.index if of == "base" else index.id
    path = state_files.part_name(living.keys, name, 0)
    part = bytearray(await house.artifacts.get(path))
    part[len(part) // 2] ^= 1
    await house.artifacts.put(path, bytes(part))
    assert (await type_mend(house)) == (0, "nothing is wrong\n")
    code, said = await type_history(house, "show")
    assert (code, name in said, "history begin-anew" in said) == (1, True, True)
    assert of == "base" or at.entry in said
    with pytest.raises(Corrupted, match=rf"{name}.*`abound history (show|begin-anew)`"):
        await verify(house.store, "default", artifacts=house.artifacts, offline=True)
    assert (await type_history(house, "begin-anew", "--yes"))[0] == 0
    assert (await type_history(house, "show"))[0] == 0
    assert (await verify(house.store, "default", artifacts=house.artifacts, offline=True)).good


@pytest.mark.parametrize("of", ["index", "base", "snapshot"])
async def test_what_another_release_reads_is_said_and_left_alone(house: House, of: str) -> None:
    keys = (await house.living()).keys
    await house.append(*events(20))
    index, _ = await adopt(house)
    if of != "index":
        await snapshot(house, 3)
        await snapshot(house, 4)
        await move(house)
    if of == "base":
        living = await house.living()
        async with acquire(house.store, living.keys) as lease:
            to = ArchiveContext(house.store, house.artifacts, living, lease, HistoryParams(keep_bytes=1))
            contents = await archive(to)
            assert contents is not None
            base = (await enforce_retention(to, contents)).base
        assert base is not None
        await flip_snapshots(house)
    if of == "snapshot":
        await flip_index(house, index)
        for name in await manifests.ids(house.store, keys):
            await other_format_in_store(house, manifests.manifest_key(keys, name))
    else:
        name = base.index if of == "base" else index.id
        path = f"{state_files.folder(keys)}/{name}/manifest.json"
        changed = json.loads(await house.artifacts.get(path)) | {"format": 99}
        await house.artifacts.put(path, json.dumps(changed).encode())
    for words in ((), ("--yes",)):
        code, said = await type_mend(house, *words)
        assert (code, "has the format 99" in said, "run the release that reads it" in said) == (1, True, True)
        assert "Make a copy" not in said
    (finding,) = await find_problems(house.store, house.artifacts)
    assert finding.kind == "newer"
    assert await newest_acts(house.store) == []


async def other_format_in_store(house: House, key: bytes) -> None:
    changed = json.loads(await house.store.client.get(key)) | {"format": 99}
    await house.store.client.set(key, json.dumps(changed).encode())
