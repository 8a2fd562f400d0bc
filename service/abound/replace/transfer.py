"""Export and import of a whole model as one file (``abound/state/model_file.py``).

A model created by an import stays, even if the import fails later: another client may have taught it already.
The catalog and the model's log are separate keys, so no single command can check one and write the other. The
model is then empty, and the same import can be repeated into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec
import structlog

from abound.artifacts.artifact_store import ArtifactStore
from abound.artifacts.checksums import seal
from abound.artifacts.file_format import encode_head
from abound.log.events import Entry, LearnEvent
from abound.replace.context import ReplaceContext
from abound.replace.copying import Past
from abound.replace.replace import Replacement, replace_model
from abound.replica import predictions
from abound.replica.memory_budget import MemoryBudget
from abound.replica.replica import Replica
from abound.state import snapshots, state_image
from abound.state.model_file import MAGIC, read_model_file
from abound.state.position import AT_START
from abound.state.replicated_model import ReplicatedModel
from abound.state.state_image import StateManifest
from abound.versions.card import reading_settings
from abound_core.config import ModelConfig
from abound_core.errors import (
    ArtifactsUnavailable,
    Conflict,
    Corrupted,
    InvalidInstance,
    Malformed,
    UnknownApplyVersion,
    UnknownModel,
)
from abound_core.instances.text_analyzer import stop_words_of
from abound_core.limits import Limits
from abound_core.model.active_version import LIVE
from abound_core.types import Offset

log = structlog.get_logger(__name__)


class ExportedModel(NamedTuple):
    manifest: StateManifest
    size: int  # of the file
    pieces: AsyncIterator[bytes]  # end early, with an error, if a part of the snapshot is deleted or damaged


async def export_model(replica: Replica, name: str) -> ExportedModel:
    """Return a model as one file, at its present offset or a little later. NotReady if no worker makes a snapshot."""
    model = replica.model(name)
    # The worker makes a snapshot at or past the present offset, so nothing pauses.
    manifest = await replica.request_snapshot(name)
    dismissed = await predictions.dismissed(replica.store, model.keys)
    kept = [one.offset for one in model.live.suspects() if str(one.offset) in dismissed]
    head = encode_head(MAGIC, seal(msgspec.structs.replace(manifest, dismissed=kept)))

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        async for part in snapshots.read_parts(replica.store, model.keys, manifest):
            yield part

    return ExportedModel(manifest, len(head) + manifest.size, pieces())


async def import_model(
    replica: Replica, name: str, pieces: AsyncIterator[bytes], limit: int, prepare_seconds: float, budget: MemoryBudget
) -> Offset:
    """Import a model from a file, creating it if it does not exist; return the offset at which it is served.

    Nothing changes, and other processes see nothing, until the file is complete and valid and its memory is available.
    Raises Malformed for a damaged file, InvalidInstance for one of a newer release or with stop words that this replica
    does not have, MemoryLimitExceeded, and Conflict: the model has learned; its active version reads instances in
    another way; or the maximum number of models exists.
    """
    artifacts = replica.artifacts
    if artifacts is None:
        raise ArtifactsUnavailable("importing a model needs an artifact store: set ABOUND_ARTIFACTS_URL")
    await artifacts.join(replica.store)
    _refuse_taught(replica, name)
    replica.models.check_can_create(name)
    try:
        manifest, parts = await read_model_file(pieces, limit)
        with budget.reserve(name, replica.models.all) as expect:
            return await _replace_by_imported(replica, artifacts, name, manifest, parts, expect, prepare_seconds)
    except Corrupted as error:
        raise Malformed(str(error)) from error
    except UnknownApplyVersion as error:
        raise InvalidInstance(str(error), "body") from error


async def _replace_by_imported(
    replica: Replica,
    artifacts: ArtifactStore,
    name: str,
    manifest: StateManifest,
    parts: AsyncIterator[bytes],
    expect: Callable[[int], None],
    prepare_seconds: float,
) -> Offset:
    config = manifest.config
    _refuse_read_otherwise(replica, name, config)
    await asyncio.to_thread(stop_words_of, config.analyzer)
    expect(manifest.size)  # reading it takes no more memory than this
    # Each part is verified on arrival. The state shows that it is intact and how much memory it takes.
    live = await state_image.load(manifest, parts, Limits(), foreign=True)
    expect(live.n_bytes + live.growth_bytes)
    _refuse_taught(replica, name)
    await replica.models.create(name, config)
    model = replica.model(name)
    dismissed = {one.offset for one in live.suspects()}.intersection(manifest.dismissed or ())
    await predictions.dismiss(replica.store, model.keys, dismissed)  # copied with the stored predictions
    imported = ReplicatedModel(model.keys, config)
    imported.restore(live, AT_START)

    async def make(replacement: Replacement) -> Past:
        await replica.wait_for(name, replacement.after, prepare_seconds)  # another client may have taught it
        _refuse_taught(replica, name)
        imported.live.serving = model.live.serving
        return Past(model=imported, source=None, tail_after=replacement.after, refuses=_refuse_learned, keep=False)

    context = ReplaceContext(
        store=replica.store,
        artifacts=artifacts,
        name=name,
        origin=model.origin,
        record=f"import-{secrets.token_hex(8)}",
        prepare_seconds=prepare_seconds,
    )
    at = await replace_model(context, make, f"import of {manifest.model} at {manifest.offset}"[:1000])
    if at is None:
        raise AssertionError("an import has a past")
    await replica.wait_for(name, at, prepare_seconds)
    return at


def _refuse_learned(entry: Entry) -> None:
    if isinstance(entry.event, LearnEvent):
        raise Conflict("the model learned during the import; import under another name, or delete it first")


def _refuse_taught(replica: Replica, name: str) -> None:
    with contextlib.suppress(UnknownModel):
        live = replica.model(name).live
        if not live.is_untaught:
            what = f"learned {live.n_learned} instances" if live.n_learned else "registered labels"
            raise Conflict(f"the model {name} has {what}; import under another name, or delete it first")


def _refuse_read_otherwise(replica: Replica, name: str, config: ModelConfig) -> None:
    """Raise Conflict if the active version of a model reads instances in another way than the imported model would."""
    with contextlib.suppress(UnknownModel):
        live = replica.model(name).live
        if not live.serving.is_live and reading_settings(live.config) != reading_settings(config):
            raise Conflict(
                f"the version {live.serving.version} of {name} is active and was fitted on instances that are read "
                f"otherwise than by the model in the file; activate {LIVE} first"
            )
