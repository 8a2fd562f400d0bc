"""What tests of activations share: small versions that tell themselves apart by what they answer."""

import json
from typing import Any

from abound.artifacts.artifact_store import ArtifactStore
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import activation
from abound.versions import versions as versions
from abound.versions.card import Card
from abound_core.config import ModelConfig
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.gather import MatrixBuilder
from tests.core.methods.toy import fit
from tests.support.served import Served, on_store

FEATURES = [{f"a{i}": 1.0, f"b{i % 7}": 2.5} for i in range(20)]


def vector(features: dict[str, Any]) -> bytes:
    return Vectorizer(ModelConfig(), Limits()).vectorize(json.dumps(features).encode(), None)


def fitted(name: str, n_labels: int = 5, method: str = "ind", n_features: int = 0) -> FittedMethod:
    """A fitted method whose labels all begin with ``name``; it knows ``FEATURES``, and so many features more."""
    gathering = MatrixBuilder((1, 2))
    for first in range(0, n_features, 1000):
        gathering.add(vector({f"more {i}": 1.0 for i in range(first, first + 1000)}), [f"{name} 0"])
    for i, features in enumerate(FEATURES):
        gathering.add(vector(features), [f"{name} {i % n_labels}", f"{name} {i * i % n_labels}"])
    return fit(method, gathering.matrices())


async def write(artifacts: ArtifactStore, keys: ModelKeys, made: FittedMethod, **fields: Any) -> Card:
    given: dict[str, Any] = {
        "seed": 5,
        "data": "history",
        "data_range": None,
        "offset": "0-0.0",
        "created": 1e9,
        "metrics": {},
        "sizes": {"instances": 20, "features": 27, "classes": len(made.labels), "nnz": 40, "assertions": 20},
    }
    return await versions.write(artifacts, keys, made, **(given | fields))


def version_of(service: Served, model: str, made: FittedMethod) -> Card:
    """A version of a model of a running service."""

    async def make(store: Store) -> Card:
        artifacts = ArtifactStore(service.settings.artifacts_location() or "")
        await artifacts.join(store)
        return await write(artifacts, service.app.state.parts.replica.model(model).keys, made)

    return on_store(service.server, make)


def ranked(made: FittedMethod, features: dict[str, Any], k: int) -> list[tuple[str, float]]:
    found = made.rank_vectors([vector(features)], k)
    return [(made.labels[i], score) for i, score in zip(found.ids.tolist(), found.scores.tolist(), strict=True)]


def place(
    store: Store, artifacts: ArtifactStore | None, keys: ModelKeys, **fields: Any
) -> activation.ActivationContext:
    return activation.ActivationContext(store, artifacts, keys, **({"prepare_seconds": 60.0} | fields))
