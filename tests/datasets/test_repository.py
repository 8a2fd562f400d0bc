"""Data sets by the class that keeps them, where the store fails on the way."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.zstandard import zstd
from abound.datasets import repository
from abound.datasets.repository import FOLDER, DatasetRepository
from abound.store.client import Store
from abound_core.errors import ArtifactsUnavailable, StoreUnavailable, TooLarge
from tests.support.proxy import Proxy
from tests.support.replicas import until
from tests.support.valkey import PATIENT, Server

LINE = b'{"text": "%s", "labels": ["l"]}\n'


async def pieces(text: bytes) -> AsyncIterator[bytes]:
    yield LINE % text


async def stays() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy", server.socket)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def known(proxy: Proxy) -> AsyncIterator[DatasetRepository]:
    store = Store(proxy.url, PATIENT)
    yield DatasetRepository(store)
    await store.close()


def environment(url: str, artifacts: ArtifactStore) -> dict[str, str]:
    return {**os.environ, "ABOUND_REDIS_URL": url, "ABOUND_ARTIFACTS_URL": artifacts.url}


async def test_a_name_has_a_whole_file_though_the_reply_of_the_store_was_lost(server, proxy, artifacts, known):
    where = environment(server.url, artifacts)
    await known.put(artifacts, "mine", "a.jsonl", pieces(b"one"), where, stays)
    proxy.lose_replies_to = b"cjson.decode"
    with pytest.raises(StoreUnavailable):
        await known.put(artifacts, "mine", "a.jsonl", pieces(b"two"), where, stays)
    assert await artifacts.get((await known.get("mine")).file) == LINE % b"two"
    assert await known.collect_garbage(artifacts) == 1
    assert len(await artifacts.names(FOLDER)) == 1


async def test_a_file_that_cannot_be_checked_now_is_not_wrong(artifacts, known):
    with pytest.raises(ArtifactsUnavailable, match="could not be checked: the store is away"):
        await known.put(artifacts, "mine", "a.jsonl", pieces(b"one"), environment("unix:///nowhere", artifacts), stays)
    assert await artifacts.names(FOLDER) == []


async def test_rows_of_a_large_parquet_file_in_a_remote_store_are_refused(server, artifacts, known, monkeypatch):
    table = pyarrow.table({"text": ["one", "two"], "labels": ["a", "b"]})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)

    async def body() -> AsyncIterator[bytes]:
        yield file.getvalue()

    await known.put(artifacts, "mine", "a.parquet", body(), environment(server.url, artifacts), stays)
    monkeypatch.setattr(repository, "MAX_BATCH_BYTES", len(file.getvalue()) - 1)
    assert [row.text for row in await known.head(artifacts, "mine", 2)] == ["one", "two"]
    with pytest.raises(TooLarge, match="in a remote artifact store"):
        await known.head(ArtifactStore("memory://remote"), "mine", 2)


async def test_a_check_stops_when_the_client_has_gone(server, artifacts, known):
    checked = asyncio.Event()
    lines = zstd.compress(b"\n" * 2**24) * 300  # some KB that take minutes to read

    async def body() -> AsyncIterator[bytes]:
        yield zstd.compress(LINE % b"one") + lines

    async def leaves() -> None:
        await checked.wait()
        raise ConnectionError("gone")

    where = environment(server.url, artifacts)
    putting = asyncio.create_task(known.put(artifacts, "mine", "a.jsonl.zst", body(), where, leaves))
    await until(known.checking)
    checked.set()
    async with asyncio.timeout(10):
        with pytest.raises(ConnectionError):
            await putting
    assert await known.checking() == {}
    assert await artifacts.names(FOLDER) == []
