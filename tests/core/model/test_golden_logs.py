"""Logs that were written once give the same model in every later release, bit for bit.

A digest here changes only together with ``APPLY_VERSION``: replicas of two releases follow the same log. A new setting
or kind of record gets a log of its own (``write_log``), and changes none of these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abound.log.events import (
    APPLY_VERSION,
    CatalogEntry,
    ConfigureEvent,
    Entry,
    Event,
    LearnEvent,
    ModelCreated,
    decode_catalog_entry,
    decode_entry,
    encode,
)
from abound_core.config import ModelConfig
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

DIGESTS = {
    "fsu": "40c5e099317d805a7dfd782c393c84e4",
    "multi_label": "d1ebb1cc801ce7ecd8263c10cac60666",
    "max_features": "c115e1839b7e81706552812681fe3f21",
    "memory": "02a6f6fe3c502779096019c889aa1f57",
    "sls": "6ab4b32109da8c7ba2b66536856e486d",
    "rows": "edcd325fcd8a990ee88da7e969b4efed",
    "calibrate": "502159117de823c9d68c6ea8adc1e504",
    "vectors": "c0d1cf0c990d2472b77dd9e5339e10fb",
    "rerank": "e8382249f87a9e0b976548ff47f75125",
    "keys": "28f58945e59239dae84449c70d6bc962",
    "configure": "17a0b36fcdb0d42f790f1930bfa1d982",
    "feedback_fsu": "256eb32820293d683cc46401c75a8cd3",
    "feedback_sls": "dd0b8e451dd6dde4fb7978a83800c96d",
    "names": "8e4f38c95fa107efd226f74f830376f3",
    "default_rerank": "9f51bd38868426c25d553828593443b1",
}


def path_of(name: str) -> Path:
    return Path(__file__).parent / "golden" / f"{name}.bin"


def write_log(name: str, config: dict[str, Any], events: Sequence[Event]) -> str:
    """Write a new log, and return its digest. One that exists is what an earlier release wrote, and stays."""
    created = CatalogEntry(APPLY_VERSION, ModelCreated(name, ModelConfig.from_dict(config).to_dict()))
    entries = [Entry(APPLY_VERSION, b"golden", number, event) for number, event in enumerate(events)]
    with path_of(name).open("xb") as file:
        file.write(msgspec.msgpack.encode([encode(one) for one in (created, *entries)]))
    return replayed(name).digest()


def replayed(name: str, secret: tuple[int, int] = (1, 2), saved_after: int | None = None) -> LiveModel:
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
def test_a_log_gives_the_model_that_it_always_gave(name):
    assert replayed(name).digest() == DIGESTS[name]
    assert replayed(name, (3, 4), saved_after=7).digest() == DIGESTS[name]


def test_every_golden_log_has_a_digest():
    assert {path.stem for path in path_of("fsu").parent.glob("*.bin")} == DIGESTS.keys()
