"""What was begun and never finished goes, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import Conflict
from service import activation, version_keeping, versions
from service.artifacts import Artifacts
from service.datasets import FOLDER, Datasets
from service.store import Store
from tests.service.test_versions import KEYS, fit, write


@pytest.fixture
async def artifacts(store: Store, tmp_path: Path) -> Artifacts:
    artifacts = Artifacts(str(tmp_path))
    await artifacts.join(store)
    return artifacts


async def test_what_nobody_writes_any_more_is_swept(store: Store, artifacts: Artifacts) -> None:
    whole = await write(artifacts, fit("frequency"))
    begun = [versions.new_id() for _ in range(2)]
    for name in begun:
        await artifacts.put(f"{versions.folder(KEYS, name)}/000-x.npy", b"x")
    async with version_keeping.writing(store, KEYS, begun[0]):
        assert await version_keeping.sweep(store, artifacts, KEYS) == 1
        left = {name.split("/")[3] for name in await artifacts.names(versions.folder(KEYS))}
        assert left == {whole.id, begun[0]}
    assert await version_keeping.sweep(store, artifacts, KEYS) == 1
    assert await versions.ids(artifacts, KEYS) == [whole.id]
    assert (await versions.load(artifacts, KEYS, whole.id)).card == whole
    assert await version_keeping.sweep(store, artifacts, KEYS) == 0


async def test_whoever_died_while_writing_is_not_waited_for_for_ever(store: Store, artifacts: Artifacts) -> None:
    name = versions.new_id()
    await artifacts.put(f"{versions.folder(KEYS, name)}/000-x.npy", b"x")
    await store.client.hset(KEYS.of("writing"), name, "1")
    assert await version_keeping.sweep(store, artifacts, KEYS) == 1


async def test_nothing_is_deleted_while_a_version_is_activated(store: Store, artifacts: Artifacts) -> None:
    made = [await write(artifacts, fit("frequency"), created=float(second)) for second in (1, 2)]
    async with activation.fence(store, KEYS):
        assert await version_keeping.retain(store, artifacts, KEYS, 1) == []
        with pytest.raises(Conflict):
            await version_keeping.delete(store, artifacts, KEYS, made[0].id)
    assert await version_keeping.retain(store, artifacts, KEYS, 1) == [made[0].id]
    assert await versions.ids(artifacts, KEYS) == [made[1].id]


async def test_files_of_data_sets_that_nothing_points_to_are_swept(store: Store, artifacts: Artifacts) -> None:
    known = Datasets(store)
    for name in ("lost", "busy"):
        await artifacts.put(f"{FOLDER}/{name}.jsonl", b"x")
    async with known._writing(f"{FOLDER}/busy.jsonl"):
        assert await known.sweep(artifacts) == 1
        assert await artifacts.names(FOLDER) == [f"{FOLDER}/busy.jsonl"]
    assert await known.sweep(artifacts) == 1
