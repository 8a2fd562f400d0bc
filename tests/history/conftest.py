"""A model with snapshots, of which nothing is archived yet; garbage is collected in the second pass that finds it."""

from pathlib import Path

import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.history import garbage
from abound.store.client import Store
from tests.support.lab import Archived
from tests.support.streams import create


@pytest.fixture(autouse=True)
def _collect_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "UNREFERENCED_SECONDS", 0.0)


@pytest.fixture
async def model(store: Store, tmp_path: Path) -> Archived:
    """A model of 180 entries with two snapshots, after 60 and 120; nothing is archived."""
    artifacts = ArtifactStore(str(tmp_path))
    await artifacts.join(store)
    model = Archived(store, artifacts, await create(store), [])
    for seed in range(2):
        await model.grow(60, seed)
    await model.grow(60, 2)
    assert len(model.every) == 180
    return model
