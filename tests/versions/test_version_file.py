"""A file of a version that somebody made by hand: refused for what is wrong with it, and nothing of it stays."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import checksum_of, seal
from abound.artifacts.file_format import encode_head
from abound.artifacts.npy import ArrayFile
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.card import Card, digest_of, reading_settings, refuse_other_reading
from abound.versions.retention import VersionParams
from abound.versions.version_file import DEFAULT, MAGIC, export_version, import_version
from abound_core.config import ModelConfig
from abound_core.errors import Conflict, InvalidInstance, Malformed
from abound_core.methods.fitted import FittedMethod
from tests.versions.test_versions import KEYS, OTHER, fit, write


async def taken(
    store: Store,
    artifacts: ArtifactStore,
    card: Card,
    bodies: list[bytes],
    params: VersionParams = DEFAULT,
    keys: ModelKeys = OTHER,
) -> Card:
    """Import a file of this card, whose checksums are made to fit, and of these files."""
    card = msgspec.structs.replace(card, digest=digest_of(card.meta, card.files), n_bytes=sum(map(len, bodies)))

    async def pieces() -> AsyncIterator[bytes]:
        yield encode_head(MAGIC, seal(card))
        for body in bodies:
            yield body

    return await import_version(store, artifacts, keys, pieces(), 2**30, "9-0.0", params)


async def whole(artifacts: ArtifactStore) -> tuple[Card, list[bytes]]:
    card = await write(artifacts, fit("swnn"))
    names = [f"{versions.folder(KEYS, card.id)}/{one.file}" for one in card.files]
    return card, [await artifacts.get(name) for name in names]


def header(text: str, data: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n" + data


async def refused(store: Store, artifacts: ArtifactStore, card: Card, bodies: list[bytes]) -> None:
    with pytest.raises((Malformed, InvalidInstance)):
        await taken(store, artifacts, card, bodies)
    assert await artifacts.names(versions.folder(OTHER)) == []


async def test_what_was_not_changed_is_taken(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await whole(artifacts)
    new = await taken(store, artifacts, card, bodies)
    assert [one.id for one in await versions.cards(artifacts, OTHER)] == [new.id]
    exported = await export_version(artifacts, OTHER, new.id)
    assert len(b"".join([piece async for piece in exported.pieces])) == exported.size


async def test_a_version_of_an_earlier_release_was_fitted_on_raw_numbers(store, artifacts):
    card, bodies = await whole(artifacts)
    reads = reading_settings(ModelConfig())
    del reads["numbers"], reads["analyzer"]["field_weight"]
    card = await taken(store, artifacts, msgspec.structs.replace(card, reads=reads), bodies)
    refuse_other_reading(card, ModelConfig(numbers="raw"))
    with pytest.raises(Conflict, match='with numbers "raw"; fit'):
        refuse_other_reading(card, ModelConfig())


@pytest.mark.parametrize(
    "fields",
    [
        {"sizes": {"instances": -1, "features": 1, "classes": 1, "nnz": 1, "assertions": 1}},
        {"sizes": {"instances": 1}},
        {"data_range": {"foo": "bar"}},
        {"data_range": {"after": "x", "until": "not-an-offset"}},
        {"offset": "now"},
        {"reads": {"analyzer": {"kind": "word"}}},
        {"reads": {"analyzer": 7, "boolean": False, "negative": "ignore"}},
        {"reads": reading_settings(ModelConfig()) | {"negative": "x"}},
        {"reads": reading_settings(ModelConfig()) | {"w_min": 0.01}},
        {"created": -1.0},
        {"seed": -1},
        {"metrics": {"R@1": "text"}},
        {"metrics": {"R" * 1000: 1.0}},
        {"method": "another"},
        {"params": {"S": 1}},
        {"data": "d" * 10_000},
        {"libraries": {str(i): "1" for i in range(1000)}},
    ],
    ids=str,
)
async def test_a_card_that_breaks_a_rule_is_refused(store, artifacts, fields):
    card, bodies = await whole(artifacts)
    await refused(store, artifacts, msgspec.structs.replace(card, **fields), bodies)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"offset": "9-1.0"}, "the version reaches offset 9-1.0, but the log of m ends at 9-0.0"),
        ({"data_range": {"after": None, "until": "10-0.0"}}, "offset 10-0.0, but the log of m ends at 9-0.0"),
        ({"data_range": {"after": "10-0.0", "until": None}}, "offset 10-0.0, but the log of m ends at 9-0.0"),
    ],
)
async def test_a_version_of_the_model_has_learned_nothing_that_the_log_does_not_have(store, artifacts, fields, said):
    """Another model's offsets say nothing here."""
    card, bodies = await whole(artifacts)
    await store.client.xadd(KEYS.log, {"e": b""}, id="9-0")
    await taken(store, artifacts, card, bodies, keys=KEYS)
    false = msgspec.structs.replace(card, **fields)
    with pytest.raises(Conflict, match=said):
        await taken(store, artifacts, false, bodies, keys=KEYS)
    await taken(store, artifacts, false, bodies)


async def test_a_card_that_breaks_a_rule_does_not_hide_the_others(store: Store, artifacts: ArtifactStore) -> None:
    kept = await write(artifacts, fit("frequency"))
    await write(artifacts, fit("frequency"), sizes={"instances": -1})
    assert await versions.cards(artifacts, KEYS) == [kept]


def exchanged(card: Card, bodies: list[bytes], at: int, body: bytes, **fields: Any) -> tuple[Card, list[bytes]]:
    """The card and the files with another file, whose size and checksum are right."""
    files, bodies = list(card.files), [*bodies[:at], body, *bodies[at + 1 :]]
    files[at] = msgspec.structs.replace(files[at], size=len(body), checksum=checksum_of(body), **fields)
    return msgspec.structs.replace(card, files=files), bodies


WRONG_FILES = [
    ({"file": "é.npy"}, None),
    ({"file": ".npy"}, None),
    ({"file": "../x.npy"}, None),
    ({"file": "n" * 200 + ".npy"}, None),
    ({"dtype": "<U0", "shape": [2]}, header("{'descr': '<U0', 'fortran_order': False, 'shape': (2,), }", b"")),
    (
        {"dtype": "<u2", "shape": [-2, -3]},
        header("{'descr': '<u2', 'fortran_order': False, 'shape': (-2, -3), }", bytes(12)),
    ),
    ({"dtype": "|O", "shape": [2]}, header("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", bytes(16))),
    ({}, header("{'descr': '<u2', 'fortran_order': False, 'shape': " + "-" * 9000 + "1, }", b"")),
    ({}, header("{'descr': " + "(" * 3000, b"")),
    ({}, header("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }", bytes(2))),
    ({}, b"\x93NUMPY"),
]


@pytest.mark.parametrize(("fields", "body"), WRONG_FILES)
async def test_a_file_that_is_no_array_is_refused(store, artifacts, fields, body):
    card, bodies = await whole(artifacts)
    await refused(store, artifacts, *exchanged(card, bodies, 0, bodies[0] if body is None else body, **fields))


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


async def test_numbers_out_of_range_are_refused(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await whole(artifacts)
    at = [one.name for one in card.files].index("model/features")
    wrong = np.full_like(np.load(io.BytesIO(bodies[at])), 2**31 - 1)
    await refused(store, artifacts, *exchanged(card, bodies, at, npy(wrong)))


async def test_a_graph_that_belongs_to_nothing_is_not_taken(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await whole(artifacts)
    body = npy(np.zeros(9, np.uint8))
    graph = ArrayFile("model/graph/0", "099-graph.npy", len(body), checksum_of(body), "|u1", [9])
    await refused(store, artifacts, msgspec.structs.replace(card, files=[*card.files, graph]), [*bodies, body])


async def with_graphs(artifacts: ArtifactStore) -> tuple[Card, list[bytes]]:
    pytest.importorskip("usearch")
    card = await write(artifacts, fit("ogeec", {"index": "graph", "dim": 8, "neighbors": 3, "learners": 2}))
    return card, [await artifacts.get(f"{versions.folder(KEYS, card.id)}/{one.file}") for one in card.files]


async def test_a_graph_that_comes_out_the_same_is_taken(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await with_graphs(artifacts)
    new = await taken(store, artifacts, card, bodies)
    assert new.digest == card.digest
    loaded = await versions.load(artifacts, OTHER, new.id)
    assert "model/graph/1" in loaded.fitted.to_arrays()


async def test_a_graph_that_somebody_changed_is_never_loaded(store, artifacts, monkeypatch):
    card, bodies = await with_graphs(artifacts)
    at = [one.name for one in card.files].index("model/graph/1")
    changed = bodies[at][:-1] + bytes([bodies[at][-1] ^ 1])
    loaded = []
    monkeypatch.setattr(FittedMethod, "from_arrays", loaded.append)
    await refused(store, artifacts, *exchanged(card, bodies, at, changed))
    assert loaded == []


async def test_versions_that_come_at_the_same_time_count(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await whole(artifacts)
    bound = VersionParams(total_bytes=card.n_bytes * 3 // 2)
    async with versions.writing(store, OTHER, "anotherone", card.n_bytes):
        with pytest.raises(Conflict, match="bytes"):
            await taken(store, artifacts, card, bodies, bound)
    await taken(store, artifacts, card, bodies, bound)  # that one came to nothing
    outcomes = await asyncio.gather(
        *(taken(store, artifacts, card, bodies, VersionParams(total_bytes=card.n_bytes * 7 // 2)) for _ in range(4)),
        return_exceptions=True,
    )
    assert all(isinstance(one, (Card, Conflict)) for one in outcomes)
    assert sum(one.n_bytes for one in await versions.cards(artifacts, OTHER)) <= card.n_bytes * 7 // 2
    assert await store.client.hgetall(OTHER.key("writing")) == {}


async def test_the_newest_stay_when_one_comes(store: Store, artifacts: ArtifactStore) -> None:
    card, bodies = await whole(artifacts)
    made = [await taken(store, artifacts, card, bodies, VersionParams(keep=2)) for _ in range(3)]
    assert [one.id for one in await versions.cards(artifacts, OTHER)] == [one.id for one in made[:0:-1]]
