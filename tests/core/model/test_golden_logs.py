"""Logs that were written once give the same model in every later release, bit for bit.

A digest here changes only together with ``APPLY_VERSION``: replicas of two releases follow the same log. A new setting
or kind of record gets a log of its own (``python -m tests.core.model.golden``), and changes none of these.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from abound.core.config import ModelConfig
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset
from abound.service.log.events import (
    ConfigureEvent,
    LearnEvent,
    ModelCreated,
    decode_catalog_entry,
    decode_entry,
)

DIGESTS = {
    "fsu": "66cb0c10a2d70d9416d815596bd2b8d0",
    "multi_label": "bc4ddfa3ab52143b227e8f68d970ab55",
    "max_features": "75ba648e0922a0b89344f9ad3d12e175",
    "memory": "b27b912114fb35288266650ff077ec7b",
    "sls": "1d710f303a77c6a558c5d2aa6699d87b",
    "rows": "10d62583f5bb80c97acaf1a51c322c02",
    "calibrate": "f229b4b57ac1c537d6d919df843a8485",
    "vectors": "4f090b5c941ec351c5869b27b3f0f679",
    "rerank": "e23cbe0ea7f83825facc682d530d24c1",
    "keys": "43003d32225b1c24d6c6aeee81743d56",
    "configure": "f04848ebc8770f967b99e3aa834aaf6e",
    "feedback_fsu": "29574153bec0150e425689017ed0c1e8",
    "feedback_sls": "d166418aeec884f8a58e7c075d09f526",
    "names": "b29437e93686281980d1def51f66ff19",
    "default_rerank": "d947d814e3961a45c4639087d96b1d33",
}


def path_of(name: str) -> Path:
    """Return the file of a golden log: the entry that created the model, and those of its log, with checksums."""
    return Path(__file__).parent / "golden" / f"{name}.bin"


def replayed(name: str, secret: tuple[int, int] = (1, 2), saved_after: int | None = None) -> LiveModel:
    """Return the model of a golden log, saved and loaded after so many entries."""
    created, *entries = msgspec.msgpack.decode(path_of(name).read_bytes(), type=list[tuple[bytes, bytes]])
    creation = decode_catalog_entry([b"e", created[0], b"c", created[1]]).event
    assert isinstance(creation, ModelCreated)
    creation.config.pop("memory_instances", None)  # null in all logs; the field has left since
    live = LiveModel(ModelConfig.from_stored(creation.config), secret)
    for number, (payload, checksum) in enumerate(entries):
        if number == saved_after:
            live = LiveModel.from_arrays(live.meta(), live.to_arrays(), secret)
        event = decode_entry([b"e", payload, b"c", checksum]).event
        if isinstance(event, LearnEvent):
            live.begin(event.records, event.n, event.units, Offset(1000 + number, 0, 0)).finish()
        else:
            assert isinstance(event, ConfigureEvent)
            live.configure(event.changes)
    return live


@pytest.mark.parametrize("name", DIGESTS)
def test_a_log_gives_the_model_that_it_always_gave(name: str) -> None:
    assert replayed(name).digest() == DIGESTS[name]
    assert replayed(name, (3, 4), saved_after=7).digest() == DIGESTS[name]


def test_every_golden_log_has_a_digest() -> None:
    assert {path.stem for path in path_of("fsu").parent.glob("*.bin")} == DIGESTS.keys()


def test_the_logs_use_what_they_are_named_after() -> None:
    models = {name: replayed(name) for name in DIGESTS}
    assert models["rows"].index.in_rows
    assert not models["sls"].index.in_rows
    assert len(models["max_features"].features) == 30
    assert models["rerank"].dimension == models["vectors"].dimension == 12
    assert models["rerank"].reranker.figures()["n"] > 50
    assert models["default_rerank"].reranker.figures()["n"] > 50
    assert not models["vectors"].reranker.on
    assert models["calibrate"].calibration.on
    assert models["configure"].calibration.on
    assert models["configure"].config.d_max == 40
    assert len(models["keys"].receipts) > 12
    assert len(models["names"].details) == 6
    assert len({model.digest() for model in models.values()}) == len(models)
