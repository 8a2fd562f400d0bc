import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import structlog

from abound.artifacts.checksums import seal
from abound.history.load import load_newest
from abound.history.replay import compact, replay
from abound.log.catalog import CatalogModel
from abound.log.events import APPLY_VERSION, Entry, LearnEvent, encode
from abound.log.stream import Element
from abound.state import snapshots
from abound.state.replicated_model import ReplicatedModel
from abound.state.snapshots import SnapshotParams
from abound.state.state_image import StateManifest
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import EnlargedTables, LiveModel
from abound_core.model.state import STATE_FORMAT
from abound_core.types import START, Ranking
from tests.support.lab import Lab, events
from tests.support.streams import draft

SMALL_PARTS = SnapshotParams(part_bytes=16_384)
OLDER = STATE_FORMAT - 1

Change = Callable[[Store, CatalogModel, StateManifest], Awaitable[None]]


@pytest.fixture
async def two(store: Store, lab: Lab) -> tuple[CatalogModel, list[StateManifest]]:
    """A model with two snapshots, newest first, and a log that goes on after them."""
    living = await lab.living()
    made = []
    for seed in range(2):
        await lab.append(*events(60, seed))
        made.append(await compact(store, living, SMALL_PARTS))
    await lab.append(*events(60, 2))
    return living, made[::-1]


async def loaded(store: Store, living: CatalogModel) -> tuple[str | None, list[str]]:
    """Which snapshot a start would load, and the reasons why others were passed over."""
    model = ReplicatedModel(living.keys, living.config)
    with structlog.testing.capture_logs() as logs:
        manifest = await load_newest(store, model)
    if manifest is not None:
        assert model.offset == manifest.position.offset
        assert await model.compute_digest() == manifest.digest
    else:
        assert model.offset == START
    return manifest.id if manifest else None, [str(line["reason"]) for line in logs]


async def test_a_snapshot_and_the_rest_of_the_log_are_as_good_as_the_whole_log(store, two):
    living, (newest, older) = two
    assert await loaded(store, living) == (newest.id, [])
    assert len(newest.parts) > 3
    assert all(part.size <= 16_384 for part in newest.parts)
    assert newest.position.offset > older.position.offset
    whole = await replay(store, living, from_start=True)
    rest = await replay(store, living)
    assert whole.position == rest.position
    assert whole.live.n_learned == 180
    assert await whole.compute_digest() == await rest.compute_digest()
    half = await replay(store, living, older.position.offset, from_start=True)
    assert await half.compute_digest() == older.digest


async def test_only_the_newest_are_kept_and_nothing_is_left_of_the_others(store, lab):
    living = await lab.living()
    made = []
    for seed in range(5):
        await lab.append(*events(5, seed))
        made.append(await compact(store, living, SnapshotParams(keep=3, part_bytes=16_384)))
    good = await snapshots.read_manifests(store, living.keys)
    assert good == made[:1:-1]
    keys = {key async for key in store.client.scan_iter(match=living.keys.key("snapshot:*").replace(b"{", b"\\{"))}
    expected = {living.keys.key(f"snapshot:{m.id}:{i}") for m in good for i in range(len(m.parts))}
    assert keys == expected | {living.keys.key(f"snapshot:{m.id}:manifest") for m in good}


def part(i: int) -> Callable[[CatalogModel, StateManifest], bytes]:
    return lambda living, manifest: living.keys.key(f"snapshot:{manifest.id}:{i}")


def manifest_key(living: CatalogModel, manifest: StateManifest) -> bytes:
    return living.keys.key(f"snapshot:{manifest.id}:manifest")


def missing(key: Callable[[CatalogModel, StateManifest], bytes]) -> Change:
    async def change(store: Store, living: CatalogModel, manifest: StateManifest) -> None:
        assert await store.client.unlink(key(living, manifest)) == 1

    return change


def rewritten(key: Callable[[CatalogModel, StateManifest], bytes], how: Callable[[bytes], bytes]) -> Change:
    async def change(store: Store, living: CatalogModel, manifest: StateManifest) -> None:
        name = key(living, manifest)
        before = await store.client.get(name)
        assert how(before) != before
        await store.client.set(name, how(before))

    return change


def sealed(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(seal(msgspec.convert(fields, StateManifest)))


def changed(**fields: Any) -> Change:
    """The checksum stays that of the fields as they were."""
    return rewritten(manifest_key, lambda packed: json.dumps(json.loads(packed) | fields).encode())


def described(**fields: Any) -> Change:
    return rewritten(manifest_key, lambda packed: sealed(json.loads(packed) | fields))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES = {
    "truncated part": (rewritten(part(1), lambda data: data[:-1]), "part 1 is damaged: its size or checksum is wrong"),
    "missing first part": (missing(part(0)), "part 0 is missing"),
    "missing manifest": (missing(manifest_key), "has no snapshot"),
    "manifest garbage": (rewritten(manifest_key, lambda packed: b"\xff{garbage"), "cannot be read"),
    "other number of entries": (changed(n_entries=1), "manifest is damaged: its checksum is wrong"),
    "no checksum": (changed(checksum=""), "manifest is damaged: its checksum is wrong"),
    "older format": (described(format=OLDER), f"format {OLDER}; this release reads {STATE_FORMAT}"),
    "newer apply version": (described(apply_version=APPLY_VERSION + 1), "apply version"),
    "other model": (described(model="other"), "of other"),
    "other id": (described(id="1-0.0-00000000"), "belongs to 1-0.0-00000000"),
    "offset garbage": (described(offset="nowhere"), "not an offset"),
    "other place in the log": (described(entry_checksum="00000000"), "does not continue from its offset"),
    "past the end of the log": (described(offset="9999999999999-0.0"), "does not continue from its offset"),
    "other configuration": (described(state={"config": {"d_max": 3}, "serving": {}}), "another digest"),
    "configuration that cannot be": (described(state={"config": {"d_max": -1}, "serving": {}}), "d_max must be"),
}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_damaged_snapshot_is_passed_over_for_the_one_before(store, two, kind):
    living, (newest, older) = two
    change, what = DAMAGES[kind]
    await change(store, living, newest)
    name, reasons = await loaded(store, living)
    assert name == older.id
    assert len(reasons) == 1
    assert what in reasons[0]


async def test_a_flipped_bit_in_any_part_is_found(store, two):
    living, (newest, older) = two
    for i in range(len(newest.parts)):
        key = living.keys.key(f"snapshot:{newest.id}:{i}")
        before = await store.client.get(key)
        await store.client.set(key, flipped(before))
        assert await loaded(store, living) == (older.id, [f"its part {i} is damaged: its size or checksum is wrong"])
        await store.client.set(key, before)
    assert await loaded(store, living) == (newest.id, [])


async def test_without_a_good_snapshot_the_whole_log_is_replayed(store, two):
    living, both = two
    for manifest in both:
        await missing(part(0))(store, living, manifest)
    name, reasons = await loaded(store, living)
    assert (name, len(reasons)) == (None, 2)
    assert (await replay(store, living)).live.n_learned == 180


async def test_without_a_good_snapshot_and_without_the_beginning_there_is_no_state(store, two):
    living, (newest, older) = two
    await store.client.xtrim(living.keys.log, minid=newest.position.offset.entry, approximate=False)
    assert (await loaded(store, living))[0] == newest.id
    assert (await replay(store, living)).live.n_learned == 180
    await missing(part(0))(store, living, newest)
    with pytest.raises(Corrupted, match=r"part 0 is missing.*does not continue.*lost its beginning"):
        await replay(store, living)
    assert older.id in [manifest.id for manifest in await snapshots.read_manifests(store, living.keys)]


async def test_a_snapshot_is_not_pointed_to_before_it_is_whole(store, lab):
    living = await lab.living()
    await lab.append(*events(60, 1))
    steps = 0

    async def between() -> None:
        nonlocal steps
        steps += 1
        assert await snapshots.ids(store, living.keys) == []
        if steps == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await compact(store, living, SMALL_PARTS, between=between)
    assert await loaded(store, living) == (None, [])


def elements(n_entries: int, n: int) -> list[Element]:
    """A log in which every instance brings new features and a new label."""
    made = []
    for entry in range(n_entries):
        drafts = [draft(f'{{"a": 1, "b{entry} {i}": 2, "c{entry} {i}": 3}}', f"label {entry} {i}") for i in range(n)]
        event = LearnEvent(b"".join(one.records for one in drafts), n, [Unit(1)] * n)
        payload, checksum = encode(Entry(APPLY_VERSION, b"other", entry, event))
        made.append((b"%d-0" % (entry + 1), [b"e", payload, b"c", checksum]))
    return made


def replica() -> ReplicatedModel:
    return ReplicatedModel(ModelKeys("default", "1-0"), ModelConfig(max_features=3000))


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every time that tables were enlarged, whether it was off the loop."""
    found: list[bool] = []
    enlarged = LiveModel.enlarged

    def seen(self: LiveModel) -> EnlargedTables:
        found.append(threading.current_thread() is not threading.main_thread())
        return enlarged(self)

    monkeypatch.setattr(LiveModel, "enlarged", seen)
    return found


@pytest.mark.parametrize(("n_entries", "n"), [(1200, 1), (5, 400)])
async def test_tables_that_grow_elsewhere_change_nothing(monkeypatch, where, n_entries, n):
    log = elements(n_entries, n)
    inline, ahead = replica(), replica()
    for element in log:
        await inline.apply(element)
    assert where == []
    monkeypatch.setattr("abound_core.instances.vocabulary.LARGE_TABLE", 256)
    over = False
    answers = 0

    async def ask() -> None:
        nonlocal answers
        vector = ahead.live.vectorizer.vectorize(b'{"a": 1, "b0 0": 1, "unknown": 1}', None)
        while not over:
            ranking: Ranking = ahead.live.rank(vector, 5)
            assert all(ahead.live.label(class_id).startswith("label") for class_id in ranking.class_ids.tolist())
            answers += len(ranking.class_ids) > 0
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    for element in log:
        await ahead.apply(element)
    over = True
    await asking
    assert len(where) > 3
    assert all(where)
    assert answers > 0
    assert ahead.position == inline.position
    assert await ahead.compute_digest() == await inline.compute_digest()
    assert ahead.live.stats()["learned"] == inline.live.stats()["learned"] == n_entries * n


async def test_who_waits_for_an_offset_need_not_wait_for_more_than_a_state_that_has_it():
    model, loaded = replica(), replica()
    for element in elements(3, 2):
        await loaded.apply(element)
    waiting = asyncio.create_task(model.wait_for(loaded.offset))
    await asyncio.sleep(0)
    model.restore(loaded.live, loaded.position)
    await asyncio.wait_for(waiting, 30)
