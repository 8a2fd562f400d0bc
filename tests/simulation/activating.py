"""Activations in a history: again and again another version of a model is to answer."""

import asyncio
import random
from functools import cache
from typing import Any

from abound.artifacts.artifact_store import ArtifactStore
from abound.log.catalog import DEFAULT_MODEL, CatalogModel, read_catalog
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions.activation import ActivationContext, activate
from abound_core.errors import AboundError, OutcomeUnknown
from abound_core.methods.fitted import FittedMethod
from abound_core.model.active_version import LIVE
from abound_core.types import Offset
from tests.simulation.hosts import QUICK, URL, Host
from tests.support.small_versions import fitted, write

PAUSE_SECONDS = 0.2
PREPARE_SECONDS = 0.5


@cache
def _fitted(name: str) -> FittedMethod:
    return fitted(name)


class ActivatingHost(Host):
    """Activates versions of the model ``default`` during a history."""

    rng = random.Random()
    why = "it was not begun"  # what ended the last one that failed

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.said: list[tuple[ModelKeys, str, Offset]] = []  # told: this version is active since then
        self._versions: dict[ModelKeys, list[str]] = {}

    async def serve(self) -> None:
        store = Store(URL, QUICK)
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                living = (await read_catalog(store)).get(DEFAULT_MODEL)
                if living is not None:
                    await self._activate(store, living)
            except (AboundError, OutcomeUnknown) as error:
                self.why = f"{type(error).__name__}: {error}"
                self._network.note("activation failed", self.name, self.why)

    async def _activate(self, store: Store, living: CatalogModel) -> None:
        artifacts = self.artifacts
        assert artifacts is not None
        await artifacts.join(store)
        version = self.rng.choice([*await self._written(artifacts, living.keys), LIVE])
        place = ActivationContext(store, artifacts, living.keys, PREPARE_SECONDS)
        at = await activate(place, version, "simulated", self.rng.choice((None, None, LIVE)))
        self.said.append((living.keys, version, at))
        self._network.note("activated", self.name, f"{version} {at}")

    async def _written(self, artifacts: ArtifactStore, keys: ModelKeys) -> list[str]:
        """Two versions of the model."""
        there = self._versions.setdefault(keys, [])
        while len(there) < 2:
            card = await write(artifacts, keys, _fitted(f"v{len(there)}"))
            there.append(card.id)
        return there
