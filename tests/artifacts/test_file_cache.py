"""Copies of files of an artifact store that is elsewhere: mapped, bounded, and never believed."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import checksum_of
from abound.artifacts.file_cache import FileCache, cache_in
from abound.store.client import Store
from abound.versions import versions as versions
from abound.versions.card import CARD
from abound_core.errors import UnknownArtifact
from tests.versions.test_versions import KEYS, fit, vectors, write


@pytest.fixture
async def artifacts(store: Store, tmp_path: Path) -> AsyncIterator[ArtifactStore]:
    artifacts = ArtifactStore(f"memory://cache/{tmp_path.name}-{os.getpid()}", FileCache(tmp_path / "cache", 2**20))
    await artifacts.join(store)
    yield artifacts
    await artifacts.clear("m")


def copies(artifacts: ArtifactStore) -> list[Path]:
    return sorted(artifacts.cache.folder.iterdir())


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    read = MemoryFileSystem.cat_file

    def cat_file(self: MemoryFileSystem, path: str, *given: object, **named: object) -> bytes:
        names.append(path.rpartition("/")[2])
        return bytes(read(self, path, *given, **named))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    return names


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


async def test_a_version_from_elsewhere_is_mapped_and_fetched_once(artifacts, monkeypatch):
    made = fit("swnn")
    card = await write(artifacts, made)
    names = fetched(monkeypatch)
    loaded = await versions.load(artifacts, KEYS, card.id)
    assert len(copies(artifacts)) == len({one.checksum for one in card.files})
    assert any(is_mapped(path) for path in copies(artifacts))  # what is made into lists of names goes again
    found, expected = (one.rank_vectors(vectors(5), 3) for one in (loaded.fitted, made))
    np.testing.assert_array_equal(found.ids, expected.ids)
    del names[:]
    await versions.load(artifacts, KEYS, card.id)
    assert names == [CARD]


async def test_a_copy_that_is_damaged_is_thrown_away(artifacts):
    card = await write(artifacts, fit("swnn"))
    await versions.load(artifacts, KEYS, card.id)
    before = {path: path.read_bytes() for path in copies(artifacts)}
    for path, data in before.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert (await versions.load(artifacts, KEYS, card.id)).card == card
    assert copies(artifacts) == []
    await versions.load(artifacts, KEYS, card.id)
    assert {path: path.read_bytes() for path in copies(artifacts)} == before


async def test_what_was_not_asked_for_the_longest_goes(artifacts, tmp_path):
    cache = FileCache(tmp_path / "small", 250)
    data = {name: name.encode() * 100 for name in "abcd"}
    for name, one in data.items():
        await artifacts.put(f"m/{name}", one)

    async def get(name: str, at: int) -> Path:
        path = await cache.get(checksum_of(data[name]), 100, partial(artifacts.pieces, f"m/{name}"))
        assert path.read_bytes() == data[name]
        os.utime(path, (at, at))
        return path

    first, second = await get("a", 1), await get("b", 2)
    assert await get("a", 3) == first
    third = await get("c", 4)
    assert sorted(cache.folder.iterdir()) == sorted([first, third])
    fourth = await get("d", 5)
    assert sorted(cache.folder.iterdir()) == sorted([third, fourth])
    assert not second.exists()
    assert await cache.get("0" * 32, 251, partial(artifacts.pieces, "m/a")) is None  # larger than all of it
    with pytest.raises(UnknownArtifact):
        await cache.get("0" * 32, 100, partial(artifacts.pieces, "m/none"))
    assert not list(cache.folder.glob(".*")), "something is half written"


def on_the_way(
    artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch, do: Callable[[], Awaitable[None]]
) -> list[str]:
    """Something that happens when all bytes of the next file have come, and it is not there yet; what was fetched."""
    names: list[str] = []
    pieces = artifacts.pieces

    async def pieces_then(name: str) -> AsyncIterator[bytes]:
        names.append(name)
        async for piece in pieces(name):
            yield piece
        if len(names) == 1:
            await do()

    monkeypatch.setattr(artifacts, "pieces", pieces_then)
    return names


@pytest.mark.parametrize("is_needed", [False, True])
async def test_what_is_on_its_way_while_others_are_thrown_away(artifacts, monkeypatch, is_needed):
    """It is fetched again where nothing needed it then, and left alone where something does."""
    cache, checksum = artifacts.cache, checksum_of(b"data")
    await artifacts.put("m/a", b"data")

    async def sweep() -> None:
        assert FileCache(cache.folder, 2**20).keep_only({checksum} if is_needed else set()) == (not is_needed)

    names = on_the_way(artifacts, monkeypatch, sweep)
    path = await cache.get(checksum, 4, partial(artifacts.pieces, "m/a"))
    assert path.read_bytes() == b"data"
    assert names == ["m/a"] * (1 if is_needed else 2)
    assert copies(artifacts) == [path]


async def test_what_is_deleted_on_its_way_does_not_stay(artifacts, monkeypatch):
    cache = artifacts.cache
    await artifacts.put("m/a", b"data")

    async def forget() -> None:
        await artifacts.delete("m/a")
        cache.keep_only(set())

    on_the_way(artifacts, monkeypatch, forget)
    with pytest.raises(UnknownArtifact):
        await cache.get(checksum_of(b"data"), 4, partial(artifacts.pieces, "m/a"))
    assert copies(artifacts) == []


async def test_what_cannot_be_kept_is_read_into_memory(artifacts, tmp_path):
    card = await write(artifacts, fit("swnn"))
    (tmp_path / "file").touch()
    artifacts.cache = FileCache(tmp_path / "file" / "cache", 2**20)
    assert (await versions.load(artifacts, KEYS, card.id)).card == card
    artifacts.cache = cache_in(tmp_path, 0)
    assert artifacts.cache is None
    assert (await versions.load(artifacts, KEYS, card.id)).card == card
