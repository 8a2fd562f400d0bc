"""Whether the past of a model is whole: all that history and log name is there, and is what was written.

Starts do not need it while a snapshot is good, so nobody notices what is damaged in it, until somebody verifies,
rebuilds or forgets.
"""

from __future__ import annotations

from core.errors import Damaged, UnknownApplyVersion, UnknownArtifact, UnknownOffset
from service.artifacts import Artifacts
from service.beginning import restore_beginning
from service.catalog import Living
from service.history import MENDING, History
from service.model_replica import ModelReplica
from service.store import Store
from service.unadoptable import PASSED_OVER, unadoptable


async def missing(store: Store, artifacts: Artifacts, living: Living) -> list[str]:
    """What of a model's past cannot be used, a sentence each that names it and the way out; empty: all can.

    Reads all of it: segments, base, log, and each index that is adopted on the way, one in memory at a time.
    Damaged when the list of history cannot be read; ArtifactsUnavailable, StoreUnavailable.
    """
    history = History(store, artifacts, living.keys)
    contents = await history.contents()
    wrong = []
    for segment in contents.segments if contents is not None else ():
        try:
            await history.elements(segment)
        except Damaged as error:
            wrong.append(str(error))
        except UnknownArtifact as error:
            wrong.append(f"{error}. Bring it back from a copy; or, while snapshots are good, {MENDING}")
    model = ModelReplica(living.keys, living.config)
    try:
        await restore_beginning(store, artifacts, model)
        found = [] if wrong else await unadoptable(store, artifacts, model)
    except (Damaged, UnknownApplyVersion, UnknownArtifact, UnknownOffset) as error:
        return [*wrong, str(error)]
    for one in found:
        if one.why == PASSED_OVER:
            continue
        what = one.what or "no reason was given"
        wrong.append(
            f"the index that is adopted at {one.at.entry} ({what}) cannot be had: {one.why}. Bring "
            f"it back from a copy; or, once all snapshots are past that, {MENDING}"
        )
    return wrong
