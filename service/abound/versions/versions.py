"""Version repository: fitted methods in the artifact store, as plain arrays with a card.

    <model>/<incarnation>/versions/<id>/<i>-<array>.npy   an uncompressed array; the processes of a host share its map
    <model>/<incarnation>/versions/<id>/card.json         the card, with the checksum of each file; written last
    <model>/<incarnation>/versions/<id>/ready.json        the card while the version is written but not published
    ...:writing    in the store, hash: the versions that are being written (``abound/artifacts/write_marks.py``)

A version has feature and label names of its own, so it depends on no index and no other version. Loading one
verifies every byte, then maps the files. The files hold only numbers and text, no pickle and no code.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import platform
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import seal
from abound.artifacts.npy import Array, ArrayFile, map_array, parse_array, write_array
from abound.artifacts.write_marks import collect_unmarked, hold_write_mark, marked_writes
from abound.state.replicated_model import new_secret
from abound.store.client import Store
from abound.store.key_names import ModelKeys
from abound.versions.card import CARD, FORMAT, Card, digest_of, is_id, new_id, read_card
from abound_core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    UnknownApplyVersion,
    UnknownArtifact,
    UnknownVersion,
)

if TYPE_CHECKING:
    from abound_core.methods.fitted import FittedMethod

READY = "ready.json"
LIBRARIES = ("numpy", "scipy", "numba", "joblib")


class LoadedVersion(NamedTuple):
    card: Card
    fitted: FittedMethod


def folder(keys: ModelKeys, name: str = "") -> str:
    """Return the folder of a model's versions in the artifact store, or of one version."""
    return f"{keys.folder}/versions" + (f"/{name}" if name else "")


def libraries() -> dict[str, str]:
    """Return the releases of the libraries that numerical results depend on."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES} | {"python": platform.python_version()}


async def write(
    artifacts: ArtifactStore,
    keys: ModelKeys,
    fitted: FittedMethod,
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
    """Write a fitted method as a version of a model; if that fails, delete the files written so far.

    ``check`` is called several times a second, in a thread; an exception from it ends the writing. With ``whole``
    False, ``ready.json`` is written instead of the card, and the version stays invisible until ``activation.publish``
    writes the card.
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
            upload=upload,
            reads=reads,
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
        return await finish(artifacts, keys, card, CARD if whole else READY)
    except BaseException:
        await artifacts.clear(folder(keys, name))
        raise


async def finish(artifacts: ArtifactStore, keys: ModelKeys, card: Card, file: str = CARD) -> Card:
    """Write the card of a version whose files are all written; return the card with its checksum."""
    card = seal(card)
    await artifacts.put(f"{folder(keys, card.id)}/{file}", msgspec.json.encode(card))
    return card


async def unpublished_card(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> Card:
    try:
        return read_card(await artifacts.get(f"{folder(keys, name)}/{READY}"))
    except UnknownArtifact:
        raise UnknownVersion(f"the model {keys.name} has no unpublished version {name}") from None


async def card_of(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> Card:
    """Return the card. Raises UnknownVersion, UnknownApplyVersion of a newer release, or Corrupted if altered."""
    if not is_id(name):
        raise UnknownVersion(f"the model {keys.name} has no version {name[:64]!r}")
    try:
        card = read_card(await artifacts.get(f"{folder(keys, name)}/{CARD}"))
    except UnknownArtifact:
        raise UnknownVersion(f"the model {keys.name} has no version {name}") from None
    if (card.model, card.incarnation, card.id) != (keys.name, keys.incarnation, name):
        raise Corrupted(f"the version {name} belongs to another model: {card.model} {card.incarnation}")
    return card


async def copy(artifacts: ArtifactStore, keys: ModelKeys, new: ModelKeys, card: Card) -> None:
    """Copy a version to another incarnation of its model."""
    for one in card.files:
        await artifacts.link(f"{folder(keys, card.id)}/{one.file}", f"{folder(new, card.id)}/{one.file}")
    await finish(artifacts, new, msgspec.structs.replace(card, incarnation=new.incarnation))


async def ids(artifacts: ArtifactStore, keys: ModelKeys, file: str = CARD) -> list[str]:
    """Return the ids of all published versions of a model, in no particular order; with ``READY`` the unpublished."""
    start = len(folder(keys)) + 1
    names = [name[start:].split("/") for name in await artifacts.names(folder(keys))]
    return [parts[0] for parts in names if parts[1:] == [file] and is_id(parts[0])]


async def cards(artifacts: ArtifactStore, keys: ModelKeys) -> list[Card]:
    """Return the cards of all published versions, newest first, without those damaged or deleted meanwhile."""
    found = []
    for name in await ids(artifacts, keys):
        try:
            found.append(await card_of(artifacts, keys, name))
        except (UnknownVersion, Corrupted, UnknownApplyVersion):
            continue
    return sorted(found, key=lambda card: (-card.created, card.id))


async def load(artifacts: ArtifactStore, keys: ModelKeys, name: str, digest: str | None = None) -> LoadedVersion:
    """Load a version: verify every byte and its ``digest``, and map its arrays.

    The files are mapped in the artifact store's own directory; if the store is not a local directory, in
    ``artifacts.cache``. Without either, the files are read into memory.
    """
    card = await card_of(artifacts, keys, name)
    if digest is not None and card.digest != digest:
        raise Corrupted(f"the version {name} has another digest than the expected one")
    return await load_from_card(artifacts, keys, card)


async def load_from_card(artifacts: ArtifactStore, keys: ModelKeys, card: Card) -> LoadedVersion:
    """Load the version that a card describes, whether or not the card is written; see ``load``."""
    arrays = await arrays_of(artifacts, keys, card)
    return LoadedVersion(card, await asyncio.to_thread(_fitted, card, arrays))


def _fitted(card: Card, arrays: Mapping[str, Any]) -> FittedMethod:
    from abound_core.methods.fitted import FittedMethod  # imports scipy, which a replica without versions does not need

    return FittedMethod.from_arrays(card.meta, arrays, new_secret())


async def arrays_of(artifacts: ArtifactStore, keys: ModelKeys, card: Card) -> dict[str, Array]:
    """Load and verify the arrays that a card lists, without interpreting them; see ``load``."""
    arrays = {}
    for one in card.files:
        try:
            arrays[one.name] = await _array(artifacts, f"{folder(keys, card.id)}/{one.file}", one)
        except (UnknownArtifact, FileNotFoundError):
            raise Corrupted(f"the file {one.file} of the version {card.id} is missing") from None
        except Corrupted as error:
            raise Corrupted(f"the version {card.id} is damaged: {error}") from None
    return arrays


async def _array(artifacts: ArtifactStore, name: str, one: ArrayFile) -> Array:
    path = await artifacts.local_file(name, one.size, one.checksum)
    if path is not None:
        try:
            return await asyncio.to_thread(map_array, one, path)
        except (Corrupted, FileNotFoundError):  # a copy is damaged or was just deleted: read into memory instead
            if artifacts.is_directory or artifacts.cache is None:
                raise
            artifacts.cache.drop(path)
        except OSError as error:
            raise ArtifactsUnavailable(f"the file {path} cannot be read: {error}") from error
    return await asyncio.to_thread(parse_array, one, bytearray(await artifacts.get(name)))


async def delete(artifacts: ArtifactStore, keys: ModelKeys, name: str, uses: Mapping[str, str] | None = None) -> None:
    """Delete a version, its card first. Raises Conflict if ``uses``, the needed versions with the reason, contains
    it.
    """
    if name not in await ids(artifacts, keys):
        raise UnknownVersion(f"the model {keys.name} has no version {name[:64]!r}")
    if uses and name in uses:
        raise Conflict(f"the version {name} cannot be deleted: {uses[name]}")
    await artifacts.delete(f"{folder(keys, name)}/{CARD}")
    await artifacts.clear(folder(keys, name))


def writing(store: Store, keys: ModelKeys, name: str, n_bytes: int = 0) -> contextlib.AbstractAsyncContextManager[None]:
    """Register a version as being written while the context lasts: it may then have files and no card.

    ``n_bytes`` is its expected size, which ``written_bytes`` counts.
    """
    return hold_write_mark(store, keys.key("writing"), name, n_bytes)


async def written_bytes(store: Store, artifacts: ArtifactStore, keys: ModelKeys) -> int:
    """Return the bytes of all versions, including those being written."""
    coming = await marked_writes(store, keys.key("writing"))
    there = {card.id: card.n_bytes for card in await cards(artifacts, keys)}
    return sum((coming | there).values())


async def collect_garbage(
    store: Store, artifacts: ArtifactStore, keys: ModelKeys, committed: Callable[[], Awaitable[set[str]]]
) -> int:
    """Delete the files of unfinished versions that no process is writing; return the number of files.

    ``committed`` returns the folders of versions whose job will still write the card. The files are listed first,
    then the writers, then the committed versions, then the cards, so a version finished meanwhile stays.
    """

    async def needed(unmarked: set[str]) -> set[str]:
        found = set(await ids(artifacts, keys))
        if unmarked <= found:
            return found
        folders = await committed()
        found |= {name for name in unmarked if folder(keys, name) in folders}
        return found | {name for name in unmarked - found if await _has_card(artifacts, keys, name)}

    return await collect_unmarked(store, artifacts, folder(keys), keys.key("writing"), needed)


async def _has_card(artifacts: ArtifactStore, keys: ModelKeys, name: str) -> bool:
    """Return whether a version has a card. A listing of the artifact store may lack one that was just written."""
    try:
        await card_of(artifacts, keys, name)
    except UnknownVersion:
        return False
    except (Corrupted, UnknownApplyVersion):
        return True
    return True
