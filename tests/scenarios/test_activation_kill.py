"""Every process killed at once while a version is activated: afterwards one and the same answers everywhere."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.log.catalog import read_catalog
from abound.log.events import ActivateEvent, PrepareVersionEvent, decode_entry
from abound.processes.embedded_store import EmbeddedStore
from abound.store.client import Store
from abound.versions.activation import read_active
from benchmarks.serving import Serving
from tests.support.small_versions import FEATURES, fitted, ranked, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


async def write_versions(data: Path) -> list[str]:
    store = Store(EmbeddedStore(data).url)
    artifacts = ArtifactStore(str(data / "artifacts"))
    try:
        await artifacts.join(store)
        living = (await read_catalog(store)).get("default")
        assert living is not None
        return [(await write(artifacts, living.keys, fitted(name))).id for name in ("one", "two")]
    finally:
        await store.close()


async def look(data: Path, free: bool = False) -> tuple[str, list[Any]]:
    """What is active, and the events of activations. ``free``: as if the fence had come to its end."""
    store = Store(EmbeddedStore(data).url)
    try:
        living = (await read_catalog(store)).get("default")
        assert living is not None
        if free:
            await store.client.delete(living.keys.key("activation-lease"))
        found = await store.client.xrange(living.keys.log)
        events = [decode_entry([part for field in fields.items() for part in field]).event for _, fields in found]
        told = [event for event in events if isinstance(event, ActivateEvent | PrepareVersionEvent)]
        return (await read_active(store, living.keys)).version, told
    finally:
        await store.close()


def answers(url: str) -> set[tuple[str, str]]:
    """Version and best label that are answered; so many times that every process is asked."""
    found = set()
    with httpx.Client(base_url=url, timeout=60, headers={"connection": "close"}) as http:
        for _ in range(12):
            answer = http.post("/classify", json={"features": FEATURES[4], "k": 1})
            assert answer.status_code == 200, answer.text
            found.add((answer.json()["version"], answer.json()["labels"][0]["label"]))
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_activation_happens_everywhere_or_nowhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options: tuple[Any, ...] = (data, "--processes", "2")
    made = {"one": fitted("one"), "two": fitted("two")}
    serving = Serving(*options, output=tmp_path / "output")
    try:
        serving.until_ready()
        learned = {"instances": [{"features": features, "labels": ["live"]} for features in FEATURES]}
        assert httpx.post(f"{serving.url}/learn", json=learned, timeout=30).status_code == 200
        ids = dict(zip(made, asyncio.run(write_versions(data)), strict=True))
        expected = {ids[name]: ranked(one, FEATURES[4], 1)[0][0] for name, one in made.items()} | {"live": "live"}
        now = "live"
        for kill in range(15):
            other = ids["two"] if now == ids["one"] else ids["one"]

            def post(url: str = serving.url, other: str = other) -> None:
                try:
                    httpx.post(f"{url}/models/default/activate", json={"version": other}, timeout=60)
                except httpx.TransportError:
                    return

            activating = threading.Thread(target=post)
            activating.start()
            time.sleep(0.3 + 0.5 * (kill % 3))  # replicas say what they have loaded once a second
            serving.kill()
            activating.join()
            serving = Serving(*options, output=tmp_path / "output")
            serving.until_ready()
            version, _ = asyncio.run(look(data, free=True))
            assert version in (now, other)
            assert answers(serving.url) == {(version, expected[version])}
            now = version
        for name in (ids["one"], "live"):
            answer = httpx.post(f"{serving.url}/models/default/activate", json={"version": name}, timeout=60)
            assert answer.status_code == 200, answer.text
            offset = answer.json()["offset"]
            asked = {"features": FEATURES[4], "k": 1, "min_offset": offset}
            told = httpx.post(f"{serving.url}/classify", json=asked, timeout=30).json()
            assert (told["version"], told["labels"][0]["label"]) == (name, expected[name])
        version, events = asyncio.run(look(data))
        assert version == "live"
        assert len({event.activation for event in events if isinstance(event, ActivateEvent)}) == len(
            [event for event in events if isinstance(event, ActivateEvent)]
        )
        assert serving.stop() == 0
    finally:
        serving.kill()
