"""Versions in the artifact store: fitted methods as plain arrays, each with a card.

    <model>/<incarnation>/versions/<id>/<i>-<array>.npy   an array, not compressed: the processes of a host share it
    <model>/<incarnation>/versions/<id>/card.json         what it is, with the checksum of each file; written last
    <model>/<incarnation>/versions/<id>/ready.json        its card, as long as its job may still take the version back

A version has names of its own for features and labels, so it depends on no index and no other version. Reading one
checks every byte, then maps the files; nothing in them is ever run: numbers and text only, no pickle.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from abound.core.errors import Conflict, Damaged, UnknownApplyVersion, UnknownArtifact, UnknownVersion
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.artifacts.npy import Array, ArrayFile, checked, mapped, write_array
from abound.service.model.replicated_model import new_secret
from abound.service.store.keys import ModelKeys
from abound.service.versions.card import CARD, FORMAT, Card, digest_of, is_id, new_id, read_card

if TYPE_CHECKING:
    from abound.core.methods.fitted import Fitted

READY = "ready.json"
LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "joblib")


class Loaded(NamedTuple):
    """A version that can answer."""

    card: Card
    fitted: Fitted


def folder(keys: ModelKeys, name: str = "") -> str:
    """Where the versions of a model lie in the artifact store, or one of them."""
    return f"{keys.name}/{keys.incarnation}/versions" + (f"/{name}" if name else "")


def libraries() -> dict[str, str]:
    """The releases of what numbers depend on."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES} | {"python": platform.python_version()}


async def write(
    artifacts: Artifacts,
    keys: ModelKeys,
    fitted: Fitted,
    *,
    seed: int,
    data: str,
    upload: str | None = None,
    reads: dict[str, Any] | None = None,
    data_range: dict[str, str | None] | None,
    offset: str,
    created: float,
    metrics: dict[str, Any],
    sizes: dict[str, int],
    job: str | None = None,
    name: str | None = None,
    check: Callable[[], None] = lambda: None,
    whole: bool = True,
) -> Card:
    """Write a fitted method as a version of a model.

    Parameters
    ----------
    seed, data, upload, reads, data_range, offset, created, metrics, sizes, job
        See ``Card``.
    name : str, optional
        Its id, from ``new_id``.
    check : callable
        Called several times a second, in a thread; what it raises ends the writing.
    whole : bool
        False: all but the card, which ``publish`` writes; until then nobody sees the version.

    Raises
    ------
    ArtifactsUnavailable
        And what ``check`` raises. What was written is taken away.
    """
    name = name or new_id()
    if not is_id(name):
        raise ValueError(f"not the id of a version: {name[:64]!r}")
    arrays = await asyncio.to_thread(fitted.to_arrays)
    meta = fitted.meta()
    files = []
    try:
        for i, (array_name, array) in enumerate(arrays.items()):
            files.append(await write_array(artifacts, folder(keys, name), i, array_name, array, check))
        card = Card(
            id=name,
            format=FORMAT,
            model=keys.name,
            incarnation=keys.incarnation,
            method=fitted.method,
            params=meta["params"],
            seed=seed,
            data=data,
            upload=upload or msgspec.UNSET,
            reads=reads or msgspec.UNSET,
            data_range=data_range,
            offset=offset,
            created=created,
            metrics=metrics,
            sizes=sizes,
            n_bytes=sum(one.size for one in files),
            libraries=libraries(),
            digest=digest_of(meta, files),
            job=job,
            meta=meta,
            files=files,
        )
        if whole:
            return await finish(artifacts, keys, card)
        card = card.sealed()
        await artifacts.put(f"{folder(keys, name)}/{READY}", msgspec.json.encode(card))
        return card
    except BaseException:
        await artifacts.clear(folder(keys, name))
        raise


async def finish(artifacts: Artifacts, keys: ModelKeys, card: Card) -> Card:
    """Write the card of a version whose files are all there; sealed. ArtifactsUnavailable."""
    card = card.sealed()
    await artifacts.put(f"{folder(keys, card.id)}/{CARD}", msgspec.json.encode(card))
    return card


async def publish(artifacts: Artifacts, keys: ModelKeys, name: str) -> Card:
    """Write the card of a version that ``write`` made without; once more does no harm.

    Whoever calls this holds the fence of activations, since a forgetting may take away what is not published.

    Raises
    ------
    UnknownVersion
        It was taken away.
    Damaged, UnknownApplyVersion, ArtifactsUnavailable
    """
    try:
        return await card_of(artifacts, keys, name)
    except UnknownVersion:
        card = await ready_of(artifacts, keys, name)
    await finish(artifacts, keys, card)
    await artifacts.delete(f"{folder(keys, name)}/{READY}")
    return card


async def ready_of(artifacts: Artifacts, keys: ModelKeys, name: str) -> Card:
    """The card that a version will have; raises as ``publish``."""
    try:
        return read_card(await artifacts.get(f"{folder(keys, name)}/{READY}"))
    except UnknownArtifact:
        raise UnknownVersion(f"the model {keys.name} has no version {name} that is about to be") from None


async def card_of(artifacts: Artifacts, keys: ModelKeys, name: str) -> Card:
    """What a version is.

    Raises
    ------
    UnknownVersion
        There is none of this id.
    UnknownApplyVersion
        A newer release wrote it.
    Damaged
        The card is not what was written.
    ArtifactsUnavailable
    """
    if not is_id(name):
        raise UnknownVersion(f"the model {keys.name} has no version {name[:64]!r}")
    try:
        card = read_card(await artifacts.get(f"{folder(keys, name)}/{CARD}"))
    except UnknownArtifact:
        raise UnknownVersion(f"the model {keys.name} has no version {name}") from None
    if (card.model, card.incarnation, card.id) != (keys.name, keys.incarnation, name):
        raise Damaged(f"the version {name} is one of {card.model} {card.incarnation}")
    return card


async def ids(artifacts: Artifacts, keys: ModelKeys) -> list[str]:
    """The ids of all versions of a model that are whole, in no order that means anything."""
    start = len(folder(keys)) + 1
    names = [name[start:].split("/") for name in await artifacts.names(folder(keys))]
    return [parts[0] for parts in names if parts[1:] == [CARD] and is_id(parts[0])]


async def ready(artifacts: Artifacts, keys: ModelKeys) -> list[str]:
    """The ids of versions that are written and not published."""
    start = len(folder(keys)) + 1
    names = [name[start:].split("/") for name in await artifacts.names(folder(keys))]
    return [parts[0] for parts in names if parts[1:] == [READY] and is_id(parts[0])]


async def cards(artifacts: Artifacts, keys: ModelKeys) -> list[Card]:
    """The cards of all versions of a model, newest first; one that was deleted meanwhile, or is damaged, is left out.

    ArtifactsUnavailable.
    """
    found = []
    for name in await ids(artifacts, keys):
        try:
            found.append(await card_of(artifacts, keys, name))
        except (UnknownVersion, Damaged, UnknownApplyVersion):
            continue
    return sorted(found, key=lambda card: (-card.created, card.id))


async def load(
    artifacts: Artifacts, keys: ModelKeys, name: str, digest: str | None = None, place: Path | None = None
) -> Loaded:
    """A version, checked byte by byte, with its arrays mapped.

    Parameters
    ----------
    digest : str, optional
        Which one it must be.
    place : Path, optional
        The directory of this machine that has its files. By default that of the artifact store; if it has none, its
        copies in ``artifacts.cache``; without these the files are read into memory.

    Raises
    ------
    UnknownVersion, UnknownApplyVersion, ArtifactsUnavailable
    Damaged
        It is not whole, or not the one with this digest.
    """
    card = await card_of(artifacts, keys, name)
    if digest is not None and card.digest != digest:
        raise Damaged(f"the version {name} has another digest than the one that is asked for")
    return await load_as(artifacts, keys, card, place)


async def load_as(artifacts: Artifacts, keys: ModelKeys, card: Card, place: Path | None = None) -> Loaded:
    """What a card describes, whether or not it is written; see ``load``."""
    arrays = await arrays_of(artifacts, keys, card, place)
    return Loaded(card, await asyncio.to_thread(_fitted, card, arrays))


def _fitted(card: Card, arrays: Mapping[str, Any]) -> Fitted:
    from abound.core.methods.fitted import Fitted  # imports scipy, which a replica without versions can do without

    return Fitted.from_arrays(card.meta, arrays, new_secret())


async def arrays_of(artifacts: Artifacts, keys: ModelKeys, card: Card, place: Path | None = None) -> dict[str, Array]:
    """The arrays of a version, each one that its card says, and nothing known of them beyond that; see ``load``."""
    arrays = {}
    for one in card.files:
        try:
            arrays[one.name] = await _array(artifacts, f"{folder(keys, card.id)}/{one.file}", one, place)
        except (UnknownArtifact, FileNotFoundError):
            raise Damaged(f"the version {card.id} has lost its file {one.file}") from None
        except Damaged as error:
            raise Damaged(f"the version {card.id} is damaged: {error}") from None
    return arrays


async def _array(artifacts: Artifacts, name: str, one: ArrayFile, place: Path | None) -> Array:
    here = artifacts.path(name) if place is None else place / one.file
    if here is not None:
        return await asyncio.to_thread(mapped, one, here)
    kept = await artifacts.file(name, one.size, one.checksum)
    if kept is not None:
        try:
            return await asyncio.to_thread(mapped, one, kept)
        except (Damaged, FileNotFoundError):  # the copy is none, or it has just gone: as where there are no copies
            assert artifacts.cache is not None
            artifacts.cache.drop(kept)
    return await asyncio.to_thread(checked, one, bytearray(await artifacts.get(name)))


async def delete(artifacts: Artifacts, keys: ModelKeys, name: str, uses: Mapping[str, str] | None = None) -> None:
    """Take a version away, its card first.

    Parameters
    ----------
    uses : mapping, optional
        Versions that are needed, and what for.

    Raises
    ------
    UnknownVersion, ArtifactsUnavailable
    Conflict
        It is needed.
    """
    if name not in await ids(artifacts, keys):
        raise UnknownVersion(f"the model {keys.name} has no version {name[:64]!r}")
    if uses and name in uses:
        raise Conflict(f"the version {name} cannot be deleted: {uses[name]}")
    await artifacts.delete(f"{folder(keys, name)}/{CARD}")
    await artifacts.clear(folder(keys, name))
