"""Versions of fitted methods in the artifact store: written, listed, loaded, damaged, deleted."""

import asyncio
import hashlib
import io
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import checksum_of, seal
from abound.artifacts.file_format import encode_head
from abound.artifacts.npy import ArrayFile, map_array
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.card import CARD, FORMAT, Card, digest_of, reading_settings, refuse_other_reading
from abound.versions.retention import VersionParams
from abound.versions.version_file import DEFAULT, MAGIC, export_version, import_version
from abound_core.config import ModelConfig
from abound_core.errors import (
    Cancelled,
    Conflict,
    Corrupted,
    InvalidInstance,
    Malformed,
    UnknownApplyVersion,
    UnknownVersion,
)
from abound_core.instances.record import pack_vector
from abound_core.methods import registry
from abound_core.methods.fitted import FittedMethod
from tests.core.methods import toy
from tests.support import small_versions

KEYS = ModelKeys("m", "1-0")
OTHER = ModelKeys("m", "2-0")


def fit(method: str = "swnn", **given: Any) -> FittedMethod:
    return toy.fit(method, toy.made(80, seed=0), **given)


async def write(artifacts: ArtifactStore, fitted: FittedMethod, **fields: Any) -> Card:
    given = {"data_range": {"after": None, "until": "9-0.0"}, "offset": "9-0.0", "metrics": {"R@1": 0.5}}
    return await small_versions.write(artifacts, KEYS, fitted, **(given | fields))


def vectors(n: int) -> list[bytes]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(n):
        words = [f"c{rng.integers(6)}w{w}".encode() for w in range(3)] + [b"unheard of"]
        found.append(pack_vector(words, np.full(4, 0.5, np.float32)))
    return found


def folder(artifacts: ArtifactStore, card: Card) -> Path:
    path = artifacts.path(versions.folder(KEYS, card.id))
    assert path is not None
    return path


@pytest.mark.parametrize("method", sorted(registry.METHODS))
async def test_what_is_loaded_answers_as_what_was_written(artifacts: ArtifactStore, method: str) -> None:
    fitted = fit(method)
    card = await write(artifacts, fitted)
    loaded = await versions.load(artifacts, KEYS, card.id, card.digest)
    assert loaded.card == card
    assert loaded.fitted.meta() == fitted.meta()
    before, after = fitted.rank_vectors(vectors(20), 5), loaded.fitted.rank_vectors(vectors(20), 5)
    assert len(before.ids)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [loaded.fitted.labels[i] for i in after.ids] == [fitted.labels[i] for i in before.ids]


async def test_the_digest_is_that_of_what_was_fitted_and_of_nothing_else(artifacts: ArtifactStore) -> None:
    first = await write(artifacts, fit())
    again = await write(artifacts, fit(), created=2e9, metrics={}, job=None)
    other = await write(artifacts, fit(use_idf=True))
    assert first.digest == again.digest != other.digest
    with pytest.raises(Corrupted, match="another digest"):
        await versions.load(artifacts, KEYS, first.id, other.digest)


async def test_arrays_are_mapped_and_what_is_written_to_them_stays_out_of_the_file(artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit())
    before = {path: path.read_bytes() for path in folder(artifacts, card).iterdir()}
    for one in card.files:
        array = map_array(one, folder(artifacts, card) / one.file)
        assert not array.flags.owndata
        if array.size:
            array.reshape(-1).view(np.uint8)[:] = 255
    assert {path: path.read_bytes() for path in folder(artifacts, card).iterdir()} == before


async def test_a_flipped_bit_of_any_file_is_found(artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit())
    for path in sorted(folder(artifacts, card).iterdir()):
        whole = path.read_bytes()
        for at in {0, 5, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises((Corrupted, UnknownApplyVersion)):
                await versions.load(artifacts, KEYS, card.id)
        for wrong in (whole[:-1], whole + b"\0"):
            path.write_bytes(wrong)
            with pytest.raises(Corrupted):
                await versions.load(artifacts, KEYS, card.id)
        path.write_bytes(whole)
    await versions.load(artifacts, KEYS, card.id)


async def test_a_lost_file_is_found(artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit())
    (folder(artifacts, card) / card.files[-1].file).unlink()
    with pytest.raises(Corrupted, match="is missing"):
        await versions.load(artifacts, KEYS, card.id)
    (folder(artifacts, card) / CARD).unlink()
    with pytest.raises(UnknownVersion):
        await versions.load(artifacts, KEYS, card.id)


async def test_another_format_is_named(artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit())
    newer = seal(msgspec.structs.replace(card, format=FORMAT + 1))
    (folder(artifacts, card) / CARD).write_bytes(msgspec.json.encode(newer))
    with pytest.raises(UnknownApplyVersion, match="format 2; this release reads 1"):
        await versions.load(artifacts, KEYS, card.id)
    assert await versions.cards(artifacts, KEYS) == []


async def test_a_version_of_another_model_is_not_taken(artifacts: ArtifactStore) -> None:
    card = await write(artifacts, fit())
    await artifacts.put(f"{versions.folder(OTHER, card.id)}/card.json", msgspec.json.encode(card))
    with pytest.raises(Corrupted, match="belongs to another model: m 1-0"):
        await versions.card_of(artifacts, OTHER, card.id)


class Bomb:
    """Pickled; whoever unpickles it runs it."""

    went_off = False

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    Bomb.went_off = True


async def test_nothing_in_a_version_is_run(artifacts: ArtifactStore) -> None:
    """Even where all checksums are right, so whoever wrote it meant it."""
    card = await write(artifacts, fit())
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], object), allow_pickle=True)
    packed = file.getvalue()
    one = card.files[0]
    for dtype in ("|O", one.dtype):
        forged = msgspec.structs.replace(
            one, size=len(packed), checksum=hashlib.blake2b(packed, digest_size=16).hexdigest(), dtype=dtype, shape=[1]
        )
        files = [forged, *card.files[1:]]
        new = seal(msgspec.structs.replace(card, files=files, digest=digest_of(card.meta, files)))
        (folder(artifacts, card) / one.file).write_bytes(packed)
        (folder(artifacts, card) / CARD).write_bytes(msgspec.json.encode(new))
        with pytest.raises(Corrupted, match="another array than its card describes"):
            await versions.load(artifacts, KEYS, card.id)
    assert not Bomb.went_off


@pytest.mark.parametrize("name", ["../../card", "live", "", "A" * 16, "0" * 33, "0123456/"])
async def test_what_is_no_id_is_no_version(artifacts: ArtifactStore, name: str) -> None:
    with pytest.raises(UnknownVersion):
        await versions.card_of(artifacts, KEYS, name)
    with pytest.raises(UnknownVersion):
        await versions.delete(artifacts, KEYS, name)


async def test_versions_are_listed_newest_first_without_those_that_are_not_whole(artifacts: ArtifactStore) -> None:
    fitted = fit("frequency")
    made = [await write(artifacts, fitted, created=float(second)) for second in (2, 3, 1)]
    await artifacts.put(f"{versions.folder(KEYS, 'f' * 16)}/000-x.npy", b"begun")
    assert [card.created for card in await versions.cards(artifacts, KEYS)] == [3.0, 2.0, 1.0]
    (folder(artifacts, made[1]) / CARD).write_bytes(b"{")
    assert [card.id for card in await versions.cards(artifacts, KEYS)] == [made[0].id, made[2].id]


@pytest.mark.parametrize("at", [0, 3, 10])
async def test_a_write_that_is_stopped_leaves_nothing(artifacts: ArtifactStore, at: int) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > at:
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        await write(artifacts, fit(), check=check)
    assert await artifacts.names(versions.folder(KEYS)) == []


# a file of a version that somebody made by hand: refused for what is wrong with it, and nothing of it stays


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


async def whole(artifacts: ArtifactStore, fitted: FittedMethod | None = None) -> tuple[Card, list[bytes]]:
    card = await write(artifacts, fitted or fit("swnn"))
    return card, [await artifacts.get(f"{versions.folder(KEYS, card.id)}/{one.file}") for one in card.files]


def header(descr: str, shape: str, data: bytes) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


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
    ({"dtype": "<U0", "shape": [2]}, header("'<U0'", "(2,)", b"")),
    ({"dtype": "<u2", "shape": [-2, -3]}, header("'<u2'", "(-2, -3)", bytes(12))),
    ({"dtype": "|O", "shape": [2]}, header("'|O'", "(2,)", bytes(16))),
    ({}, header("'<u2'", "-" * 9000 + "1", b"")),
    ({}, header("(" * 3000, "(1,)", b"")),
    ({}, header("[('a', '<u2')]", "(1,)", bytes(2))),
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
    return await whole(artifacts, fit("ogeec", index="graph", dim=8, neighbors=3, learners=2))


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
