"""Versions of fitted methods in the artifact store: written, listed, loaded, damaged, deleted."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import seal
from abound.artifacts.npy import map_array
from abound.store.key_names import ModelKeys
from abound.versions import versions as versions
from abound.versions.card import CARD, FORMAT, Card, digest_of
from abound_core.errors import Cancelled, Corrupted, UnknownApplyVersion, UnknownVersion
from abound_core.instances.record import pack_vector
from abound_core.methods import fitted as fitting
from abound_core.methods import registry
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import made
from tests.support import small_versions

KEYS = ModelKeys("m", "1-0")
OTHER = ModelKeys("m", "2-0")


def fit(method: str = "swnn", given: dict[str, Any] | None = None, use_idf: bool | None = None) -> FittedMethod:
    params = registry.params_of(method, given or {})
    return fitting.fit(method, made(80, seed=0), params, np.random.default_rng(5), no_progress, use_idf=use_idf)


async def write(artifacts: ArtifactStore, fitted: FittedMethod, **fields: Any) -> Card:
    given: dict[str, Any] = {
        "data_range": {"after": None, "until": "9-0.0"},
        "offset": "9-0.0",
        "metrics": {"R@1": 0.5},
    }
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
            one,
            size=len(packed),
            checksum=hashlib.blake2b(packed, digest_size=16).hexdigest(),
            dtype=dtype,
            shape=[1],
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
