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
    "fsu": "728e8113e86a8c52ad4c7c67e5ae91ea",
    "multi_label": "523bf952fe5acb0fd760060bf41625bc",
    "max_features": "55e08119347d727161411b8a6b54390a",
    "memory": "13fd1c7d5ac1152c165a132082945a55",
    "sls": "04dfdbb7733dd26964825c9d65d44721",
    "rows": "c21559783e2448888b11784519fb90d2",
    "calibrate": "4edbc3aab65bfba527481f3ef90d6bed",
    "vectors": "30f34483e880be9be83af8c5ed2b48ca",
    "rerank": "30e0d2d696c372d3fec61d5c52f482e9",
    "keys": "1246e4d94fe08a00dff6c41ebb9a4a5b",
    "configure": "3956cca02e483c0430f4def7feb6c417",
    "feedback_fsu": "fad5ade786023240053d6489ae15032d",
    "feedback_sls": "3cf8aed4be99cb21ab5e3410f9e1652c",
    "names": "39bfab3fe87ec73bf12edad4552357cd",
    "default_rerank": "bcd64c34621da83c976c1781ebfc3622",
    "decide": "4a8882d3ba24861cc66ad9e67a60a971",
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
