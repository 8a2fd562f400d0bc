"""A model with snapshots, of which nothing is archived yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from abound.service.artifacts.artifact_store import ArtifactStore
from abound.service.store.client import Store
from tests.snapshots.test_snapshots import create
from tests.support.archived_model import Archived


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
