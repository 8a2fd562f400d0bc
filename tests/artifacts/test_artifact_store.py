"""The artifact store: pieces and whole artifacts, what a dead writer leaves, stores that hang."""

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from abound.artifacts.artifact_store import ARTIFACTS_KEY, MARKER, ArtifactStore
from abound.settings import Settings
from abound.store.client import Store
from abound_core.errors import ArtifactsUnavailable, CannotStart, StoreUnavailable, UnknownArtifact


@pytest.fixture(params=["directory", "memory"])
async def artifacts(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> ArtifactStore:
    artifacts = ArtifactStore(str(tmp_path) if request.param == "directory" else f"memory:/{tmp_path}")
    await artifacts.join(store)
    return artifacts


async def test_what_is_put_is_there_until_it_is_deleted(artifacts):
    assert await artifacts.names() == [MARKER]
    for name in ("m/1-0/history/b.seg", "m/1-0/history/a.seg", "m/2-0/history/a.seg"):
        await artifacts.put(name, name.encode() * 1000)
    assert await artifacts.names("m/1-0") == ["m/1-0/history/a.seg", "m/1-0/history/b.seg"]
    assert await artifacts.sizes("m/2-0") == {"m/2-0/history/a.seg": 19_000}
    assert await artifacts.names("m/3-0") == []
    assert await artifacts.get("m/1-0/history/a.seg") == b"m/1-0/history/a.seg" * 1000
    path = artifacts.path("m/1-0/history/a.seg")
    assert (path is None) == artifacts.url.startswith("memory")
    assert await artifacts.size("m/1-0/history/a.seg") == 19_000
    await artifacts.put("m/1-0/history/a.seg", b"")
    assert await artifacts.get("m/1-0/history/a.seg") == b""
    for _ in range(2):
        await artifacts.delete("m/1-0/history/a.seg")
    assert await artifacts.names("m/1-0") == ["m/1-0/history/b.seg"]
    for reading in (artifacts.get, artifacts.size):
        with pytest.raises(UnknownArtifact, match="m/1-0"):
            await reading("m/1-0/history/a.seg")


async def test_an_artifact_gets_a_second_name_that_outlives_the_first(artifacts):
    first, second = "m/1-0/history/a.seg", "m/2-0/history/a.seg"
    await artifacts.put(first, b"content")
    for _ in range(2):  # a repetition is harmless
        await artifacts.link(first, second)
    one, other = artifacts.path(first), artifacts.path(second)
    if one is not None and other is not None:
        assert one.stat().st_ino == other.stat().st_ino
    await artifacts.delete(first)
    assert await artifacts.get(second) == b"content"
    assert await artifacts.names("m") == [second]
    with pytest.raises(UnknownArtifact, match="m/1-0"):
        await artifacts.link(first, "m/3-0/history/a.seg")


async def test_a_file_system_without_links_gets_copies(store, tmp_path, monkeypatch):
    def refuse(path: Path, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    artifacts = ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    await artifacts.put("a", b"content")
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    await artifacts.link("a", "b/c")
    assert await artifacts.get("b/c") == b"content"
    with pytest.raises(UnknownArtifact):
        await artifacts.link("d", "e")


class Versioned(MemoryFileSystem):
    """One whose reading takes a version before the place where to begin, as that of S3 does (s3fs 2026.9)."""

    protocol = "versioned"

    def cat_file(self, path: str, version: Any = None, start: Any = None, end: Any = None, **more: Any) -> bytes:
        assert version is None
        return super().cat_file(path, start=start, end=end)


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
async def test_an_artifact_is_read_piece_by_piece_wherever_it_lies(store, tmp_path, size):
    fsspec.register_implementation("versioned", Versioned, clobber=True)
    data = bytes(range(100))
    for url in (str(tmp_path), f"memory:/{tmp_path}", f"versioned:/{tmp_path}"):
        artifacts = ArtifactStore(url)
        await store.client.delete(ARTIFACTS_KEY)
        await artifacts.join(store)
        await artifacts.put("m/1-0/history/a.seg", data)
        pieces = [piece async for piece in artifacts.pieces("m/1-0/history/a.seg", size)]
        assert pieces == [data[at : at + size] for at in range(0, len(data), size)]


async def test_everybody_at_one_time_makes_one_folder(server, tmp_path):
    stores = [Store(server.url, server.store_params) for _ in range(8)]
    every = [ArtifactStore(str(tmp_path / "artifacts")) for _ in stores]
    made = await asyncio.gather(*(one.join(store) for one, store in zip(every, stores, strict=True)))
    assert len(set(made)) == 1
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [made[0]]
    for store in stores:
        await store.close()


async def test_the_folder_is_found_again_and_another_place_is_not_visible(store, tmp_path):
    here = ArtifactStore(str(tmp_path / "here"))
    first = await here.join(store)
    await here.put("m/kept", b"x")
    again = ArtifactStore(f"file://{tmp_path / 'here'}")
    assert await again.join(store) == first
    assert await again.get("m/kept") == b"x"
    other = ArtifactStore(str(tmp_path / "other"))
    with pytest.raises(ArtifactsUnavailable, match=f"no folder {first}.*ABOUND_ARTIFACTS_URL.*DEL abound:artifacts"):
        await other.join(store)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ArtifactsUnavailable, match="not visible"):
        await other.put("m/x", b"")
    (tmp_path / "here").rename(tmp_path / "other")
    with pytest.raises(ArtifactsUnavailable):
        await here.join(store)
    assert await other.join(store) == first
    await store.client.delete(ARTIFACTS_KEY)
    assert await other.join(store) != first
    assert await other.names() == [MARKER]  # what the lost id had is left alone


async def test_a_meeting_that_was_broken_off_goes_on(store, tmp_path):
    (tmp_path / "file").write_text("no directory")
    for _ in range(2):
        with pytest.raises(ArtifactsUnavailable, match="cannot be used"):
            await ArtifactStore(str(tmp_path / "file")).join(store)
    artifacts = ArtifactStore(str(tmp_path))
    id_ = await artifacts.join(store)
    shutil.rmtree(tmp_path / id_)
    await store.client.set(ARTIFACTS_KEY, f'{{"id": "{id_}", "marked": false}}')
    assert await artifacts.join(store) == id_
    assert (tmp_path / id_ / MARKER).exists()
    shutil.rmtree(tmp_path / id_)
    with pytest.raises(ArtifactsUnavailable):
        await artifacts.join(store)
    await store.client.set(ARTIFACTS_KEY, b"\xff")
    with pytest.raises(StoreUnavailable, match="abound:artifacts"):
        await artifacts.join(store)


async def test_a_write_that_fails_leaves_nothing(store, tmp_path, monkeypatch):
    artifacts = ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    await artifacts.put("m/x", b"before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArtifactsUnavailable, match="No space left"):
            await artifacts.put("m/x", b"after")
    assert await artifacts.get("m/x") == b"before"
    assert [path.name for path in (tmp_path / artifacts.id / "m").iterdir()] == ["x"]


async def test_what_a_dead_writer_began_is_not_listed_and_is_swept(store, tmp_path):
    artifacts = ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    await artifacts.put("m/x", b"x")
    for name in ("old", "new"):
        (tmp_path / artifacts.id / "m" / f".{name}.part").write_bytes(b"half")
    os.utime(tmp_path / artifacts.id / "m" / ".old.part", (1, 1))
    assert await artifacts.names("m") == ["m/x"]
    assert await artifacts.sweep_unfinished() == 1
    assert sorted(path.name for path in (tmp_path / artifacts.id / "m").iterdir()) == [".new.part", "x"]


@given(st.text(alphabet="a./\\-_0\n ~é", max_size=12) | st.text(max_size=300))
def test_a_name_never_leaves_the_folder(name):
    artifacts = ArtifactStore("/nowhere/root")
    artifacts.id = "0"
    try:
        path = artifacts.path(name)
    except ValueError:
        return
    assert path.resolve().is_relative_to("/nowhere/root/0")
    assert not any(part.startswith(".") for part in path.parts)
    assert len(name) <= 1100


def test_the_place_follows_the_store(tmp_path):
    assert Settings.load(data_dir=tmp_path).artifacts_location() == str(tmp_path / "artifacts")
    assert Settings.load(redis_url="redis://h").artifacts_location() is None
    given = Settings.load(redis_url="redis://h", artifacts_url="sftp://user:secret@host/x")
    assert given.artifacts_location() == "sftp://user:secret@host/x"
    assert "secret" not in str(given.describe())
    with pytest.raises(CannotStart, match="ABOUND_ARTIFACTS_URL"):
        ArtifactStore("nonsense://x")


async def test_a_folder_is_cleared_whole_and_no_other(artifacts):
    for name in ("m/jobs/1/a", "m/jobs/1/deep/b", "m/jobs/12/c"):
        await artifacts.put(name, b"x")
    beside = artifacts.path("m/jobs/1/a")
    if beside is not None:
        beside.with_name(".0123.part").write_bytes(b"half")
    await artifacts.clear("m/jobs/1")
    assert await artifacts.names("m") == ["m/jobs/12/c"]
    assert beside is None or not beside.parent.exists()
    await artifacts.clear("m/jobs/1")


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="http://somebody:secret@bucket"),
        NoCredentialsError(),
        ClientError({"Error": {"Code": "SlowDown"}}, "PutObject"),
        aiohttp.ClientConnectionError("gone"),
        OSError("no route to somebody:secret@bucket"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_bucket_that_cannot_be_had_is_unavailable_whatever_its_driver_raises(store, error):
    class Failing(MemoryFileSystem):
        def exists(self, *_: Any, **__: Any) -> bool:
            raise error

        makedirs = pipe_file = exists

    fsspec.register_implementation("failing", Failing, clobber=True)
    artifacts = ArtifactStore("failing://somebody:secret@bucket/folder")
    with pytest.raises(ArtifactsUnavailable, match="the artifact store cannot be used") as raised:
        await artifacts.join(store)
    assert "secret" not in str(raised.value)
